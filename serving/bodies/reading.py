"""Unpacks a request's body and finds its kind by its Content-Type and its first bytes.

JSON is recognised by its first byte, because curl and AWS's notebooks send it with any Content-Type.
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

from serving.bodies.flat import SHAPES, FlatBody
from serving.bodies.instances import Instances, listed_items
from serving.bodies.kserve import BINARY_TYPE, TensorBody
from serving.bodies.lines import CSV, LINES_TYPES, TEXT, URL_ENCODED, JsonLines, TextOrForm, read_csv
from serving.bodies.npy import NPY_MAGIC, NPY_TYPE, NpyBody
from serving.bodies.values import an_object, check_keys
from serving.budget import MOST_MEMBERS, check_count, check_json, read_json
from serving.codecs import describe
from serving.decoding import Item
from serving.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from serving.request import RESERVED, Body, Target

PACKED = ("gzip", "x-gzip", "deflate")
DETECT = zlib.MAX_WBITS | 32  # accepts the header of gzip or zlib
IMAGES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"RIFF": "webp", b"GIF8": "gif"}  # by their first bytes
NOTHING = memoryview(b"")
PIECE = 64 * 1024  # bytes of packed data
INPUT_KEYS = {"name", "shape", "datatype", "data"}  # of KServe: an object with none of them is an instance
OBJECT = re.compile(rb"\s*\{")
LONGEST_NUMBER = 10  # digits of a length
MOST_KEYS = 32  # of a document of tensors, and of a tensor: KServe has 4 and 5
LARGE = 16 * 1024  # bytes of JSON, from which making no object of a number saves more than it costs


def unpacked(body: bytes, encoding: str, limit: int) -> bytes:
    """Return the body without its Content-Encoding ("" or identity: unchanged), at most `limit` bytes.

    Raise UnsupportedMediaType, PayloadTooLarge, or InvalidRequest if the data are cut short or not of that encoding.
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
    """Return what all gzip members of the body hold."""
    rest, made, members = memoryview(body), bytearray(), 0
    while rest:
        members += 1
        check_count(members, MOST_MEMBERS, "gzip members", "pack the body in one piece")
        rest = rest[_inflate_member(rest, made, limit) :]
    return bytes(made)


def _inflate_member(packed: memoryview, made: bytearray, limit: int) -> int:
    """Append the content of the first member to `made`, and return the member's packed length. zlib copies the data
    behind a member, so it gets the data in pieces."""
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
    """Return the pairs of `model_name=resnet;model_version=1` (or `,`). Anything else is the caller's own."""
    pairs = (part.partition("=") for part in header.replace(",", ";").split(";"))
    return {name.strip(): value.strip() for name, separator, value in pairs if separator and name.strip()}


@lru_cache(maxsize=256)
def media_type(content_type: str) -> tuple[str, Mapping[str, str]]:
    """Return a Content-Type's type in lower case, and its parameters. Callers send few different ones."""
    message = Message()
    message["content-type"] = content_type
    params = dict(message.get_params(failobj=[])[1:])
    return content_type.partition(";")[0].strip().lower(), params


def read_body(content_type: str, data: bytes, generates: bool = False) -> Body:
    """Return the body. `generates` says that a flat JSON object asks for an answer (FlatBody). Raise InvalidRequest."""
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
    if kind.endswith("json") and (
        found := next((name for magic, name in IMAGES.items() if data.startswith(magic)), "")
    ):
        raise InvalidRequest(f"the body is a {found.upper()}, not JSON; send Content-Type: image/{found}")
    if kind.endswith("json") or OBJECT.match(data):
        if kind in (TEXT, CSV):
            document = _parse_text(data)
        else:
            document = _parse_tensors(data) or parse_object(data, "the body", f" ({SHAPES})")
        if document is not None:
            return read_document(document, len(data), generates)
    if kind == CSV:
        return read_csv(data, params.get("header", ""))
    body = TextOrForm if kind in (TEXT, URL_ENCODED) else Instances
    return body([Item("body", raw=data)], media_type=kind)


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


def _parse_text(data: bytes) -> dict[str, Any] | None:
    """Return the object that a text holds, None if it only looks like one of ours."""
    with suppress(InvalidRequest, PayloadTooLarge):
        document = parse_object(data, "the body")
        return document if {"instances", "inputs", "payload"} & document.keys() else None
    return None


def read_document(document: dict[str, Any], length: int, generates: bool = False) -> Body:
    """Return the body that a JSON object of `length` bytes is. Raise InvalidRequest."""
    if _are_tensors(document.get("inputs")):
        return TensorBody(document, NOTHING, length)
    if "instances" in document or "payload" in document:
        return _instances(document)
    return FlatBody(document, generates)


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


def _are_tensors(inputs: Any) -> bool:
    """Return whether `inputs` are KServe's. Others are an input of that name, or instances, of a flat body."""
    return isinstance(inputs, list) and all(
        isinstance(each, dict) and not (each and INPUT_KEYS.isdisjoint(each)) for each in inputs
    )


def parse_object(data: bytes, what: str, shapes: str = "") -> dict[str, Any]:
    """Return the JSON object that these bytes hold. Raise InvalidRequest or PayloadTooLarge."""
    try:
        document = read_json(data)
    except orjson.JSONDecodeError as err:
        raise InvalidRequest(f"{what} is not valid JSON: {err}") from err
    if not isinstance(document, dict):
        raise InvalidRequest(f"{what} must be a JSON object{shapes}, got {describe(document)}")
    return document


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
