"""Bodies of lines: CSV, whose rows are instances of a model that takes rows, and JSON lines.

Rows are kept as bytes until it is their turn, because their cells take several times the memory. Of JSON lines each is
a request of its own, or an instance; a wrong one gives {"error", "code"} in its place, and the others are answered
(serving/inference/batch_transform.py).
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any
from urllib.parse import parse_qsl

import orjson

from clients.base import ModelClient
from serving.bodies.instances import Instances, check_media_type
from serving.budget import MOST_INSTANCES, Deadline, check_count, in_time
from serving.codecs import ROW, Limits, read_cells
from serving.decoding import Decoder, Item
from serving.errors import DecodingError, InvalidRequest
from serving.headers import JSON_TYPE, preferred
from serving.request import Batch, Body, Reply, Request, ServedModel
from serving.sessions import Session

CSV, TEXT = "text/csv", "text/plain"
URL_ENCODED = "application/x-www-form-urlencoded"  # a form, or what curl says of any body
HEADER = {"present": True, "absent": False}  # RFC 4180's parameter of the media type
MOST_FIELDS = 32  # of a URL-encoded form
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class CsvItem(Item):
    """One row. If the body has a header, its cells become an object whose keys are `columns`."""

    columns: Sequence[str] = ()

    def open(self, client: ModelClient, limits: Limits, index: int) -> Any:
        with self._placed(index):
            cells = read_cells(self.raw or b"")
            if not self.columns:
                return cells
            if len(cells) != len(self.columns):
                raise DecodingError(f"it has {len(cells)} cells, and the header {len(self.columns)}")
            return dict(zip(self.columns, cells, strict=True))


@dataclass(frozen=True)
class CsvBody(Body):
    """A table. `header` says whether the first row is a header, None if the model's columns decide."""

    data: bytes
    header: bool | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def by_line(self, accept: str) -> bool:
        """Return whether Accept asks for JSON lines, as batch transform does. Other replies are in one piece."""
        return preferred(accept, CSV, JSON_LINES) == JSON_LINES

    def items(self, client: ModelClient, deadline: Deadline) -> Iterator[CsvItem]:
        """Yield the rows. Raise InvalidRequest, DecodingError, TooLate and others."""
        check_media_type(client, CSV)
        rows = in_time(_rows(self.data.removeprefix(BOM)), deadline)
        first, second = next(rows, None), next(rows, None)
        if first is None:
            raise InvalidRequest("the body has no row; send CSV, a line for each row")
        columns = self._columns(client, first)
        if self.header is None and second is None and first.lstrip()[:1] == b"0":
            columns = None  # a body of the row 0,1,2 alone has no header
        if columns is None:
            yield CsvItem("", raw=first)
        for row in chain(() if second is None else (second,), rows):
            yield CsvItem("", raw=row, columns=columns or ())

    def _columns(self, client: ModelClient, first: bytes) -> Sequence[str] | None:
        """Return the columns that the first row names, None if it is not a header, () if its names do not matter."""
        if self.header is False:
            return None
        try:
            columns = client.header(read_cells(first))
        except DecodingError as err:
            raise err.at(0) from err
        if columns is None and self.header:
            if client.columns:
                raise InvalidRequest(f"the header names none of the columns, which are: {', '.join(client.columns)}")
            return ()
        if columns and len(set(columns)) < len(columns):
            raise InvalidRequest("the header names a column twice")
        return columns

    def batches(
        self, served: ServedModel, request: Request, session: Session | None, decoder: Decoder
    ) -> Iterator[Batch]:
        items: list[Item] = []
        for item in self.items(served.require_client(), request.deadline):
            items.append(item)
            check_count(len(items), MOST_INSTANCES, "rows", "send fewer at a time")
        if not items:
            raise InvalidRequest("the body has a header and no row")
        yield from Instances(items, self.parameters).batches(served, request, session, decoder)

    def reply(self, served: ServedModel, request: Request, results: Iterator[Any]) -> Reply:
        if preferred(request.accept, CSV) != CSV:
            return Instances([]).reply(served, request, results)
        written, version = bytearray(), ""
        for result in results:
            written += as_csv(result.predictions)
            request.budget.check_output(len(written))
            version = result.version
        return Reply(bytes(written), f"{CSV}; charset=utf-8", version)

    def line(self, served: ServedModel, request: Request, result: Any) -> bytes:
        return Instances([]).line(served, request, result)


@dataclass(frozen=True)
class TextOrForm(Instances):
    """A text or a form; which one, and of what, the model decides:

    - a table: CSV, unless it is JSON; a form has it as its only file
    - texts: a text, or each file of a form
    - any model: a form whose fields are the keys of an instance, such as `text`; the other fields are parameters
    """

    def meant_for(self, served: ServedModel) -> Body:
        client = served.client
        if client is None:
            return self
        if instance := self._instance(client):
            rest = {key: value for key, value in self.parameters.items() if key not in instance}
            return Instances([Item("form", value=instance)], rest, named=self.named)
        if not self.items:
            fields = f", or the fields {', '.join(keys)}" if (keys := _keys(client)) else ""
            raise InvalidRequest(f"the form has no file; send one or more (curl -F image=@picture.jpg){fields}")
        if self.media_type == URL_ENCODED:
            return self
        if client.codec is ROW:
            return self._rows()
        return replace(self, media_type=TEXT) if TEXT in client.codec.media_types else self

    def _instance(self, client: ModelClient) -> dict[str, Any]:
        """Return the instance that the fields of a form without files make; empty if they make none."""
        keys, fields = _keys(client), self.parameters
        if self.media_type == URL_ENCODED:
            raw = self.items[0].raw or b""
            is_form = raw.startswith(tuple(f"{key}=".encode() for key in keys)) and raw.count(b"&") < MOST_FIELDS
            fields = dict(parse_qsl(raw.decode(errors="replace"))) if is_form else {}
        elif self.items:
            return {}
        return {key: value for key, value in fields.items() if key in keys}

    def _rows(self) -> Body:
        if len(self.items) > 1:
            raise InvalidRequest(f"the form has {len(self.items)} files; send one of CSV, a line for each row")
        raw = self.items[0].raw or b""
        if raw.lstrip()[:1] in (b"[", b"{"):
            return replace(self, media_type=JSON_TYPE)
        return CsvBody(raw, parameters=self.parameters)


def _keys(client: ModelClient) -> Sequence[str]:
    """Return the keys of an instance that is an object; none if any key is taken, as a table's columns are."""
    return client.keys or client.codec.keys or ()


def read_csv(data: bytes, header: str) -> CsvBody:
    """Return the body. `header` is the media type's parameter, "" without one. Raise InvalidRequest."""
    if header and header not in HEADER:
        raise InvalidRequest(f"text/csv; header={header[:40]}: it is present or absent")
    return CsvBody(data, HEADER.get(header))


def _rows(data: bytes) -> Iterator[bytes]:
    """Yield the rows, of several lines if a quoted cell has line ends. Empty lines are skipped."""
    row, quoted = bytearray(), False
    for line in io.BytesIO(data):
        row += line
        quoted ^= line.count(b'"') % 2 == 1
        if not quoted:
            if not row.isspace():
                yield bytes(row)
            row.clear()
    if row:
        yield bytes(row)


def as_csv(predictions: Sequence[Any]) -> bytes:
    """Return a line for each prediction: its values in order, those of lists and objects side by side."""
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(list(_cells(each)) for each in predictions)
    return text.getvalue().encode()


def _cells(value: Any) -> Iterator[Any]:
    if isinstance(value, dict | list):
        for each in value.values() if isinstance(value, dict) else value:
            yield from _cells(each)
    else:
        yield value if isinstance(value, str) else orjson.dumps(value).decode()


JSON_LINES = "application/jsonlines"
LINES_TYPES = (JSON_LINES, "application/x-jsonlines", "application/x-ndjson")


@dataclass(frozen=True)
class JsonLines(Body):
    """Lines of JSON; `generates` is that of a FlatBody."""

    data: bytes
    generates: bool = False

    def by_line(self, accept: str) -> bool:
        return True

    def lines(self, deadline: Deadline) -> Iterator[bytes]:
        """Yield the lines that are not empty, so that a large body is not held twice. Raise TooLate."""
        return (line for line in in_time(io.BytesIO(self.data), deadline) if not line.isspace())
