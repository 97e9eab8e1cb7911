"""invoke: sends one request to the endpoint and prints the reply in readable form."""

import argparse
import codecs
import re
from collections.abc import Iterable
from pathlib import Path

from deploy import asynchronous, direct
from deploy.calls import RUNTIME, Reply
from deploy.components import full_name
from deploy.context import Context
from deploy.errors import DeployError, UsageError
from deploy.replies import readable
from deploy.request import MAX_BODY, Request, read

HELP = "send a file, a text or tensors to the endpoint"
DEFAULT_WAIT = 3600.0  # seconds, the limit of asynchronous inference


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("file", nargs="?", type=Path, metavar="FILE", help="the body; its type follows from its name")
    parser.add_argument("--text", help="a text as the body")
    parser.add_argument("--json", help="JSON as the body: instances or KServe tensors")
    parser.add_argument("--model", metavar="NAME", help="model to call; default: the endpoint's default model")
    parser.add_argument("--version", metavar="V", help="version of the model; default: the latest")
    parser.add_argument(
        "--parameter", action="append", default=[], metavar="NAME=VALUE", help="parameter of the model, such as top_k=2"
    )
    parser.add_argument("--target-model", metavar="ARCHIVE", help="model of a multi-model endpoint: NAME.tar.gz")
    parser.add_argument("--component", metavar="COMPONENT", help="of an endpoint of inference components, which one")
    parser.add_argument("--target-variant", metavar="NAME", help="AllTraffic, or Candidate while there is one")
    parser.add_argument("--content-type", metavar="TYPE", help="type of the body; default: by the file's name")
    parser.add_argument("--accept", metavar="TYPE", help="type of the reply")
    parser.add_argument("--inference-id", metavar="ID", help="the request's id in the logs")
    parser.add_argument(
        "--output", type=Path, metavar="FILE", help="write the reply here; .jpg and .png: an image with the detections"
    )
    parser.add_argument("--raw", action="store_true", help="print the reply unchanged")
    way = parser.add_mutually_exclusive_group()
    way.add_argument("--stream", action="store_true", help="print the reply's parts as they arrive")
    way.add_argument("--async", dest="folder", metavar="S3", help="call asynchronously, with the body in s3://…/")
    parser.add_argument(
        "--wait", type=float, default=DEFAULT_WAIT, metavar="S", help="seconds to wait for an asynchronous result"
    )
    place = parser.add_mutually_exclusive_group()
    place.add_argument("--endpoint-url", metavar="URL", help="URL of the runtime API, for a simulator")
    place.add_argument("--container", metavar="URL", help="call a container without AWS: http://localhost:8080")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Sends the request the way that the options say, and prints the reply."""
    request = read(arguments)
    if arguments.component:
        request.fields["InferenceComponentName"] = full_name(context, arguments.component)
    _check(arguments, request)
    if arguments.stream:
        _print_parts(context, _stream(arguments, context, request))
        return
    reply = _ask(arguments, context, request)
    if "Body" in reply:  # a dry run has none
        _show(arguments, context, reply["Body"].read(), reply.get("ContentType", ""))


def _ask(options: argparse.Namespace, context: Context, request: Request) -> Reply:
    """The reply with its Body and its ContentType."""
    if options.container:
        answer = direct.send(options.container, request)
        return {"Body": answer, "ContentType": answer.headers.get("Content-Type", "")}
    if options.folder:
        return asynchronous.invoke(context, request, options.folder, options.wait) or {}
    return context.calls.call(RUNTIME, "InvokeEndpoint", request.parameters(context.name))


def _check(options: argparse.Namespace, request: Request) -> None:
    if options.target_model and (options.stream or options.folder):
        raise UsageError("--target-model works with neither --stream nor --async: those API calls have no TargetModel")
    if options.component and (options.folder or options.target_model or options.target_variant):
        raise UsageError("--component works with none of --async, --target-model and --target-variant")
    if len(request.body) > MAX_BODY and not options.folder:
        raise UsageError(f"the body has {len(request.body)} bytes, SageMaker allows {MAX_BODY}; --async allows 1 GB")
    if options.folder:
        asynchronous.split(options.folder)
    for url in (options.container, options.endpoint_url):
        if url is not None and not re.fullmatch(r"https?://[^/\s]+(/\S*)?", url):
            raise UsageError(f"'{url}' is not a URL: http://HOST:PORT")
    if options.container and (options.folder or options.dry_run):
        raise UsageError("--container works with neither --async nor --dry-run: it does not call AWS")


def _show(options: argparse.Namespace, context: Context, body: bytes, content_type: str) -> None:
    if options.output:
        _write(options.output, body)
        context.say(f"wrote {options.output} ({content_type or 'no type'}, {len(body)} bytes)")
        return
    text = body.decode(errors="replace") if options.raw else readable(body, content_type)
    if text is None:
        raise DeployError(f"the reply is {len(body)} bytes of {content_type or 'no type'}: --output FILE writes them")
    context.out(text)


def _write(path: Path, body: bytes) -> None:
    try:
        path.write_bytes(body)
    except OSError as err:
        raise DeployError(f"{path} cannot be written: {err.strerror}") from None


def _stream(options: argparse.Namespace, context: Context, request: Request) -> Iterable[bytes]:
    """The reply's parts as they arrive; botocore raises errors within the stream."""
    if options.container:
        yield from direct.parts(direct.send(options.container, request))
        return
    reply = context.calls.call(RUNTIME, "InvokeEndpointWithResponseStream", request.parameters(context.name))
    for event in reply.get("Body", ()):
        if "PayloadPart" in event:
            yield event["PayloadPart"]["Bytes"]


def _print_parts(context: Context, parts: Iterable[bytes]) -> None:
    """Prints whole lines, although a part may end within a line or a character."""
    text = codecs.getincrementaldecoder("utf-8")(errors="replace")
    line = ""
    for part in parts:
        *whole, line = (line + text.decode(part)).split("\n")
        for each in whole:
            context.out(each)
    if line:
        context.out(line)
