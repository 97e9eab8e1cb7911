"""Reads rows of a table in the format of LibSVM and XGBoost: `label index:value index:value …`.

The first column has the index 0, as in XGBoost. The label may be left out.
"""

import io
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from clients.base import ModelClient
from serving.bodies.csv_body import CsvBody
from serving.bodies.decoder import Item
from serving.bodies.instances import check_media_type
from serving.budget import MOST_CELLS, check_count, in_time
from serving.codecs import Limits
from serving.errors import DecodingError
from serving.headers import LIBSVM
from serving.request_memory import CELLS, reserve

TOKEN = re.compile(rb"\S+")
LONGEST_INDEX = 10  # maximum number of digits of an index


@dataclass(frozen=True)
class LibsvmItem(Item):
    """A row in LibSVM's format. Columns that the row leaves out get their values from the client's
    `absent`."""

    def open(self, client: ModelClient, limits: Limits) -> Any:
        row = self.raw or b""
        check_count(row.count(b":"), MOST_CELLS, "cells in one row")
        reserve(CELLS * len(row), "a row of LibSVM")
        cells = list(client.absent)
        tokens = TOKEN.finditer(row.partition(b"#")[0])
        for number, token in enumerate(in_time(tokens)):
            index, colon, cell = token[0].partition(b":")
            if number == 0 and not colon:
                continue  # the first token is the label if it contains no colon
            if not colon:
                raise DecodingError(f"'{index[:40].decode('latin-1')}' is not INDEX:VALUE")
            is_number = index.isdigit() and len(index) <= LONGEST_INDEX
            if not is_number or int(index) >= len(cells):
                raise DecodingError(
                    f"'{index[:40].decode('latin-1')}' is not the index of a column; there are "
                    f"{len(cells)}, and the first one has the index 0"
                )
            cells[int(index)] = cell.decode("latin-1")
        return cells


@dataclass(frozen=True)
class LibsvmBody(CsvBody):
    """A body of rows in LibSVM's format. Empty lines, and lines that contain only a comment, are
    ignored."""

    def items(self, client: ModelClient) -> Iterator[Item]:
        """Yield the rows. Raise UnsupportedMediaType if the client does not accept LibSVM, and
        TooLate if the request has no time left."""
        check_media_type(client, LIBSVM[0])
        for line in in_time(io.BytesIO(self.data)):
            if line.partition(b"#")[0].strip():
                yield LibsvmItem("", raw=line)
