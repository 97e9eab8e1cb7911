"""Refuse requests for load, the only place with 503 `overloaded`; docs/errors.md has a table of all
bounds.

Requests and the bytes of their bodies are both bounded, in total and per model, over all of
gunicorn's workers. They share the counters (model_status/shared_files.py) without a lock, so a
bound may be exceeded by a few requests. One of several models may hold no more than what is free,
so the first that hangs takes half of all, the next a quarter (Choudhury and Hahne, "Dynamic queue
length thresholds", 1998, with a factor of 1).
"""

import threading
from math import inf
from pathlib import Path
from time import monotonic

from serving.errors import Overloaded
from serving.model_status.shared_files import ALL_MODELS, TOTAL, Leases


class Admission:
    """Make it before gunicorn forks. `limit` bounds the requests and `most_bytes` the bytes of
    their bodies; with `several_models` one model cannot use them all. Each of the `workers` counts
    in a row of the file `leases`."""

    def __init__(
        self,
        limit: int,
        most_bytes: int,
        several_models: bool,
        workers: int = 1,
        leases: Path | None = None,
    ) -> None:
        self.limit = limit
        self.most_bytes = most_bytes
        self.several_models = several_models
        self.leases = Leases(leases, workers)
        self.lock = threading.Lock()
        self.row = 0
        self.last_active = 0.0  # when a request of this worker began or ended (time.monotonic)
        self._rows: dict[int, int] = {}

    def clear(self) -> None:
        """Forget the requests of a gunicorn before this one."""
        for row in range(self.leases.rows):
            self.leases.clear(row)

    def add_worker(self, worker: int) -> None:
        """Choose the row in which the next process counts, from its fork on. `worker` is any number
        for it."""
        free = set(range(self.leases.rows)) - set(self._rows.values())
        self._rows[worker] = self.row = min(free, default=0)

    def remove_worker(self, worker: int) -> None:
        """Forget the requests of a worker that has ended."""
        self.leases.clear(self._rows.pop(worker))

    def enter(self, size: int) -> "Slot":
        """Take a slot for a request, before its body of `size` bytes is read. Raise Overloaded."""
        with self.lock:
            self.check("", TOTAL, self.limit, self.most_bytes - size)
            self.leases.add(self.row, TOTAL, 1, size)
            self.last_active = monotonic()
        return Slot(self, size)

    def check(self, whose: str, column: int, most: float, most_bytes: int) -> None:
        """Raise Overloaded if the counter of a column is at `most` requests or above
        `most_bytes`."""
        requests = self.leases.requests(column)
        size = self.leases.bytes(column)
        if requests >= most or size > most_bytes:
            raise Overloaded(
                f"too many requests{whose} are in flight: {requests}, with "
                f"{size} bytes in their bodies. The limits are "
                "SERVE_MAX_CONCURRENCY requests and an eighth of the memory; one of several "
                "models may hold no more than what is free. Send the request again later"
            )


class Slot:
    """A request's slot of the total, and of one model at a time. Not to be shared between
    threads."""

    def __init__(self, admission: Admission, size: int) -> None:
        self._admission = admission
        self._size = size
        self._column = -1  # of the model's counter; -1 while there is none

    def grow(self, more: int) -> None:
        """Count `more` bytes: the body was unpacked. Call it before `keep`. Raise Overloaded."""
        with self._admission.lock:
            self._admission.check("", TOTAL, inf, self._admission.most_bytes - more)
            self._admission.leases.add(self._admission.row, TOTAL, 0, more)
        self._size += more

    def keep(self, model: str, column: int) -> None:
        """Take a slot of the model whose counter is `column`, which keeps it loaded until `leave`.
        Raise Overloaded."""
        admission = self._admission
        leases = self._admission.leases
        with admission.lock:
            self._release()
            if admission.several_models:
                free = admission.limit - leases.requests(ALL_MODELS)
                free_bytes = admission.most_bytes - leases.bytes(ALL_MODELS)
                admission.check(f" to model '{model}'", column, free, free_bytes)
            for counter in (column, ALL_MODELS):
                leases.add(admission.row, counter, 1, self._size)
            self._column = column

    def _release(self) -> None:
        """Give the model's slot back, if there is one."""
        if self._column >= 0:
            for counter in (self._column, ALL_MODELS):
                self._admission.leases.add(self._admission.row, counter, -1, -self._size)
            self._admission.leases.touch(self._column)
            self._column = -1

    def leave(self) -> None:
        """Give everything back: the reply has been sent."""
        admission = self._admission
        with admission.lock:
            self._release()
            admission.leases.add(admission.row, TOTAL, -1, -self._size)
            admission.last_active = monotonic()

    def __enter__(self) -> "Slot":
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()
