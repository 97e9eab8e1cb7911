"""Determines the kind of a body from its Content-Type and its first bytes.

A JSON object is recognized by its opening brace, because curl and AWS's notebooks send it with any
Content-Type. A body that was declared as text or CSV counts as a JSON object only if it has one of
WHOLE_BODY_KEYS.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from functools import lru_cache
from typing import Any

from werkzeug.http import parse_options_header

from serving.bodies.bare import BareBody
from serving.bodies.csv_body import CsvBody, read_csv
from serving.bodies.decoder import Item
from serving.bodies.documents import (
    SHAPES,
    WHOLE_BODY_KEYS,
    Shape,
    read_binary,
    read_object,
    read_shape,
)
from serving.bodies.forms import TEXT, URL_ENCODED, TextOrForm, named_in_form, read_form
from serving.bodies.instances import Instances
from serving.bodies.kserve import BINARY_TYPE
from serving.bodies.libsvm import LibsvmBody
from serving.bodies.lines import LINES_TYPES, JsonLines
from serving.bodies.npy import NPY_MAGIC, NpyBody
from serving.bodies.other_apis import ApiBody
from serving.bodies.schemas import BOM, JsonObject, read
from serving.codecs import FORM
from serving.errors import InvalidRequest, PayloadTooLarge
from serving.headers import CSV, LIBSVM, NPY_TYPE

# maps the first bytes of image files to their formats
IMAGES = {b"\x89PNG": "png", b"\xff\xd8\xff": "jpeg", b"RIFF": "webp", b"GIF8": "gif"}
BEGINS_OBJECT = re.compile(rb"(?:%b)?\s*\{" % BOM)
ListOrString: Any = list[Any] | str
BEGINS_LIST_OR_STRING = re.compile(rb"(?:%b)?\s*[\[\"]" % BOM)
Body = Shape | ApiBody | BareBody | CsvBody | JsonLines | TextOrForm


def read_attributes(header: str) -> dict[str, str]:
    """Parse key-value pairs such as `model_name=resnet;classes=0,1`. As in SageMaker's examples, a
    comma is a separator too if another pair follows it. Text that is not a pair is ignored."""
    pairs = (part.partition("=") for part in re.split(r";|,(?=[^=;,]*=)", header))
    return {
        name.strip(): value.strip()
        for name, separator, value in pairs
        if separator and name.strip()
    }


@lru_cache(maxsize=256)
def media_type(content_type: str) -> tuple[str, Mapping[str, str]]:
    """Return the media type of a Content-Type header in lower case, and its parameters. Results are
    cached, because callers send only a few different values."""
    kind, params = parse_options_header(content_type)
    return kind.lower(), params


def read_body(content_type: str, data: bytes, generates: bool = False, stream: str = "") -> Body:
    """Determine the kind of a body, and return it as an object of that kind. Some kinds are parsed
    later, by their method `bind`. FlatBody explains `generates` and `stream`. Raise a ServingError
    if the body is found to be invalid or takes too much memory."""
    kind, params = media_type(content_type)
    if kind != BINARY_TYPE and BINARY_TYPE in content_type.lower():
        raise InvalidRequest(f"Content-Type must begin with '{BINARY_TYPE}', got '{content_type}'")
    if kind in LINES_TYPES:
        return JsonLines(data, generates)
    if kind == BINARY_TYPE:
        return read_binary(params.get("json-header-size", ""), "json-header-size", data)
    if kind == NPY_TYPE or data.startswith(NPY_MAGIC):
        return NpyBody.of(data)
    if kind == FORM:
        return read_form(data, params.get("boundary", ""))
    if not data:
        raise InvalidRequest(
            "the body is empty (does the file after curl's @ exist?); send an image, a text, CSV, "
            f"or JSON: {SHAPES}"
        )
    if kind.endswith("json"):
        return _read_json(data, generates, stream)
    if BEGINS_OBJECT.match(data) and kind not in (TEXT, CSV):
        return read_object(data, generates, stream)
    # A text or CSV may begin with { too. It counts as JSON only if it has one of WHOLE_BODY_KEYS.
    if document := _object_in_text(data):
        return read_shape(document, len(data), generates, stream)
    if kind in LIBSVM:
        return LibsvmBody(data)
    if kind == CSV:
        return read_csv(data, params.get("header", ""))
    items = [Item("body", raw=data)]
    if kind == URL_ENCODED:
        return TextOrForm(items, kind, named=named_in_form(data))
    if kind == TEXT:
        return TextOrForm(items, kind)
    return Instances(items, media_type=kind)


def _read_json(data: bytes, generates: bool, stream: str) -> Body:
    """Parse a body that was declared as JSON. Raise a ServingError if it is invalid or takes too
    much memory."""
    for magic, image in IMAGES.items():
        if data.startswith(magic):
            raise InvalidRequest(
                f"the body is a {image.upper()}, not JSON; send Content-Type: image/{image}"
            )
    if BEGINS_LIST_OR_STRING.match(data):
        return BareBody(read(ListOrString, data), len(data))
    return read_object(data, generates, stream)


def _object_in_text(data: bytes) -> JsonObject | None:
    """Return the JSON object in a body that was declared as text or CSV. Return None if the body is
    not a JSON object, is too large to parse, or has none of WHOLE_BODY_KEYS. Raise Overloaded if
    other requests hold the memory to parse it."""
    if not BEGINS_OBJECT.match(data):
        return None
    with suppress(InvalidRequest, PayloadTooLarge):
        document = read(JsonObject, data)
        if not WHOLE_BODY_KEYS.isdisjoint(document):
            return document
    return None
