"""Counts the requests that nginx handed to Triton past Python, by the lines that it writes of them.

One worker of gunicorn at a time reads the file; it keeps its place beside it, so that another can go on, and
gives what was read back to the file system, so that the file takes no room.
"""

import ctypes
import fcntl
import logging
import threading
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from serving.front.metrics import Finished, Metrics

SECONDS = 0.5  # between two looks
PUNCH_HOLE = 0x02 | 0x01  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, <linux/falloc.h>
CHUNK = 2**20

log = logging.getLogger(__name__)


class DirectLog:
    """Reads `file` from where the last reader stopped."""

    def __init__(self, file: Path, metrics: Metrics) -> None:
        self._file, self._metrics = file, metrics
        self._place = file.with_suffix(".read")

    def start(self) -> None:
        """Reads in a thread from now on, or as soon as no other worker does."""
        threading.Thread(target=self._run, name="direct-log", daemon=True).start()

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
        """Counts all whole lines that have come since the last time."""
        if not self._file.exists():
            return
        with self._file.open("r+b") as file:
            begun = position = file.seek(int(self._place.read_text()) if self._place.exists() else 0)
            while lines := file.readlines(CHUNK):
                whole = [line for line in lines if line.endswith(b"\n")]
                self._count(whole)
                position += sum(map(len, whole))
                self._place.write_text(str(position))
                if len(whole) < len(lines):
                    break
            if position > begun:
                _give_back(file.fileno(), position)

    def _count(self, lines: Iterable[bytes]) -> None:
        """Many lines are alike: equal times in milliseconds, equal sizes. One that cannot be read is left out."""
        for line, count in Counter(lines).items():
            try:
                request = _finished(line)
            except ValueError:
                log.warning("a request that went past Python is not counted, its line cannot be read: %r", line)
            else:
                self._metrics.count(request, count)


def _finished(line: bytes) -> Finished:
    """The request of a line; ValueError where it is not one of nginx.conf's format `direct`."""
    model, version, status, seconds, triton_ms, received, sent = line.decode().rstrip("\n").split(" ")
    return Finished(
        model=model,
        version=version,
        status=int(status),
        seconds=float(seconds),
        received=int(received),
        sent=int(sent),
        stages={"triton": int(triton_ms) / 1000},
    )


def _give_back(descriptor: int, length: int) -> None:
    """Frees the blocks of the file's first `length` bytes; a file system that cannot keeps them."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate(descriptor, PUNCH_HOLE, ctypes.c_long(0), ctypes.c_long(length))
