"""Counts the requests that nginx's door handed to Triton past Python, and those that nginx refused as too many, by the
lines that it writes of them."""

import fcntl
import logging
import threading
import time
from collections import Counter
from pathlib import Path

from serving.front.metrics import Metrics

SECONDS = 0.5  # between two looks
REFUSED = b"refused\n"

log = logging.getLogger(__name__)


class DoorLog:
    """Counts the lines of `file`, in one worker of gunicorn at a time."""

    def __init__(self, file: Path, metrics: Metrics) -> None:
        self._file, self._metrics = file, metrics

    def start(self) -> None:
        """Reads in a thread from now on, or as soon as no other worker does."""
        threading.Thread(target=self._run, name="door-log", daemon=True).start()

    def _run(self) -> None:
        with self._file.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            while True:
                try:
                    self.read()
                except OSError:
                    log.exception("the requests that went past Python are not counted")
                time.sleep(SECONDS)

    def read(self) -> None:
        """Counts the lines and empties the file, unless nginx is in the midst of a line. What nginx adds in the
        microseconds before the file is empty is not counted."""
        if not self._file.exists():
            return
        with self._file.open("r+b") as file:
            lines = file.readlines()
            if lines and lines[-1].endswith(b"\n"):
                file.truncate(0)
                self._count(lines)

    def _count(self, lines: list[bytes]) -> None:
        """Many lines are alike, for their times are in milliseconds. One that cannot be read is left out."""
        counter = Counter(lines)
        self._metrics.count_refused(counter.pop(REFUSED, 0))
        for line, times in counter.items():
            try:
                model, version, seconds = line.decode().split()
                self._metrics.count_past_python(model, version, float(seconds), times)
            except ValueError:
                log.warning("a request that went past Python is not counted, its line cannot be read: %r", line)
