"""Bounds the requests in flight, in total and per model, over all of gunicorn's workers.

A model may use as many slots as are free, so the first model that hangs holds half of them and the second half of the
rest (Choudhury and Hahne, "Dynamic queue length thresholds", 1998, with a factor of 1). A request's model is known only
after it was read, so it takes a slot of the total before.

The counts of the models are their leases (leases.py). The workers share them without a lock between them, so a limit
may be exceeded by a few requests.
"""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serving.errors import Overloaded
from serving.models.leases import ALL_MODELS, TOTAL, Leases
from serving.models.table import Entry


class Admission:
    """Make it before gunicorn forks. `limit` is the number of slots; with `several_models` one model cannot use them
    all. Each of the `workers` that live at the same time counts in a row of its own of the file `leases`."""

    def __init__(self, limit: int, several_models: bool, workers: int = 1, leases: Path | None = None) -> None:
        self.limit, self._several_models = limit, several_models
        self._leases = Leases(leases, workers)
        self._rows: dict[int, int] = {}
        self._lock = threading.Lock()
        self._row = 0
        self.last_active = 0.0  # when a request of this worker began or ended (time.monotonic)

    def clear(self) -> None:
        """Forget the requests of a gunicorn before this one."""
        for row in range(self._leases.rows):
            self._leases.clear(row)

    def add_worker(self, worker: int) -> None:
        """Choose the row in which the next process counts, from its fork on. `worker` is any number for it."""
        free = set(range(self._leases.rows)) - set(self._rows.values())
        self._rows[worker] = self._row = min(free, default=0)

    def remove_worker(self, worker: int) -> None:
        """Forget the requests of a worker that has ended."""
        self._leases.clear(self._rows.pop(worker))

    def enter(self) -> bool:
        """Return whether there is a slot for another request. If so, call `leave` when it ends."""
        with self._lock:
            if self.total() >= self.limit:
                return False
            self._leases.add(self._row, TOTAL, 1)
            self.last_active = time.monotonic()
            return True

    def leave(self) -> None:
        with self._lock:
            self._leases.add(self._row, TOTAL, -1)
            self.last_active = time.monotonic()

    def total(self) -> int:
        """Return the number of requests in flight in all workers."""
        return self._leases.sum(TOTAL)

    @contextmanager
    def model(self, entry: Entry) -> Iterator[None]:
        """Hold one of the model's slots, which keeps it loaded. Raise Overloaded if it has none left."""
        column = entry.column
        with self._lock:
            count = self._leases.sum(column)
            if count >= (self.limit - self._leases.sum(ALL_MODELS) if self._several_models else self.limit):
                raise Overloaded(
                    f"{count} requests to model '{entry.name}' are in flight: the other slots are kept for other "
                    "models (SERVE_MAX_CONCURRENCY sets how many slots there are); send the request again later"
                )
            self._leases.add(self._row, column, 1)
            self._leases.add(self._row, ALL_MODELS, 1)
        try:
            yield
        finally:
            with self._lock:
                self._leases.add(self._row, column, -1)
                self._leases.add(self._row, ALL_MODELS, -1)
