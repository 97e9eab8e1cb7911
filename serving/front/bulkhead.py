"""How many requests of one model are in work: no model takes the places of all others.

The model is known only once a request has been read, so its place among all (in_flight.py) is taken before.
"""

import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from mmap import mmap

from serving.errors import Overloaded

COLUMNS = 4096  # models, by a digest of the name: two of many may share one, and so a limit


class Bulkhead:
    """Made before gunicorn's fork: the workers share the counts, a row for each of the `places` that they may have.
    `limit` is that of one model."""

    def __init__(self, limit: int, places: int = 1) -> None:
        self.limit = limit
        self._counts = memoryview(mmap(-1, places * COLUMNS * array("i").itemsize)).cast("i")
        self._lock = threading.Lock()
        self._row = 0

    def begin_worker(self, place: int) -> None:
        """In a new worker, whose place (metric_places.py) no other process has now: what the one before it there had in
        work is in work no more."""
        self._row = place * COLUMNS
        self._counts[self._row : self._row + COLUMNS] = memoryview(array("i", [0] * COLUMNS))

    @contextmanager
    def place(self, model: str) -> Iterator[None]:
        """For one request of the model; raises Overloaded."""
        column = int.from_bytes(blake2b(model.encode(), digest_size=2).digest()) % COLUMNS
        with self._lock:
            if sum(self._counts[column::COLUMNS]) >= self.limit:
                raise Overloaded(
                    f"{self.limit} requests of model '{model}' are in work, which is the limit of one model "
                    "(SERVE_MAX_CONCURRENCY sets it); send the request again later"
                )
            self._counts[self._row + column] += 1
        try:
            yield
        finally:
            with self._lock:
                self._counts[self._row + column] -= 1
