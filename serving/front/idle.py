"""Gives a worker's memory back to the system once it has had nothing to do for a while.

What is freed is kept for the next request: to ask the system for it each time costs a page fault for every 4 kB,
which were two fifths of a worker's time with images.
"""

import ctypes
import threading
import time
from collections.abc import Callable

SECONDS = 2.0  # without the begin or the end of a request


class IdleTrim:
    """`last_active` says when a request began or ended (time.monotonic); `trims` give back what is not malloc's."""

    def __init__(self, last_active: Callable[[], float], *trims: Callable[[], None]) -> None:
        self._last_active, self._trims = last_active, trims

    def start(self) -> None:
        """Looks from now on, in a thread: call it after gunicorn's fork."""
        threading.Thread(target=self._run, name="idle-trim", daemon=True).start()

    def _run(self) -> None:
        libc = ctypes.CDLL(None)
        trimmed = 0.0
        while True:
            time.sleep(SECONDS)
            active = self._last_active()
            if active > trimmed and time.monotonic() - active > SECONDS:
                libc.malloc_trim(0)
                for trim in self._trims:
                    trim()
                trimmed = active
