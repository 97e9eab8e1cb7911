"""CSV, whose rows are instances of a model that takes rows.

Rows are kept as bytes until it is their turn, because their cells take several times the memory.
"""

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

import orjson

from clients.base import ModelClient
from serving.bodies.instances import InstancesJob, Predictions, check_media_type
from serving.budget import MOST_INSTANCES, Deadline, check_count, in_time
from serving.codecs import Limits, read_cells
from serving.decoding import Item
from serving.errors import DecodingError, InvalidRequest
from serving.headers import preferred
from serving.model_status.served_model import ServedModel
from serving.request import UNNAMED, Job, Reply, Request, Target

CSV = "text/csv"
HEADER = {"present": True, "absent": False}  # RFC 4180's parameter of the media type
BOM = b"\xef\xbb\xbf"


@dataclass(frozen=True)
class CsvItem(Item):
    """One row. If the body has a header, its cells become an object whose keys are `columns`."""

    columns: Sequence[str] = ()

    def open(self, client: ModelClient, limits: Limits) -> Any:
        cells = read_cells(self.raw or b"")
        if not self.columns:
            return cells
        if len(cells) != len(self.columns):
            raise DecodingError(f"it has {len(cells)} cells, and the header {len(self.columns)}")
        return dict(zip(self.columns, cells, strict=True))


@dataclass(frozen=True)
class CsvBody:
    """A table. `header` says whether the first row is a header, None if the model's columns decide."""

    data: bytes
    header: bool | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    named: ClassVar[Target] = UNNAMED

    def bind(self, served: ServedModel, request: Request) -> Job:
        items: list[Item] = []
        for item in self.items(served.require_client(), request.deadline):
            items.append(item)
            check_count(len(items), MOST_INSTANCES, "rows", "send fewer at a time")
        if not items:
            raise InvalidRequest("the body has a header and no row")
        return TableJob(served, request, items, self.parameters)

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


class TableJob(InstancesJob):
    """Predictions of rows, as CSV if Accept asks for it."""

    def reply(self, results: Iterator[Predictions]) -> Reply:
        if preferred(self.request.accept, CSV) != CSV:
            return super().reply(results)
        written, version = bytearray(), ""
        for result in results:
            written += as_csv(result.predictions)
            self.request.budget.check_output(len(written))
            version = result.version
        return Reply(bytes(written), f"{CSV}; charset=utf-8", version)


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
