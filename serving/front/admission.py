"""Refuses requests when the server is overloaded. The error `overloaded` (503) is raised nowhere
else; docs/errors.md has a table of all limits.

The number of requests and the memory that they take are both limited, in total and per model,
across all of gunicorn's workers. The workers share the counters (model_status/shared_files.py)
without a lock, so a few requests more than the limit may be admitted.

If several models are served, each of them may hold at most as many requests, and as many bytes of
bodies and their parsed forms, as are free. So the first model that hangs occupies half of the
total, and the second a quarter (Choudhury and Hahne, "Dynamic queue length thresholds", 1998, with
a factor of 1).
"""

import threading
from pathlib import Path
from time import monotonic

from serving.errors import ModelNotReady, Overloaded, PayloadTooLarge
from serving.model_status.shared_files import ALL_MODELS, TOTAL, WAITING, Leases

# requests that wait for their models to be loaded may hold 1 / WAITING_PART of all slots
WAITING_PART = 4
SMALL = 2**20  # bytes that a slot may take or free before the shared counter is updated

LIMITS = (
    "and the limits are SERVE_MAX_CONCURRENCY requests and SERVE_REQUEST_MEMORY_SHARE of the "
    "memory; one of several models may hold no more than what is free. Send the request again later"
)


class Admission:
    """Counts the requests in flight and the memory that they take, and refuses requests beyond the
    limits.

    Create this object before gunicorn forks. `limit` is the maximum number of requests, and
    `most_bytes` the maximum memory that they take. If there are `several_models`, none of them can
    use up either limit. Up to `workers` workers exist at once, and each counts in its own row of
    the file `leases`.
    """

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
        self.last_active = 0.0  # when a request of this worker last began or ended (time.monotonic)
        self.freed = 0  # bytes that requests of this worker have given back since it started
        # The row of each live worker, keyed by the worker's number. Only gunicorn's master keeps
        # this dict up to date.
        self._rows: dict[int, int] = {}

    def clear(self) -> None:
        """Clear the counts that a previous gunicorn left behind."""
        for row in range(self.leases.rows):
            self.leases.clear(row)

    def add_worker(self, worker: int) -> None:
        """Choose the row in which the next worker counts. Call this in gunicorn's master, just
        before the fork. `worker` is a number that identifies the worker for remove_worker."""
        free = set(range(self.leases.rows)) - set(self._rows.values())
        self.row = min(free, default=0)  # the worker inherits this attribute
        self._rows[worker] = self.row

    def remove_worker(self, worker: int) -> None:
        """Clear the counts of a worker that has ended, and free its row."""
        self.leases.clear(self._rows.pop(worker))

    def enter(self, size: int) -> "Slot":
        """Take a slot for a request before its body of `size` bytes is read. Raise Overloaded if no
        slot or not enough memory is free, and PayloadTooLarge as `take` does."""
        slot = Slot(self)
        with self.lock:
            requests = self.leases.requests(TOTAL)
            if requests >= self.limit:
                raise Overloaded(f"{requests} requests are in flight, {LIMITS}")
            self.leases.add(self.row, TOTAL, requests=1, size=0)
            self.last_active = monotonic()
        try:
            slot.take(size, "the body")
        except BaseException:
            slot.leave()
            raise
        return slot


class Slot:
    """A request's slot. It counts toward the limits in total, and toward those of at most one model
    at a time. It is also the request's account, which records how many bytes of memory its body and
    its steps take (serving/request_memory.py). Not thread-safe."""

    def __init__(self, admission: Admission) -> None:
        self._admission = admission
        self.size = 0
        # this slot's bytes in the shared counter, which differ from `size` by less than SMALL
        self._counted = 0
        self._column = -1  # the column of the model's counter, WAITING, or -1 if there is no model
        self._model_bytes = 0  # this slot's bytes in the model's counter: `size` at the last `keep`

    def take(self, size: int, step: str) -> None:
        """Add `size` bytes of memory, which a step is about to take, to the account. Raise
        PayloadTooLarge if the request would take more than all requests together may take, and
        Overloaded if other requests hold the memory."""
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
        """Subtract `size` bytes of memory, which a step has freed, from the account. Do nothing
        after `leave`."""
        self.size = max(0, self.size - size)
        if self._counted - self.size < SMALL:
            return
        with self._admission.lock:
            self._admission.freed += self._counted - self.size
            self._count(self.size)

    def _count(self, size: int) -> None:
        """Set this slot's part of the shared counter to `size` bytes."""
        more = size - self._counted
        self._admission.leases.add(self._admission.row, TOTAL, requests=0, size=more)
        self._counted = size

    def keep(self, model: str, column: int) -> None:
        """Count the request for the model whose counter is in `column`, and for no other. This
        keeps the model loaded until `leave`. If `column` is WAITING, count the request among those
        that wait for a model to be loaded. Raise Overloaded if the model has too many requests or
        bytes, and ModelNotReady if too many requests wait."""
        admission = self._admission
        leases = self._admission.leases
        with admission.lock:
            self._release()
            if column == WAITING:
                self._check_waiting(model)
            elif admission.several_models:
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
            self._model_bytes = self.size
            self._count_model(1)

    def _check_waiting(self, model: str) -> None:
        """Raise ModelNotReady if no more requests may wait for their models."""
        requests = self._admission.leases.requests(WAITING)
        most = max(1, self._admission.limit // WAITING_PART)
        if requests >= most:
            raise ModelNotReady(
                f"model '{model}' is not loaded yet, and {requests} requests wait for their models "
                f"already; a {WAITING_PART}th of SERVE_MAX_CONCURRENCY may; try again shortly"
            )

    def _count_model(self, sign: int) -> None:
        """Add this request to the counter in its column (a model's or WAITING) and to that of
        ALL_MODELS. If `sign` is -1, subtract it instead."""
        for counter in (self._column, ALL_MODELS):
            self._admission.leases.add(self._admission.row, counter, sign, sign * self._model_bytes)

    def _release(self) -> None:
        """Stop counting the request for its model or in WAITING, if it is counted there. Also
        record that its model has just been used."""
        if self._column >= 0:
            self._count_model(-1)
            if self._column != WAITING:
                self._admission.leases.touch(self._column)
            self._column = -1

    def leave(self) -> None:
        """Stop counting the request and the memory that it took. Call this when its reply is ready
        or, if the reply is sent in pieces, after the last piece."""
        admission = self._admission
        with admission.lock:
            self._release()
            admission.leases.add(admission.row, TOTAL, requests=-1, size=-self._counted)
            admission.freed += self._counted
            self.size = self._counted = 0
            admission.last_active = monotonic()

    def __enter__(self) -> "Slot":
        return self

    def __exit__(self, *error: object) -> None:
        self.leave()
