"""A request's body, unpacked, and which kind it has: by its Content-Type and its first bytes.

JSON is recognised by looking at it: curl and AWS's notebooks send it with any Content-Type.
"""

import re
import zlib
from collections.abc import Mapping
from contextlib import suppress
from email.message import Message
from functools import lru_cache
from itertools import islice
from typing import Any

import orjson
import simdjson

from serving.bodies.csv_rows import CSV, read_csv
from serving.bodies.flat import SHAPES, FlatBody
from serving.bodies.instances import Instances, listed_items
from serving.bodies.json_lines import LINES_TYPES, JsonLines
from serving.bodies.kserve import BINARY_TYPE, TensorBody
from serving.bodies.npy import NPY_MAGIC, NPY_TYPE, NpyBody
from serving.bodies.values import an_object, check_keys
from serving.budget import MOST_MEMBERS, check_count, check_json, read_json
from serving.codecs import describe
from serving.decoding import Item
from serving.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from serving.request import RESERVED, Body, Target

PACKED = ("gzip", "x-gzip", "deflate")
DETECT = zlib.MAX_WBITS | 32  # gzip's header or zlib's
NOTHING = memoryview(b"")
PIECE = 64 * 1024  # of packed data, in bytes
INPUT_KEYS = {"name", "shape", "datatype", "data"}  # of KServe: an object with none of them is an instance
OBJECT = re.compile(rb"\s*\{")
LONGEST_NUMBER = 10  # digits of a length
MOST_KEYS = 32  # of a document of tensors, and of a tensor: KServe has 4 and 5
LARGE = 16 * 1024  # bytes of JSON, from which making no object of a number saves more than it costs


def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """The body as it was before that Content-Encoding ("" or identity: as it is), at most `limit` bytes.

    Raises UnsupportedMediaType, PayloadTooLarge, or InvalidRequest when it is cut short or no such data.
    """
    name = encoding.strip().lower()
    if name in ("", "identity"):
        return body
    if name not in PACKED:
        raise UnsupportedMediaType(f"Content-Encoding must be gzip, deflate or identity, not '{encoding}'")
    try:
        return _inflated(body, limit)
    except zlib.error as err:
        raise InvalidRequest(f"Content-Encoding is {name}, but the body cannot be unpacked: {err}") from err


def _inflated(body: bytes, limit: int) -> bytes:
    """gzip's data may be several members, one after the other."""
    rest, made, members = memoryview(body), bytearray(), 0
    while rest:
        members += 1
        check_count(members, MOST_MEMBERS, "gzip members", "pack the body in one piece")
        rest = rest[_inflate_member(rest, made, limit) :]
    return bytes(made)


def _inflate_member(packed: memoryview, made: bytearray, limit: int) -> int:
    """Adds what the first member holds; its length. zlib copies what lies behind a member, so it gets pieces."""
    member, end = zlib.decompressobj(DETECT), 0
    while not member.eof:
        piece = packed[end : end + PIECE]
        if not piece:
            raise zlib.error("it ends too early")
        made += member.decompress(piece, limit - len(made) + 1)
        if len(made) > limit:
            raise PayloadTooLarge(f"the body unpacks to more than {limit} bytes; SERVE_MAX_BODY_MB sets the limit")
        end += len(piece) - len(member.unused_data)
    return end


def read_attributes(header: str) -> dict[str, str]:
    """`model_name=resnet;model_version=1` (also `,` between) -> its pairs; what is no pair is not ours."""
    pairs = (part.partition("=") for part in header.replace(",", ";").split(";"))
    return {name.strip(): value.strip() for name, separator, value in pairs if separator and name.strip()}


@lru_cache(maxsize=256)
def media_type(content_type: str) -> tuple[str, Mapping[str, str]]:
    """A Content-Type's type in lower case and its parameters. Callers send few different ones."""
    message = Message()
    message["content-type"] = content_type
    params = dict(message.get_params(failobj=[])[1:])
    return content_type.partition(";")[0].strip().lower(), params


def read_body(content_type: str, data: bytes, generates: bool = False) -> Body:
    """What a body holds; `generates`: a flat JSON object asks for an answer (FlatBody). Raises InvalidRequest."""
    kind, params = media_type(content_type)
    if kind != BINARY_TYPE and BINARY_TYPE in content_type.lower():
        raise InvalidRequest(f"Content-Type must begin with '{BINARY_TYPE}', got '{content_type}'")
    if kind in LINES_TYPES:
        return JsonLines(data, generates)
    if kind == BINARY_TYPE:
        return read_binary(params.get("json-header-size", ""), "json-header-size", data)
    if kind == NPY_TYPE or data.startswith(NPY_MAGIC):
        return NpyBody(data)
    if not data:
        raise InvalidRequest(f"the body is empty; send an image, a text, CSV, or JSON: {SHAPES}")
    if kind.endswith("json") or OBJECT.match(data):
        document = _parse_text(data) if kind in ("text/plain", CSV) else _parse_body(data)
        if document is not None:
            return read_document(document, len(data), generates)
    if kind == CSV:
        return read_csv(data, params.get("header", ""))
    return Instances([Item("body", raw=data)], media_type=kind)


def _parse_body(data: bytes) -> dict[str, Any]:
    return _parse_tensors(data) or parse_object(data, "the body", f" ({SHAPES})")


def _parse_tensors(data: bytes) -> dict[str, Any] | None:
    """A large document of KServe tensors, whose `data` stay simdjson's arrays: numbers become no Python objects.

    None where it is something else, or nothing that simdjson reads: then orjson reads it, or says what is wrong.
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
    """Of an object. simdjson looks for each key from the start and finds the first of two: raises ValueError where they
    are many or stand twice."""
    names = list(islice(value, MOST_KEYS + 1))
    if len(set(names)) < len(value):
        raise ValueError(names)
    return {name: value[name] for name in names}


def _tensor(given: dict[str, Any]) -> dict[str, Any]:
    """An input as orjson would have read it, but for an array of data."""
    is_array = isinstance(given.get("data"), simdjson.Array)
    return {key: value if key == "data" and is_array else _plain(value) for key, value in given.items()}


def _plain(value: Any) -> Any:
    """As orjson would have read it."""
    if isinstance(value, simdjson.Object):
        return value.as_dict()
    return value.as_list() if isinstance(value, simdjson.Array) else value


def _parse_text(data: bytes) -> dict[str, Any] | None:
    """None where a text only looks like an object with one of our shapes."""
    with suppress(InvalidRequest, PayloadTooLarge):
        document = parse_object(data, "the body")
        return document if {"instances", "inputs", "payload"} & document.keys() else None
    return None


def read_document(document: dict[str, Any], length: int, generates: bool = False) -> Body:
    """What a JSON object holds that took `length` bytes. Raises InvalidRequest."""
    if _are_tensors(document.get("inputs")):
        return TensorBody(document, NOTHING, length)
    if "instances" in document or "payload" in document:
        return _instances(document)
    return FlatBody(document, generates)


def read_binary(header_length: str, place: str, data: bytes, is_kserve: bool = False) -> TensorBody:
    """A JSON header and binary data, or raw input; raises InvalidRequest."""
    digits = header_length.isascii() and header_length.isdigit() and len(header_length) <= LONGEST_NUMBER
    if not digits or int(header_length) > len(data):
        raise InvalidRequest(
            f"{place} must be a whole number from 0 to the body's {len(data)} bytes, the length of the JSON before the "
            f"binary tensors; got '{header_length[:40]}'"
        )
    size, whole = int(header_length), memoryview(data)
    document = parse_object(data[:size], "the JSON header of the body") if size else None
    return TensorBody(document, whole[size:], len(data), is_kserve)


def _are_tensors(inputs: Any) -> bool:
    """An `inputs` of another kind is an input of that name, or instances, of a flat body."""
    return isinstance(inputs, list) and all(isinstance(each, dict) and _is_tensor(each) for each in inputs)


def _is_tensor(value: dict[str, Any]) -> bool:
    return not value or not INPUT_KEYS.isdisjoint(value)


def parse_object(data: bytes, what: str, shapes: str = "") -> dict[str, Any]:
    """The JSON object that these bytes hold; raises InvalidRequest, PayloadTooLarge."""
    try:
        document = read_json(data)
    except orjson.JSONDecodeError as err:
        raise InvalidRequest(f"{what} is not valid JSON: {err}") from err
    if not isinstance(document, dict):
        raise InvalidRequest(f"{what} must be a JSON object{shapes}, got {describe(document)}")
    return document


def _instances(document: Mapping[str, Any]) -> Instances:
    """One of the two: a body with both has a key too many."""
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
