"""Refuse requests for load, the only place with 503 `overloaded`; docs/errors.md has a table of all
bounds.

Requests and the memory that they take are both bounded, in total and per model, over all of
gunicorn's workers. They share the counters (model_status/shared_files.py) without a lock: the bound
of requests may be exceeded by a few. One of several models may hold no more requests, and bytes of
their bodies, than are free, so the first that hangs takes half of all, the next a quarter
(Choudhury and Hahne, "Dynamic queue length thresholds", 1998, with a factor of 1).
"""

import threading
from pathlib import Path
from time import monotonic

from serving.errors import Overloaded, PayloadTooLarge
from serving.model_status.shared_files import ALL_MODELS, TOTAL, Leases

SMALL = 2**20  # bytes of a slot that others need not know

LIMITS = (
    "and the limits are SERVE_MAX_CONCURRENCY requests and SERVE_REQUEST_MEMORY_SHARE of the "
    "memory; one of several models may hold no more than what is free. Send the request again later"
)


class Admission:
    """Make it before gunicorn forks. `limit` bounds the requests and `most_bytes` the memory that
    they take; with `several_models` one model cannot use them all. Each of the `workers` counts in
    a row of the file `leases`."""

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
        self.freed = 0  # bytes that requests of this worker have given back
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
        slot = Slot(self)
        with self.lock:
            requests = self.leases.requests(TOTAL)
            if requests >= self.limit:
                raise Overloaded(f"{requests} requests are in flight, {LIMITS}")
            self.leases.add(self.row, TOTAL, 1, 0)
            self.last_active = monotonic()
        try:
            slot.take(size, "the body")
        except BaseException:
            slot.leave()
            raise
        return slot


class Slot:
    """A request's slot of the total, and of one model at a time, and its account: the bytes that
    its body and its steps take (serving/room.py). Not to be shared between threads."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.size = 0
        self._counted = 0  # bytes of these that the workers' shared counter has
        self._column = -1  # of the model's counter; -1 while there is none
        self._kept = 0  # bytes that the model's counter has: those of the body

    def take(self, size: int, step: str) -> None:
        """Count `size` more bytes, which a step will take. Raise PayloadTooLarge if the request
        would have more than all may, Overloaded if others have them."""
        admission = self._admission
        own = self.size + size
        if own - self._counted < SMALL:
            self.size = own
            return
        if own > admission.most_bytes:
            raise PayloadTooLarge(
                f"{step} would take about {size} bytes of memory, with what the request takes "
                f"already {own}, and a request may take {admission.most_bytes}: send less at a "
                "time, or raise SERVE_REQUEST_MEMORY_SHARE"
            )
        with admission.lock:
            before = self._counted
            self._count(own)
            total = admission.leases.bytes(TOTAL)
            if total <= admission.most_bytes:
                self.size = own
                return
            self._count(before)
        raise Overloaded(
            f"{step} would take about {size} bytes of memory, and other requests have taken "
            f"{total - own} of {admission.most_bytes}, {LIMITS}"
        )

    def give_back(self, size: int) -> None:
        """Count `size` bytes less: a step has ended. After `leave` it does nothing."""
        self.size = max(0, self.size - size)
        if self._counted - self.size < SMALL:
            return
        with self._admission.lock:
            self._admission.freed += self._counted - self.size
            self._count(self.size)

    def _count(self, size: int) -> None:
        """Make the shared counter have `size` bytes of this slot."""
        self._admission.leases.add(self._admission.row, TOTAL, 0, size - self._counted)
        self._counted = size

    def keep(self, model: str, column: int) -> None:
        """Take a slot of the model whose counter is `column`, which keeps it loaded until `leave`.
        Raise Overloaded."""
        admission = self._admission
        leases = self._admission.leases
        with admission.lock:
            self._release()
            if admission.several_models:
                requests = leases.requests(column)
                size = leases.bytes(column)
                free = admission.limit - leases.requests(ALL_MODELS)
                free_bytes = admission.most_bytes - leases.bytes(ALL_MODELS)
                if requests >= free or size > free_bytes:
                    raise Overloaded(
                        f"{requests} requests to model '{model}' are in flight, with {size} bytes "
                        f"in their bodies, {LIMITS}"
                    )
            self._column = column
            self._kept = self.size
            self._count_model(1)

    def _count_model(self, sign: int) -> None:
        for counter in (self._column, ALL_MODELS):
            self._admission.leases.add(self._admission.row, counter, sign, sign * self._kept)

    def _release(self) -> None:
        """Give the model's slot back, if there is one."""
        if self._column >= 0:
            self._count_model(-1)
            self._admission.leases.touch(self._column)
            self._column = -1

    def leave(self) -> None:
        """Give everything back: the reply has been sent."""
        admission = self._admission
        with admission.lock:
            self._release()
            admission.leases.add(admission.row, TOTAL, -1, -self._counted)
            admission.freed += self._counted
            self.size = self._counted = 0
            admission.last_active = monotonic()

    def __enter__(self) -> "Slot":
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()
