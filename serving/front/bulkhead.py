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

WORKERS = 512  # as many as in_flight.py has slots for
MODELS = 256  # two of more models may share a place, and so a limit


class Bulkhead:
    """Made before gunicorn's fork: the workers share the counts, a row for each. `limit` is that of one model."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._counts = memoryview(mmap(-1, WORKERS * MODELS * array("i").itemsize)).cast("i")
        self._lock = threading.Lock()
        self._row = 0

    def begin_worker(self, number: int) -> None:
        """In a new worker, whose number no other one has."""
        self._row = number % WORKERS * MODELS
        self.end_worker(number)

    def end_worker(self, number: int) -> None:
        """After the end of a worker: what it had in work is in work no more."""
        row = number % WORKERS * MODELS
        self._counts[row : row + MODELS] = memoryview(array("i", [0] * MODELS))

    @contextmanager
    def place(self, model: str) -> Iterator[None]:
        """For one request of the model; raises Overloaded."""
        column = int.from_bytes(blake2b(model.encode(), digest_size=2).digest()) % MODELS
        with self._lock:
            if sum(self._counts[column::MODELS]) >= self.limit:
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
