"""The counters of the requests in flight, in a file that all processes map: one row for each worker; one column for
each model, one for the requests whose model is known, and one for all requests. Each counter has two numbers: requests,
and the bytes of their bodies.

A request counts itself and then looks at the table of models again. To unload a model, the manager marks it in the
table and then waits until the model's counter is zero. So a request that still found the model is waited for, and no
other request begins to use it.
"""

import mmap
from array import array
from pathlib import Path
from time import monotonic_ns

MODELS = 4096  # columns of models
ALL_MODELS = MODELS  # the column of the requests whose model is known
TOTAL = MODELS + 1  # the column of all requests
WIDTH = MODELS + 2
SIZE = array("q").itemsize


class Leases:
    """The counters. `rows` is the number of workers that may live at the same time. Without a file they belong to this
    process alone."""

    def __init__(self, file: Path | None, rows: int = 1) -> None:
        self.rows, cells = rows, rows * WIDTH
        length = (2 * cells + MODELS) * SIZE
        if file is None:
            mapped = mmap.mmap(-1, length)
        else:
            with file.open("a+b") as opened:
                if opened.seek(0, 2) < length:
                    opened.truncate(length)
                mapped = mmap.mmap(opened.fileno(), length)
        numbers = memoryview(mapped).cast("q")
        self._requests, self._bytes, self._last_use = numbers[:cells], numbers[cells : 2 * cells], numbers[2 * cells :]

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
        self._last_use[column] = monotonic_ns()

    def last_use(self, column: int) -> float:
        """Return when the last request ended (time.monotonic). If that was before the model's load began, it was a
        request to the model that had this column before."""
        return self._last_use[column] / 1e9

    def clear(self, row: int) -> None:
        """Forget the requests of a worker that has ended."""
        nothing = memoryview(array("q", bytes(WIDTH * SIZE)))
        for numbers in (self._requests, self._bytes):
            numbers[row * WIDTH : (row + 1) * WIDTH] = nothing
