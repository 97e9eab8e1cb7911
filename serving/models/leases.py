"""Leases: counts of the calls in flight, in a file that all processes map: a row for each worker, a column for each
model, one for all calls whose model is known, and one for all calls.

A call counts itself and then looks at the table again; who unloads a model marks it there and then waits until its
count is zero. So a call that still found the model is waited for, and no other begins.
"""

import mmap
from array import array
from pathlib import Path

MODELS = 4096  # columns of models
ALL_MODELS = MODELS  # the column of the calls whose model is known
TOTAL = MODELS + 1  # the column of all calls
WIDTH = MODELS + 2
SIZE = array("i").itemsize


class Leases:
    """The counts; `rows` are the workers that may live at the same time. Without a file they are this process's own."""

    def __init__(self, file: Path | None, rows: int = 1) -> None:
        if file is None:
            self._counts = memoryview(mmap.mmap(-1, rows * WIDTH * SIZE)).cast("i")
            return
        with file.open("a+b") as opened:
            if opened.seek(0, 2) < rows * WIDTH * SIZE:
                opened.truncate(rows * WIDTH * SIZE)
            self._counts = memoryview(mmap.mmap(opened.fileno(), 0)).cast("i")

    @property
    def rows(self) -> int:
        return len(self._counts) // WIDTH

    def add(self, row: int, column: int, number: int) -> None:
        self._counts[row * WIDTH + column] += number

    def sum(self, column: int) -> int:
        """Return the calls of all workers."""
        return sum(self._counts[column::WIDTH])

    def clear(self, row: int) -> None:
        """Forget the calls of a worker that has ended."""
        self._counts[row * WIDTH : (row + 1) * WIDTH] = memoryview(array("i", [0] * WIDTH))
