"""What a request to /invocations asks for: which model, and what its body holds.

Nothing is decoded here: an instance stays an Item until its model's codec is known.
"""

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from typing import Any

import orjson

from serving.codecs import Codec, Limits, describe
from serving.errors import DecodingError, InvalidRequest

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
TARGET_MODEL = "X-Amzn-SageMaker-Target-Model"
NAME_KEYS = ("model_name", "modelname")
VERSION_KEY = "model_version"
RESERVED = {*NAME_KEYS, VERSION_KEY}
BINARY_TYPE = "application/vnd.sagemaker-triton.binary+json"
NPY_TYPE = "application/x-npy"
NPY_MAGIC = b"\x93NUMPY"
JSON_LINES = "application/jsonlines"
LINES_TYPES = (JSON_LINES, "application/x-jsonlines", "application/x-ndjson")
SHAPES = (
    '{"instances": […]}, {"inputs": […]} with KServe v2 tensors, or {"modelname": …, "payload": {"img" or "text": …}}'
)


@dataclass(frozen=True)
class Target:
    """The model and the version that one place of a request names; None where it names none."""

    place: str
    name: str | None = None
    version: str | None = None


@dataclass(frozen=True)
class Item:
    """One instance as it came: raw bytes or a JSON value, and the field that held it."""

    field: str
    raw: bytes | None = None
    value: Any = None

    def open(self, codec: Codec, limits: Limits, index: int) -> Any:
        """What `load` makes the instance of; raises DecodingError with its place."""
        with self._placed(index):
            return codec.open_json(self.value, limits) if self.raw is None else codec.open(self.raw, limits)

    def load(self, codec: Codec, opened: Any, index: int) -> Any:
        """The instance; raises DecodingError with its place."""
        with self._placed(index, codec.part if self.raw is None else ""):
            return codec.load(opened)

    @contextmanager
    def _placed(self, index: int, part: str = "") -> Iterator[None]:
        try:
            yield
        except DecodingError as err:
            path = [name for name in (self.field, err.field or part) if name]
            raise err.at(index, ".".join(path)) from err


@dataclass(frozen=True)
class Instances:
    """A body for a model's client. `sample_shape` asks for {"modelname", "result"} as a reply.

    `media_type` is what a raw body said it is, "" when that said nothing."""

    items: list[Item]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    sample_shape: bool = False
    media_type: str = ""

    @property
    def is_lines(self) -> bool:
        """Whether the one raw item is JSON lines, each a record of its own (serving/inference/batch_transform.py)."""
        return self.media_type in LINES_TYPES


@dataclass(frozen=True)
class TensorBody:
    """A KServe v2 body: `header_length` is the length of its JSON part, None when all of it is JSON;
    `document` is that JSON, parsed, None where there is none to parse."""

    body: bytes
    header_length: int | None
    document: dict[str, Any] | None


@dataclass(frozen=True)
class FlatBody:
    """A JSON object of none of the other shapes: inputs by their names, as Triton's generate takes them."""

    document: dict[str, Any]


@dataclass(frozen=True)
class NpyBody:
    """One array for a model with one input."""

    body: bytes


Body = Instances | TensorBody | FlatBody | NpyBody


def read_attributes(header: str) -> dict[str, str]:
    """`model_name=resnet;model_version=1` (also `,` between) -> its pairs; what is no pair is not ours."""
    pairs = (part.partition("=") for part in header.replace(",", ";").split(";"))
    return {name.strip(): value.strip() for name, separator, value in pairs if separator and name.strip()}


def target_in(place: str, values: Mapping[str, Any]) -> Target:
    """The model that these values name. Raises InvalidRequest when one is no name."""
    name = next((values[key] for key in NAME_KEYS if values.get(key) not in (None, "")), None)
    version = values.get(VERSION_KEY)
    if name is not None and not isinstance(name, str):
        raise InvalidRequest(f"{place}: the model's name must be a string, got {describe(name)}")
    if isinstance(version, bool) or not isinstance(version, str | int | None):
        raise InvalidRequest(f"{place}: model_version must be a whole number, got {describe(version)}")
    return Target(place, name, None if version in (None, "") else str(version))


def choose_target(targets: Iterable[Target]) -> tuple[str | None, str | None]:
    """The (name, version) of the first that names one; raises InvalidRequest when two disagree."""
    named = list(targets)
    return _agreed("name", named), _agreed("version", named)


def _agreed(what: str, targets: list[Target]) -> str | None:
    given = [(t.place, value) for t in targets if (value := getattr(t, what)) is not None]
    for place, value in given[1:]:
        if value != given[0][1]:
            raise InvalidRequest(
                f"two model {what}s: {given[0][0]} says '{given[0][1]}' and {place} says '{value}'; send one of them"
            )
    return given[0][1] if given else None


def media_type(content_type: str) -> tuple[str, dict[str, str]]:
    """A Content-Type's type in lower case and its parameters."""
    message = Message()
    message["content-type"] = content_type
    params = dict(message.get_params(failobj=[])[1:])
    return content_type.partition(";")[0].strip().lower(), params


def read_body(content_type: str, body: bytes) -> tuple[Body, Target]:
    """What a body holds, by its type and its first bytes, and the model that it names.

    JSON is recognised by looking at it: curl and AWS's notebooks send it with any Content-Type.
    """
    kind, params = media_type(content_type)
    nobody = Target("the body")
    if kind != BINARY_TYPE and BINARY_TYPE in content_type.lower():
        raise InvalidRequest(f"Content-Type must begin with '{BINARY_TYPE}', got '{content_type}'")
    if kind in LINES_TYPES:
        return Instances([Item("body", raw=body)], media_type=kind), nobody
    if kind == BINARY_TYPE:
        tensors = _read_binary(params, content_type, body)
        return tensors, target_in("the body", tensors.document or {})
    if kind == NPY_TYPE or body.startswith(NPY_MAGIC):
        return NpyBody(body), nobody
    if body.lstrip()[:1] == b"{" or kind.endswith("json"):
        document = _parse_json(kind, body)
        if document is not None:
            return read_document(document, body), target_in("the body", document)
    if not body:
        raise InvalidRequest(f"the body is empty; send an image, a text, or JSON: {SHAPES}")
    return Instances([Item("body", raw=body)], media_type=kind), nobody


def _parse_json(kind: str, body: bytes) -> dict[str, Any] | None:
    """The object that the body holds, None when it is a text that only looks like one."""
    try:
        document = orjson.loads(body)
    except orjson.JSONDecodeError as err:
        if kind == "text/plain":
            return None
        raise InvalidRequest(f"the body is not valid JSON: {err}") from err
    if not isinstance(document, dict):
        raise InvalidRequest(f"the body must be a JSON object ({SHAPES}), got {describe(document)}")
    if kind == "text/plain" and not {"instances", "inputs", "payload"} & document.keys():
        return None
    return document


def read_document(document: dict[str, Any], body: bytes) -> Body:
    """What a JSON body holds; `document` is that body, parsed. Raises InvalidRequest."""
    if "inputs" in document:
        return TensorBody(body, None, document)
    parameters = document.get("parameters") or {}
    if not isinstance(parameters, dict):
        raise InvalidRequest(f"'parameters' must be an object, got {describe(parameters)}")
    if "instances" in document:
        return Instances(_read_instances(document["instances"]), parameters)
    if "payload" in document:
        return Instances([_read_payload(document["payload"])], parameters, sample_shape=True)
    return FlatBody(document)


def as_flat(body: Body) -> Body:
    """A body whose `inputs` are no KServe tensors is a flat one, of a model with an input of that name."""
    if not isinstance(body, TensorBody) or body.document is None or body.header_length is not None:
        return body
    inputs = body.document.get("inputs")
    if isinstance(inputs, list) and all(isinstance(tensor, dict) for tensor in inputs):
        return body
    return FlatBody(body.document)


def _read_instances(instances: Any) -> list[Item]:
    if not isinstance(instances, list) or not instances:
        raise InvalidRequest(f"'instances' must be a list of at least one instance, got {describe(instances)}")
    return [Item("instances", value=value) for value in instances]


def _read_payload(payload: Any) -> Item:
    if isinstance(payload, dict) and "img" in payload:
        return Item("payload.img", value={"b64": payload["img"]})
    return Item("payload", value=payload)


def _read_binary(params: Mapping[str, str], content_type: str, body: bytes) -> TensorBody:
    length = params.get("json-header-size", "")
    if not (length.isascii() and length.isdigit() and len(length) < 20) or int(length) > len(body):
        raise InvalidRequest(
            f"Content-Type '{content_type}': json-header-size must be a whole number from 0 to the body's "
            f"{len(body)} bytes: the length of the JSON before the binary tensors"
        )
    size = int(length)
    return TensorBody(body, size, _parse_header(body[:size]) if size else None)


def _parse_header(header: bytes) -> dict[str, Any]:
    try:
        document = orjson.loads(header)
    except orjson.JSONDecodeError as err:
        raise InvalidRequest(f"the first json-header-size bytes of the body are not valid JSON: {err}") from err
    if not isinstance(document, dict):
        raise InvalidRequest(f"the JSON header must be an object, got {describe(document)}")
    return document
