"""How many requests are in work, in all of gunicorn's workers: counted by those who do the work."""

import threading
import time
from array import array
from mmap import mmap


class InFlight:
    """Made before gunicorn's fork, so that the workers share the counts. They have a thread more each than their parts
    of the `limit`, and one whose threads are all busy accepts nothing: so a thread is always free for /ping.
    There are never as many processes as `places`."""

    def __init__(self, limit: int, places: int = 1) -> None:
        self.limit = limit
        self._counts = memoryview(mmap(-1, places * array("i").itemsize)).cast("i")
        self._lock = threading.Lock()
        self._place = 0
        self.last_active = 0.0  # when a request of this worker began or ended (time.monotonic)

    def begin_worker(self, place: int) -> None:
        """In a new worker, whose place (metric_places.py) no other process has now: what the one before it there had in
        work is in work no more."""
        self._place = place
        self._counts[place] = 0

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
        self._counts[self._place] += by
        self.last_active = time.monotonic()
