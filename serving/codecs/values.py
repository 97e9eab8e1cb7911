"""What is no image: a text, a row of a table, any JSON value."""

import csv
from io import StringIO
from typing import Any

import orjson

from serving.budget import MOST_CELLS, check_count, read_json
from serving.codecs.base import Codec, Limits, describe
from serving.errors import DecodingError


class TextCodec(Codec):
    """UTF-8 text -> str."""

    name = "text"
    expected = 'a string, or {"text": "…"}'
    keys = ("text",)
    media_types = ("text/plain",)

    def open(self, data: bytes, limits: Limits) -> str:
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as err:
            raise DecodingError(f"the text is not UTF-8 (byte {err.start})") from err

    def open_json(self, value: Any, limits: Limits) -> str:
        text = value.get("text") if isinstance(value, dict) else value
        if not isinstance(text, str):
            raise DecodingError(f"expected {self.expected}, got {describe(value)}")
        return text


class JsonCodec(Codec):
    """Any JSON value, as it is."""

    name = "json"
    expected = "any JSON value"
    media_types = ("application/json",)

    def open(self, data: bytes, limits: Limits) -> Any:
        try:
            return read_json(data)
        except orjson.JSONDecodeError as err:
            raise DecodingError(f"not JSON: {err}") from err

    def open_json(self, value: Any, limits: Limits) -> Any:
        return value


class RowCodec(Codec):
    """A row of a table -> its cells in order, a list, or by their columns, an object."""

    name = "row"
    expected = "a list of cells, or an object {column: cell}"
    media_types = ("text/csv", "application/json")

    def open(self, data: bytes, limits: Limits) -> Any:
        """JSON, or one line of CSV."""
        if data.lstrip()[:1] not in (b"[", b"{"):
            return read_cells(data)
        try:
            return self.open_json(read_json(data), limits)
        except orjson.JSONDecodeError as err:
            raise DecodingError(f"not JSON: {err}") from err

    def open_json(self, value: Any, limits: Limits) -> Any:
        if not isinstance(value, list | dict):
            raise DecodingError(f"expected {self.expected}, got {describe(value)}")
        return value


def read_cells(row: bytes) -> list[str]:
    """The cells of one row of CSV (RFC 4180, UTF-8). Raises DecodingError, PayloadTooLarge."""
    check_count(row.count(b","), MOST_CELLS, "cells in one row")
    try:
        rows = csv.reader(StringIO(row.decode("utf-8-sig"), newline=""), strict=True)
        cells = next(rows, [])
        if next(rows, None) is not None:
            raise DecodingError("expected one row of CSV: send several with Content-Type: text/csv")
    except (UnicodeDecodeError, csv.Error) as err:
        raise DecodingError(f"the row is no CSV in UTF-8: {err}") from err
    return cells
