"""JSON objects: which kind of body an object is, by its keys.

Large documents of tensors are read by simdjson, all others by orjson.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

import orjson
import simdjson

from serving.bodies.flat import SHAPES, FlatBody
from serving.bodies.instances import Instances, listed_items
from serving.bodies.kserve import TensorBody
from serving.bodies.values import an_object, check_keys
from serving.budget import check_json, read_json
from serving.codecs import describe
from serving.decoding import Item
from serving.errors import InvalidRequest
from serving.model_status.served_model import ServedModel
from serving.request import RESERVED, Target

Shape = Instances | TensorBody | FlatBody
NOTHING = memoryview(b"")
INPUT_KEYS = {"name", "shape", "datatype", "data"}  # of KServe: an object with none of them is an instance
LONGEST_NUMBER = 10  # digits of a length
MOST_KEYS = 32  # of a document of tensors, and of a tensor: KServe has 4 and 5
LARGE = 16 * 1024  # bytes of JSON, from which making no object of a number saves more than it costs


def read_object(data: bytes, generates: bool = False, stream: str = "") -> Shape:
    """Return the body that a JSON object is. Raise InvalidRequest or PayloadTooLarge."""
    document = _parse_tensors(data) or parse_object(data, "the body", f" ({SHAPES})")
    return read_document(document, len(data), generates, stream)


def read_document(document: Mapping[str, Any], length: int, generates: bool = False, stream: str = "") -> Shape:
    """Return the body that an object of `length` bytes is; `generates` and `stream` are those of a FlatBody. Raise
    InvalidRequest."""
    if _are_tensors(document.get("inputs")):
        return TensorBody(document, NOTHING, length)
    if "instances" in document or "payload" in document:
        return _instances(document)
    return FlatBody(document, generates, stream)


def instances_in(document: Mapping[str, Any], served: ServedModel, generates: bool) -> Instances | None:
    """Return the instances that an object holds for this model, None if it holds none. Raise InvalidRequest."""
    if _are_tensors(document.get("inputs")):
        return None
    if "instances" in document or "payload" in document:
        return _instances(document)
    return FlatBody(document, generates).instances(served)


def _are_tensors(inputs: Any) -> bool:
    """Return whether `inputs` are KServe's. Others are an input of that name, or instances, of a flat body."""
    return isinstance(inputs, list) and all(
        isinstance(each, dict) and not (each and INPUT_KEYS.isdisjoint(each)) for each in inputs
    )


def _instances(document: Mapping[str, Any]) -> Instances:
    """Return the instances of a body with `instances` or `payload`; both at once are an unknown key."""
    shape = "instances" if "instances" in document else "payload"
    known = (shape, "parameters", *RESERVED)
    check_keys(document, known, f"the body with '{shape}' (a model's parameters stand in 'parameters')")
    parameters = an_object(document, "parameters")
    named = Target.within("the body", document)
    if shape == "payload":
        return Instances([_payload(document["payload"])], parameters, sample_shape=True, named=named)
    return Instances(listed_items(document["instances"], shape), parameters, named=named)


def _payload(payload: Any) -> Item:
    if isinstance(payload, dict) and "img" in payload:
        check_keys(payload, ("img",), "'payload'")
        return Item("payload.img", value={"b64": payload["img"]})
    return Item("payload", value=payload)


def parse_object(data: bytes, what: str, shapes: str = "") -> dict[str, Any]:
    """Return the JSON object that these bytes hold. Raise InvalidRequest or PayloadTooLarge."""
    try:
        document = read_json(data)
    except orjson.JSONDecodeError as err:
        raise InvalidRequest(f"{what} is not valid JSON: {err}") from err
    if not isinstance(document, dict):
        raise InvalidRequest(f"{what} must be a JSON object{shapes}, got {describe(document)}")
    return document


def read_binary(header_length: str, place: str, data: bytes, is_kserve: bool = False) -> TensorBody:
    """Return a body of a JSON header and binary data, or of raw input. Raise InvalidRequest."""
    digits = header_length.isascii() and header_length.isdigit() and len(header_length) <= LONGEST_NUMBER
    if not digits or int(header_length) > len(data):
        raise InvalidRequest(
            f"{place} must be a whole number from 0 to the body's {len(data)} bytes, the length of the JSON before the "
            f"binary tensors; got '{header_length[:40]}'"
        )
    size, whole = int(header_length), memoryview(data)
    document = parse_object(data[:size], "the JSON header of the body") if size else None
    return TensorBody(document, whole[size:], len(data), is_kserve)


def _parse_tensors(data: bytes) -> dict[str, Any] | None:
    """Return a large document of KServe tensors, with `data` as simdjson's arrays: their numbers do not become Python
    objects. Return None for anything else: then orjson reads it, or says what is wrong.
    """
    if len(data) < LARGE or b'"datatype"' not in data:
        return None
    check_json(data)
    try:
        document = _members(simdjson.Parser().parse(data))
        inputs = [_members(given) for given in document.pop("inputs")]
    except (AttributeError, KeyError, RuntimeError, TypeError, ValueError):
        return None
    return {key: _plain(value) for key, value in document.items()} | {"inputs": list(map(_tensor, inputs))}


def _members(value: Any) -> dict[str, Any]:
    """Return an object's members. Raise ValueError if they are many or a key is there twice: simdjson searches for each
    key from the start and finds the first."""
    names = list(islice(value, MOST_KEYS + 1))
    if len(set(names)) < len(value):
        raise ValueError(names)
    return {name: value[name] for name in names}


def _tensor(given: dict[str, Any]) -> dict[str, Any]:
    """Return an input as orjson reads it, but with an array of data unchanged."""
    is_array = isinstance(given.get("data"), simdjson.Array)
    return {key: value if key == "data" and is_array else _plain(value) for key, value in given.items()}


def _plain(value: Any) -> Any:
    """Return a value as orjson reads it."""
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value
