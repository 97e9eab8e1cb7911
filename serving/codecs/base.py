"""Defines the base class of all codecs, and the codecs for texts, table rows, and JSON values."""

import csv
from abc import ABC, abstractmethod
from base64 import b64decode
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from itertools import islice
from typing import Any, ClassVar

from serving.budget import MOST_CELLS, check_count, read_json
from serving.errors import DecodingError
from serving.headers import LIBSVM
from serving.request_memory import BASE64, CELLS, reserve, text_memory

FORM = "multipart/form-data"
# converts base64's URL-safe alphabet to the standard one, and removes white space
_TO_STANDARD = str.maketrans("-_", "+/", " \t\r\n\v\f")
csv.field_size_limit(2**31 - 1)  # cells are limited only by the size of the body


@dataclass(frozen=True)
class Limits:
    """Limits for decoding an image. A JPEG may be decoded at a reduced size as long as each side
    keeps at least `side` pixels. If `side` is 0, JPEGs are decoded at full size."""

    max_image_pixels: int = 89_000_000  # slightly above this, Pillow warns of a decompression bomb
    side: int = 0


class Codec(ABC):
    """Decodes one kind of instance. The methods raise DecodingError if an instance is invalid,
    PayloadTooLarge or Overloaded if it takes too much memory, and TooLate if the request has no
    time left.

    An instance is first opened, which shows how large it is, and then loaded. For an image, opening
    is quick, and loading takes time and memory. Other instances are decoded when they are opened.

    `name` is the kind of instance; Decoder limits each kind separately. `media_types` are the ones
    that a body of raw bytes may have. `expected` says in error messages what JSON to send. `keys`
    are all the fields of an object that are read (None if any fields are allowed). If an instance
    in JSON must be an object, `part` is the field that contains its data.
    """

    name: str
    expected: str
    part: str = ""
    keys: tuple[str, ...] | None = None
    media_types: tuple[str, ...] = ()
    # the JSON Schema of an instance that is sent as JSON; {} allows any value
    schema: ClassVar[Mapping[str, Any]] = {}

    def from_bytes(self, data: bytes, limits: Limits) -> Any:
        """Decode raw bytes to an instance."""
        return self.load(self.open(data, limits))

    @abstractmethod
    def open(self, data: bytes, limits: Limits) -> Any:
        """Open raw bytes, which are a body or a file in a form. Return the object that `load`
        decodes."""

    @abstractmethod
    def open_json(self, value: Any, limits: Limits) -> Any:
        """Open a value in a JSON body. Return the object that `load` decodes."""

    def load(self, opened: Any) -> Any:
        """Decode an opened instance."""
        return opened

    def memory(self, opened: Any) -> int:
        """Return how many bytes of memory an opened image takes at most while it is loaded. Return
        0 for other instances."""
        return 0

    def length(self, opened: Any) -> int:
        """Return the number of characters in a text. Return 0 for other instances."""
        return 0


def decode_base64(encoded: str) -> bytes:
    """Decode any base64: URL-safe, without padding, with line breaks, or after a `data:…;base64,`
    prefix. Raise DecodingError if it is invalid, and PayloadTooLarge or Overloaded if it takes too
    much memory. The memory for the result stays reserved."""
    reserved = reserve(BASE64 * len(encoded), "base64")
    if encoded.startswith("data:") and "," in encoded[:256]:
        encoded = encoded.split(",", 1)[1]
    compact = encoded.translate(_TO_STANDARD).rstrip("=")
    padding = "=" * (-len(compact) % 4)
    try:
        data = b64decode(compact + padding, validate=True)
    except ValueError as err:
        raise DecodingError(f"not base64 ({err})") from err
    reserved.shrink(len(data))
    return data


def describe(value: Any) -> str:
    """Return a short description of a value for an error message, such as its type, its keys or its
    beginning."""
    if isinstance(value, dict):
        return f"an object with the keys {sorted(map(str, islice(value, 8)))}"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, str):
        more = "…" if len(value) > 40 else ""
        return f"the string {value[:40]!r}{more}"
    return "null" if value is None else f"{type(value).__name__} {value!r}"


class TextCodec(Codec):
    """Decodes UTF-8 text."""

    name = "text"
    expected = 'a string, or {"text": "…"}'
    keys: tuple[str, ...] = ("text",)
    media_types = ("text/plain",)
    # an object may have keys besides "text"; the client for the task checks them
    schema: ClassVar[Mapping[str, Any]] = {"anyOf": [{"type": "string"}, {"type": "object"}]}

    def open(self, data: bytes, limits: Limits) -> str:
        reserve(text_memory(data), "the text")
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as err:
            raise DecodingError(f"the text is not UTF-8 (byte {err.start})") from err

    def open_json(self, value: Any, limits: Limits) -> str:
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise DecodingError(f"expected {self.expected}, got {describe(value)}")
        return text

    def length(self, opened: Any) -> int:
        return len(opened)


class JsonCodec(Codec):
    """Passes on any JSON value unchanged."""

    name = "json"
    expected = "any JSON value"
    media_types: tuple[str, ...] = ("application/json",)

    def open(self, data: bytes, limits: Limits) -> Any:
        try:
            return read_json(data)
        except ValueError as err:
            raise DecodingError(f"not JSON: {err}") from err

    def open_json(self, value: Any, limits: Limits) -> Any:
        return value


class RowCodec(JsonCodec):
    """Reads a table row: either a list of cells in order, or an object that maps columns to
    cells."""

    name = "row"
    expected = "a list of cells, or an object {column: cell}"
    media_types = ("text/csv", "application/json", *LIBSVM)
    schema: ClassVar[Mapping[str, Any]] = {
        "anyOf": [{"type": "array", "items": {}}, {"type": "object"}]
    }

    def open(self, data: bytes, limits: Limits) -> Any:
        """Open a row that is JSON or CSV."""
        is_json = data.lstrip()[:1] in (b"[", b"{")
        if not is_json:
            return read_cells(data)
        value = super().open(data, limits)
        return self.open_json(value, limits)

    def open_json(self, value: Any, limits: Limits) -> Any:
        if not isinstance(value, list | dict):
            raise DecodingError(f"expected {self.expected}, got {describe(value)}")
        return value


def read_cells(row: bytes) -> list[str]:
    """Parse one row of CSV (RFC 4180, UTF-8) into its cells. Raise DecodingError if it is not one
    valid row, and PayloadTooLarge or Overloaded if it takes too much memory."""
    check_count(row.count(b","), MOST_CELLS, "cells in one row")
    reserve(CELLS * len(row), "a row of CSV")
    try:
        rows = csv.reader(StringIO(row.decode("utf-8-sig"), newline=""), strict=True)
        cells = next(rows, [])
        if next(rows, None) is not None:
            raise DecodingError("expected one row of CSV: send several with Content-Type: text/csv")
    except (UnicodeDecodeError, csv.Error) as err:
        raise DecodingError(f"the row is not CSV in UTF-8: {err}") from err
    return cells
