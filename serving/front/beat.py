"""A worker's sign of life: it touches a file every second, as long as its main thread runs.

The main thread, which hands requests to the others, gives gunicorn a sign at least once a second, whatever they do.
gunicorn's own --timeout would kill workers after a pause of the whole container; `serve` looks at the files instead
(serving/supervisor/signs.py).
"""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

SECONDS = 1.0
LATE = 3.0  # seconds since the main thread's last sign, on a machine that is busy


class Beat:
    """`last_sign` tells when the main thread gave one (time.monotonic)."""

    def __init__(self, file: Path, last_sign: Callable[[], float]) -> None:
        self._file, self._last_sign = file, last_sign

    def start(self) -> None:
        """Starts the thread: call it after gunicorn's fork."""
        threading.Thread(target=self._run, name="beat", daemon=True).start()

    def _run(self) -> None:
        with contextlib.suppress(OSError, ValueError):  # gunicorn has closed the file of signs: the worker ends
            while True:
                if time.monotonic() - self._last_sign() < LATE:
                    with contextlib.suppress(OSError):  # nobody supervises this gunicorn, or the run folder is gone
                        self._file.touch()
                time.sleep(SECONDS)
