"""Reads CSV, whose rows are instances for a model that accepts rows.

Rows are kept as bytes until they are processed, because Python objects for their cells take several
times as much memory.
"""

import io
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from clients.base import ModelClient
from serving.bodies.decoder import Item
from serving.bodies.instances import Instances, InstancesJob, check_media_type
from serving.bodies.lines import LinesJob, Record
from serving.bodies.schemas import BOM
from serving.budget import MOST_INSTANCES, check_count, in_time
from serving.codecs import Limits, read_cells
from serving.errors import DecodingError, InvalidRequest
from serving.headers import CSV, JSON_LINES, preferred
from serving.job import Job
from serving.model_status.served_model import ServedModel
from serving.request import UNNAMED, Request, Target
from serving.request_memory import ITEM, reserve

# maps the values of the media type's parameter `header` (RFC 4180) to whether there is a header row
HEADER = {"present": True, "absent": False}


@dataclass(frozen=True)
class CsvItem(Item):
    """A row of CSV. It becomes an object whose keys are `columns`, or a list of its cells if
    `columns` is empty, because there is no header or its names do not matter."""

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
    """A table in CSV. `header` says whether the first row is a header. If `header` is None, the
    model's client decides (ModelClient.header). If `can_be_lines` is true and the caller prefers
    JSON lines, each row is answered with a line, as batch transform expects."""

    data: bytes
    header: bool | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    can_be_lines: bool = True
    named: ClassVar[Target] = UNNAMED

    def bind(self, served: ServedModel, request: Request) -> Job:
        rows = self.items(served.require_client())
        if self.can_be_lines and preferred(request.accept, CSV, JSON_LINES) == JSON_LINES:
            records = (Record(Instances([item]), is_bare=True) for item in rows)
            return LinesJob(served, request, records)
        items: list[Item] = []
        for item in rows:
            items.append(item)
            check_count(len(items), MOST_INSTANCES, "rows", "send fewer at a time")
        if not items:
            raise InvalidRequest("the body has no row (a header alone is none)")
        reserve(ITEM * len(items), "the rows")
        return InstancesJob(served, request, Instances(items, self.parameters))

    def items(self, client: ModelClient) -> Iterator[Item]:
        """Yield the rows, without the header. When the first row is requested, raise InvalidRequest
        if the body is empty, UnsupportedMediaType if the client does not accept CSV, and what
        `_columns` raises. Raise TooLate if the request has no time left."""
        check_media_type(client, CSV)
        rows = _rows(in_time(io.BytesIO(self.data.removeprefix(BOM))))
        first = next(rows, None)
        second = next(rows, None)
        if first is None:
            raise InvalidRequest("the body has no row; send CSV, a line for each row")
        columns = self._columns(client, first)
        is_only_row = second is None
        if self.header is None and is_only_row and first.lstrip()[:1] == b"0":
            columns = None  # a single row such as 0,1,2 has cells, not pandas' column numbers
        if columns is None:
            yield CsvItem("", raw=first)
        if second is not None:
            rows = chain((second,), rows)
        for row in rows:
            yield CsvItem("", raw=row, columns=columns or ())

    def _columns(self, client: ModelClient, first: bytes) -> Sequence[str] | None:
        """Return the columns that the first row names. Return None if that row is not a header, and
        () if it is a header whose names do not matter. Raise InvalidRequest if the names are wrong,
        and DecodingError if the row is declared as a header but is not CSV."""
        if self.header is False:
            return None
        try:
            columns = client.header(read_cells(first))
        except DecodingError as err:
            if self.header:
                raise err.at(0) from err
            return None  # the row is wrong, and gets an error like any other row
        if columns is None and self.header:
            if client.columns:
                raise InvalidRequest(
                    f"the header names none of the columns, which are: {', '.join(client.columns)}"
                )
            return ()
        if columns and len(set(columns)) < len(columns):
            raise InvalidRequest("the header names a column twice")
        return columns


def read_csv(data: bytes, header: str) -> CsvBody:
    """Return `data` as a CsvBody. `header` is the value of the media type's parameter `header`
    ("present" or "absent"), or "" if that is missing. Raise InvalidRequest for any other value."""
    if header and header not in HEADER:
        raise InvalidRequest(f"text/csv; header={header[:40]}: it is present or absent")
    return CsvBody(data, HEADER.get(header))


# Patterns for a complete row. As in the csv module, a cell is quoted if it begins with a quote. The
# next quote that is not doubled ends the quoting. Elsewhere, a quote is an ordinary character.
QUOTED = rb'(?:[^"]++|"")*+"[^,]*+'  # the rest of a cell after its opening quote
FURTHER = rb'(?:,(?:"(?:[^"]++|"")*+"|(?!"))[^,]*+)*+'  # the cells after the first one
WHOLE_ROW = re.compile(rb'(?:"%b|(?!")[^,]*+)%b' % (QUOTED, FURTHER))
REST_OF_ROW = re.compile(QUOTED + FURTHER)  # a row's last line, which begins in a quoted cell


def _rows(lines: Iterable[bytes]) -> Iterator[bytes]:
    """Join lines into rows, and yield the rows. A row has several lines if a quoted cell contains
    line breaks. Skip empty rows. If the last row's quote is not closed, yield the row as it is:
    `read_cells` refuses it."""
    row = bytearray()
    for line in lines:
        pattern = REST_OF_ROW if row else WHOLE_ROW
        is_complete = pattern.fullmatch(line)
        row += line
        if is_complete:
            if not row.isspace():
                yield bytes(row)
            row.clear()
    if row:
        yield bytes(row)
