"""How many requests are in work, in all of gunicorn's workers: counted by those who do the work."""

import threading
import time
from array import array
from mmap import mmap

SLOTS = 512  # more than gunicorn's workers, those that are ending among them


class InFlight:
    """Made before gunicorn's fork, so that the workers share the counts. They have a thread more each than their parts
    of the `limit`, and one whose threads are all busy accepts nothing: so a thread is always free for /ping."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._counts = memoryview(mmap(-1, SLOTS * array("i").itemsize)).cast("i")
        self._lock = threading.Lock()
        self._slot = 0
        self.last_active = 0.0  # when a request of this worker began or ended (time.monotonic)

    def begin_worker(self, number: int) -> None:
        """In a new worker, whose number no other one has."""
        self._slot = number % SLOTS
        self._counts[self._slot] = 0

    def end_worker(self, number: int) -> None:
        """After the end of a worker: what it had in work is in work no more."""
        self._counts[number % SLOTS] = 0

    def enter(self) -> bool:
        """Whether another request may be worked on; then `leave` follows."""
        with self._lock:
            if self.total() >= self.limit:
                return False
            self._change(1)
            return True

    def leave(self) -> None:
        with self._lock:
            self._change(-1)

    def total(self) -> int:
        """Of all workers."""
        return sum(self._counts)

    def _change(self, by: int) -> None:
        self._counts[self._slot] += by
        self.last_active = time.monotonic()
