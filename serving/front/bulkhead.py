"""How many requests of one model are in work: models that hang leave places for the others.

A model may have as many places as are free: the first that hangs half of all, the second half of the rest
(Choudhury and Hahne, "Dynamic queue length thresholds", 1998, with a factor of 1). The model is known only once a
request has been read, so its place among all (in_flight.py) is taken before.
"""

import threading
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from mmap import mmap

from serving.errors import Overloaded

COLUMNS = 4096  # models, by a digest of the name: two of many may share one, and so its places
TOTAL = COLUMNS  # the column of all models
WIDTH = COLUMNS + 1


class Bulkhead:
    """Made before gunicorn's fork: the workers share the counts, a row for each of the `rows` that they may have.
    `places` is how many requests may be in work; a model that is `alone` may have them all."""

    def __init__(self, places: int, alone: bool, rows: int = 1) -> None:
        self._places, self._alone = places, alone
        self._counts = memoryview(mmap(-1, rows * WIDTH * array("i").itemsize)).cast("i")
        self._lock = threading.Lock()
        self._row = 0

    def begin_worker(self, place: int) -> None:
        """In a new worker, whose place (metric_places.py) no other process has now: what the one before it there had in
        work is in work no more."""
        self._row = place * WIDTH
        self._counts[self._row : self._row + WIDTH] = memoryview(array("i", [0] * WIDTH))

    @contextmanager
    def place(self, model: str) -> Iterator[None]:
        """For one request of the model; raises Overloaded."""
        column = int.from_bytes(blake2b(model.encode(), digest_size=2).digest()) % COLUMNS
        with self._lock:
            count = self._sum(column)
            if count >= (self._places if self._alone else self._places - self._sum(TOTAL)):
                raise Overloaded(
                    f"{count} requests of model '{model}' are in work: the other places are kept for other models "
                    "(SERVE_MAX_CONCURRENCY sets how many there are); send the request again later"
                )
            self._add(column, 1)
        try:
            yield
        finally:
            with self._lock:
                self._add(column, -1)

    def _sum(self, column: int) -> int:
        return sum(self._counts[column::WIDTH])

    def _add(self, column: int, number: int) -> None:
        self._counts[self._row + column] += number
        self._counts[self._row + TOTAL] += number
