"""Shares data about the models between processes, through two files. The table is a JSON file that
the survey writes at startup, the model manager replaces, and each worker reads. The leases count
the requests in flight in a memory-mapped file.

Together they make it safe to unload a model. A request first increments the model's counter, and
then reads the table again. The manager first marks the model in the table, and then waits until the
counter is zero. So each request either sees the mark and does not use the model, or the manager
waits for it.
"""

import json
import mmap
import os
import threading
import time
from dataclasses import asdict
from pathlib import Path
from tempfile import TemporaryFile

import msgspec

from serving.model_status.models import Models

MODELS = 4096  # the number of columns for models
ALL_MODELS = MODELS  # the column that counts all requests whose model is known
TOTAL = MODELS + 1  # the column that counts all requests
WAITING = MODELS + 2  # the column that counts requests that wait for their model to be loaded
WIDTH = MODELS + 3
SIZE = 8  # bytes per number
# msgspec prepares a type when it is first used, and crashes if two threads do that at the same
# time (bodies/schemas.py). Do it here, before there are threads.
msgspec.convert({}, Models)


class ModelsFile:
    """The file with the table of models. Only one process at a time writes it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._cached: tuple[int, Models] = (0, Models())  # a version of the file, and its content

    def look(self) -> Models:
        """Return the current table. If the file has not changed, return the same object again."""
        try:
            version = self.file.stat().st_mtime_ns
        except FileNotFoundError:  # nothing has been written yet
            return Models()
        cached_version, models = self._cached  # read once; another thread may replace it
        if cached_version != version:
            with self.file.open("rb") as opened:
                version = os.fstat(opened.fileno()).st_mtime_ns  # a newer file may have replaced it
                models = msgspec.convert(json.load(opened), Models)
            self._cached = (version, models)
        return models

    def write(self, models: Models) -> None:
        """Replace the file atomically. Give it a unique modification time, which `look` uses as the
        version of the table. Raise OSError."""
        temporary = self.file.with_name(f".{self.file.name}.{threading.get_ident()}")
        temporary.write_text(json.dumps(asdict(models)), encoding="utf-8")
        # the kernel may give two files that are written within milliseconds the same time
        version = time.monotonic_ns()
        os.utime(temporary, ns=(version, version))
        temporary.replace(self.file)


class Leases:
    """Counters of the requests in flight: a row for each worker that can exist at the same time, a
    column for each model, and three further columns. Each counter has two numbers: the requests,
    and the bytes of memory that they took when they were counted (mainly their bodies) or, in the
    column TOTAL, that they take now. The file also records when the last request to each model
    ended. If `file` is None, only processes that this one forks share the counters."""

    def __init__(self, file: Path | None, rows: int = 1) -> None:
        self.rows = rows
        cells = rows * WIDTH
        length = (2 * cells + MODELS) * SIZE
        with file.open("a+b") if file else TemporaryFile() as opened:
            size = opened.seek(0, os.SEEK_END)
            if size < length:
                opened.truncate(length)  # lengthens the file
            numbers = memoryview(mmap.mmap(opened.fileno(), length)).cast("q")
        self._requests = numbers[:cells]
        self._bytes = numbers[cells : 2 * cells]
        self._last_use = numbers[2 * cells :]

    def add(self, row: int, column: int, requests: int, size: int) -> None:
        """Add `requests` and `size` (in bytes) to the counter in this row and column."""
        index = row * WIDTH + column
        self._requests[index] += requests
        self._bytes[index] += size

    def requests(self, column: int) -> int:
        """Return the number of requests in flight that are counted in this column, across all
        workers."""
        return sum(self._requests[column::WIDTH])

    def bytes(self, column: int) -> int:
        """Return how many bytes of memory are counted in this column, across all workers: what the
        requests took when they were counted or, for TOTAL, what they take now."""
        return sum(self._bytes[column::WIDTH])

    def touch(self, column: int) -> None:
        """Record that a request to the model whose counter is in this column has just ended, or
        that a call has just loaded the model."""
        self._last_use[column] = time.monotonic_ns()

    def last_use(self, column: int) -> float:
        """Return when `touch` was last called for this column (time.monotonic). Until it is called
        for a new model, return the value of the model that had this column before."""
        return self._last_use[column] / 1e9

    def clear(self, row: int) -> None:
        """Clear the counters in this row, whose worker has ended."""
        for index in range(row * WIDTH, (row + 1) * WIDTH):
            self._requests[index] = self._bytes[index] = 0
