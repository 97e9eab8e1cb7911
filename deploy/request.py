"""A request to the endpoint: the command line's options -> InvokeEndpoint's parameters."""

import argparse
import mimetypes
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from deploy.errors import UsageError

TYPES = {
    ".json": "application/json",
    ".jsonl": "application/jsonlines",
    ".ndjson": "application/jsonlines",
    ".txt": "text/plain",
    ".npy": "application/x-npy",
    ".jpg": "image/jpeg",
    ".jpeg": "image/jpeg",
    ".png": "image/png",
    ".webp": "image/webp",
}
ANY_TYPE = "application/octet-stream"
PICTURES = {".jpg": "image/jpeg", ".jpeg": "image/jpeg", ".png": "image/png"}
MAX_ATTRIBUTES = 1024  # characters of CustomAttributes, SageMaker's limit
MAX_BODY = 25 * 1024 * 1024  # bytes, SageMaker's limit for a real-time request


@dataclass(frozen=True)
class Request:
    """A body, its type, and the fields that InvokeEndpoint sends as headers."""

    body: bytes
    content_type: str
    fields: dict[str, str]

    def parameters(self, endpoint: str) -> dict[str, Any]:
        """The parameters of InvokeEndpoint and InvokeEndpointWithResponseStream."""
        return {"EndpointName": endpoint, "Body": self.body, "ContentType": self.content_type, **self.fields}


def read(options: argparse.Namespace) -> Request:
    """The request that the options describe; UsageError unless they give one readable body."""
    body, content_type = _body(options)
    fields = {"CustomAttributes": attributes(options), "Accept": _accept(options)}
    fields |= {"TargetModel": options.target_model or "", "InferenceId": options.inference_id or ""}
    fields |= {"TargetVariant": options.target_variant or ""}
    return Request(body, options.content_type or content_type, {key: text for key, text in fields.items() if text})


def attributes(options: argparse.Namespace) -> str:
    """Model, version and parameters as Custom-Attributes, the header that SageMaker passes to the container."""
    pairs = [("model_name", options.model), ("model_version", options.version)]
    pairs += [_parameter(text) for text in options.parameter]
    text = ";".join(f"{name}={value}" for name, value in pairs if value)
    if not text.isascii() or not text.isprintable() or len(text) > MAX_ATTRIBUTES:
        raise UsageError(f"--model, --version and --parameter must be at most {MAX_ATTRIBUTES} characters of ASCII")
    return text


def _parameter(text: str) -> tuple[str, str]:
    name, sign, value = text.partition("=")
    if not name or not sign or ";" in text:
        raise UsageError(f"--parameter takes NAME=VALUE without a semicolon, got '{text}'")
    return name, value


def _accept(options: argparse.Namespace) -> str:
    """--accept; else an image type when --output names an image, or an event stream with --stream."""
    if options.accept:
        return str(options.accept)
    picture = PICTURES.get(options.output.suffix.lower(), "") if options.output else ""
    return picture or ("text/event-stream" if options.stream else "")


def _body(options: argparse.Namespace) -> tuple[bytes, str]:
    given = [name for name in ("file", "text", "json") if getattr(options, name) is not None]
    if len(given) != 1:
        raise UsageError("give one of FILE, --text and --json")
    if options.text is not None:
        return options.text.encode(), "text/plain"
    if options.json is not None:
        return options.json.encode(), "application/json"
    return _read_file(options.file)


def _read_file(path: Path) -> tuple[bytes, str]:
    try:
        body = path.read_bytes()
    except OSError as err:
        raise UsageError(f"{path} cannot be read: {err.strerror}") from None
    suffix = path.suffix.lower()
    return body, TYPES.get(suffix) or mimetypes.types_map.get(suffix, ANY_TYPE)
