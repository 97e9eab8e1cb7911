"""Implements the command `invoke`, which sends one request to the endpoint, and prints or saves the
reply."""

import mimetypes
import sys

from deploy.aws import RUNTIME, Aws, Reply
from deploy.config import with_config
from deploy.errors import DeployError, UsageError
from deploy.options import Invoke

TYPES = {
    ".json": "application/json",
    ".jsonl": "application/jsonlines",
    ".ndjson": "application/jsonlines",
    ".npy": "application/x-npy",
    ".webp": "image/webp",
}
PICTURES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png"}


def invoke(options: Invoke, aws: Aws) -> None:
    """Send the request that the options describe, and print the reply or write it to --output."""
    if options.stream and options.output:
        raise UsageError("--stream prints the reply: leave out --output")
    body, content_type = _body(options)
    parameters = {
        "EndpointName": options.name,
        "Body": body,
        "ContentType": options.content_type or content_type,
        "CustomAttributes": _attributes(options),
        "Accept": options.accept or _default_accept(options),
        "TargetModel": options.target_model,
    }
    parameters = {key: value for key, value in parameters.items() if value not in (None, "")}
    operation = "InvokeEndpointWithResponseStream" if options.stream else "InvokeEndpoint"
    parameters = with_config(aws, options.config, operation, parameters)
    reply = aws.write(RUNTIME, operation, parameters)
    if aws.dry_run:
        return
    if options.stream:
        _print_stream(reply)
    else:
        _show(options, reply)


def _default_accept(options: Invoke) -> str:
    """Return the type of reply that the options imply: events for --stream, an image if --output
    has an image's name, and otherwise ""."""
    if options.stream:
        return "text/event-stream"
    return PICTURES.get(options.output.suffix.lower(), "") if options.output else ""


def _body(options: Invoke) -> tuple[bytes, str]:
    """Return the body that the options describe, and its content type. Raise UsageError if there is
    no body, if FILE is JSON instead of a file's name, or if the file cannot be read."""
    if options.text is not None:
        return options.text.encode(), "text/plain"
    if options.json is not None:
        return options.json.encode(), "application/json"
    if options.file is None:
        raise UsageError("give one of FILE, --text and --json")
    if str(options.file).startswith(("{", "[")):
        raise UsageError("FILE is the name of a file; pass JSON with --json")
    try:
        body = options.file.read_bytes()
    except OSError as err:
        raise UsageError(f"{options.file} cannot be read: {err.strerror}") from None
    suffix = options.file.suffix.lower()
    known = TYPES.get(suffix) or mimetypes.types_map.get(suffix)
    return body, known or "application/octet-stream"


def _attributes(options: Invoke) -> str:
    """Return the value of Custom-Attributes, the header that SageMaker passes to the container. It
    contains the model, its version and its parameters. Raise UsageError for an invalid
    --parameter."""
    for text in options.parameter:
        if "=" not in text or ";" in text:
            raise UsageError(f"--parameter takes NAME=VALUE without a semicolon, got '{text}'")
    named = {"model_name": options.model, "model_version": options.version}
    pairs = [f"{name}={value}" for name, value in named.items() if value]
    return ";".join([*pairs, *options.parameter])


def _print_stream(reply: Reply) -> None:
    """Print each part of the reply when it arrives. Raise botocore's EventStreamError if the
    container ends the stream with an error."""
    for event in reply["Body"]:
        if "PayloadPart" in event:
            sys.stdout.buffer.write(event["PayloadPart"]["Bytes"])
            sys.stdout.buffer.flush()


def _show(options: Invoke, reply: Reply) -> None:
    """Print the reply, or write it to --output. Raise DeployError if it is not text and there is no
    --output, and UsageError if the file cannot be written."""
    body = reply["Body"].read()
    content_type = reply.get("ContentType", "")
    if not options.output:
        try:
            text = body.decode()
        except UnicodeDecodeError:
            raise DeployError(
                f"the reply is {len(body)} bytes of {content_type}: --output FILE writes them"
            ) from None
        print(text.rstrip("\n"))
        return
    try:
        options.output.write_bytes(body)
    except OSError as err:
        raise UsageError(f"{options.output} cannot be written: {err.strerror}") from None
    print(f"wrote {len(body)} bytes of {content_type} to {options.output}")
