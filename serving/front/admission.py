"""Bounds the requests in flight, in total and per model, over all of gunicorn's workers.

A model may use as many slots as are free, so the first model that hangs holds half of them and the second half of the
rest (Choudhury and Hahne, "Dynamic queue length thresholds", 1998, with a factor of 1). A request's model is known only
after it was read, so it takes a slot of the total before.

The workers share the counts without a lock between them, so a limit may be exceeded by a few requests.
"""

import threading
import time
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from mmap import mmap

from serving.errors import Overloaded

MODELS = 4096  # columns; models are hashed into them, so two of many may share one, and its slots
ALL_MODELS = MODELS  # the column of the requests whose model is known
TOTAL = MODELS + 1  # the column of all requests
WIDTH = MODELS + 2


class Admission:
    """Make it before gunicorn forks. `limit` is the number of slots; with `several_models` one model cannot use them
    all. Each of the `workers` that live at the same time counts in a row of its own."""

    def __init__(self, limit: int, several_models: bool, workers: int = 1) -> None:
        self.limit, self._several_models = limit, several_models
        self._counts = memoryview(mmap(-1, workers * WIDTH * array("i").itemsize)).cast("i")
        self._rows: dict[int, int] = {}
        self._lock = threading.Lock()
        self._row = 0
        self.last_active = 0.0  # when a request of this worker began or ended (time.monotonic)

    def add_worker(self, worker: int) -> None:
        """Choose the row in which the next process counts, from its fork on. `worker` is any number for it."""
        free = set(range(len(self._counts) // WIDTH)) - set(self._rows.values())
        self._rows[worker] = self._row = min(free, default=0)

    def remove_worker(self, worker: int) -> None:
        """Forget the requests of a worker that has ended."""
        row = self._rows.pop(worker) * WIDTH
        self._counts[row : row + WIDTH] = memoryview(array("i", [0] * WIDTH))

    def enter(self) -> bool:
        """Return whether there is a slot for another request. If so, call `leave` when it ends."""
        with self._lock:
            if self.total() >= self.limit:
                return False
            self._add(TOTAL, 1)
            self.last_active = time.monotonic()
            return True

    def leave(self) -> None:
        with self._lock:
            self._add(TOTAL, -1)
            self.last_active = time.monotonic()

    def total(self) -> int:
        """Return the number of requests in flight in all workers."""
        return self._sum(TOTAL)

    @contextmanager
    def model(self, name: str) -> Iterator[None]:
        """Hold one of the model's slots. Raises Overloaded if it has none left."""
        column = int.from_bytes(blake2b(name.encode(), digest_size=2).digest()) % MODELS
        with self._lock:
            count = self._sum(column)
            if count >= (self.limit - self._sum(ALL_MODELS) if self._several_models else self.limit):
                raise Overloaded(
                    f"{count} requests to model '{name}' are in flight: the other slots are kept for other models "
                    "(SERVE_MAX_CONCURRENCY sets how many slots there are); send the request again later"
                )
            self._add(column, 1)
            self._add(ALL_MODELS, 1)
        try:
            yield
        finally:
            with self._lock:
                self._add(column, -1)
                self._add(ALL_MODELS, -1)

    def _sum(self, column: int) -> int:
        return sum(self._counts[column::WIDTH])

    def _add(self, column: int, number: int) -> None:
        self._counts[self._row * WIDTH + column] += number
