"""Where each process keeps its counts: a numbered place in a folder, which a later process takes over, counts included.

So there are as many files as processes at a time, however many are killed. A place is taken by a lock on a file, which
the kernel frees with the process.
"""

import fcntl
import os
from itertools import count
from pathlib import Path
from typing import IO

from prometheus_client import values


class Places:
    """The places in `folder`, PROMETHEUS_MULTIPROC_DIR."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: dict[int, tuple[int, IO[str]]] = {}  # by process, for a fork inherits what its parent has

    def use(self) -> None:
        """From now on prometheus_client names files by places, not by process ids."""
        values.ValueClass = values.MultiProcessValue(process_identifier=self.own)

    def own(self) -> int:
        """This process's place."""
        pid = os.getpid()
        if pid not in self._own:
            self._own = {pid: next((number, file) for number in count() if (file := self._take(number)))}
        return self._own[pid][0]

    def _take(self, number: int) -> IO[str] | None:
        """The locked file; None where another process has the place."""
        file = (self._folder / f"{number}.place").open("a")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file
