"""What all processes share about the models: the table, a JSON file that the model manager replaces
and each worker reads, and the leases, which count the requests in flight in a file that all of them
map. Standard library only.

A request counts itself and then looks at the table again. To unload a model, the manager marks it
in the table and then waits until its counter is zero. So it waits for each request that still found
the model, and no other begins to use it.
"""

import json
import mmap
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from serving.model_status.table import Entry, Models, Rejection

MODELS = 4096  # columns of models
ALL_MODELS = MODELS  # the column of the requests whose model is known
TOTAL = MODELS + 1  # the column of all requests
WIDTH = MODELS + 2
SIZE = 8  # bytes of a number


class Table:
    """The file. Only one process writes it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read: tuple[int, Models] = (0, Models())

    def look(self) -> Models:
        """Return the table as it is now, parsed only if the file has changed."""
        try:
            version = self.file.stat().st_mtime_ns
        except FileNotFoundError:  # nothing is known yet
            return Models()
        read = self._read  # another thread may replace it
        if read[0] != version:
            with self.file.open("rb") as opened:
                version = os.fstat(opened.fileno()).st_mtime_ns
                document = json.load(opened)
            loads = {name: _entry(fields) for name, fields in document["entries"].items()}
            rejected = tuple(Rejection(**fields) for fields in document["rejected"])
            rows = {"entries": loads, "rejected": rejected}
            rows["checking"] = tuple(document["checking"])
            self._read = read = (version, Models(**document | rows))
        return read[1]

    def write(self, models: Models) -> None:
        """Replace the file in one step. Its time is its version: a number that no other version
        has. Raise OSError."""
        temporary = self.file.with_name(f".{self.file.name}.{threading.get_ident()}")
        temporary.write_text(json.dumps(asdict(models)), encoding="utf-8")
        version = time.monotonic_ns()
        os.utime(temporary, ns=(version, version))
        temporary.replace(self.file)


def _entry(fields: dict[str, Any]) -> Entry:
    """Return an entry of the file, in which tuples have become lists."""
    tuples = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    return Entry(**fields | tuples)


class Leases:
    """The counters: a row for each of the workers that may live at the same time, a column for each
    model, two for all. A counter has two numbers: requests, and the bytes of their bodies. Without
    a file they are this process's own."""

    def __init__(self, file: Path | None, rows: int = 1) -> None:
        self.rows, cells = rows, rows * WIDTH
        length = (2 * cells + MODELS) * SIZE
        with file.open("a+b") if file else TemporaryFile() as opened:
            if opened.seek(0, 2) < length:
                opened.truncate(length)
            numbers = memoryview(mmap.mmap(opened.fileno(), length)).cast("q")
        self._requests, self._bytes, self._last_use = (
            numbers[:cells],
            numbers[cells : 2 * cells],
            numbers[2 * cells :],
        )

    def add(self, row: int, column: int, requests: int, size: int) -> None:
        """Add requests, and the bytes of their bodies."""
        index = row * WIDTH + column
        self._requests[index] += requests
        self._bytes[index] += size

    def requests(self, column: int) -> int:
        """Return the requests of all workers."""
        return sum(self._requests[column::WIDTH])

    def bytes(self, column: int) -> int:
        """Return the bytes of the bodies of all workers' requests."""
        return sum(self._bytes[column::WIDTH])

    def touch(self, column: int) -> None:
        """Note that a request ends now which used the model."""
        self._last_use[column] = time.monotonic_ns()

    def last_use(self, column: int) -> float:
        """Return when the last request ended (time.monotonic), perhaps one to the model that had
        this column before."""
        return self._last_use[column] / 1e9

    def clear(self, row: int) -> None:
        """Forget the requests of a worker that has ended."""
        for index in range(row * WIDTH, (row + 1) * WIDTH):
            self._requests[index] = self._bytes[index] = 0
