"""Where each process keeps its counts: a numbered place in a folder, which a later process takes over, counts included.

So there are as many files as processes at a time, however many are killed. A place is taken by a lock on a file, which
the kernel frees with the process.

prometheus_client maps these files into memory. A write to a mapped page for which the disk has no room is the end of
the process (SIGBUS), so pages are reserved before they are used: where that fails it is an OSError.
"""

import fcntl
import os
from itertools import count
from pathlib import Path
from typing import IO

from prometheus_client import values
from prometheus_client.mmap_dict import MmapedDict

from serving.host.files import try_lock

KINDS = ("counter", "histogram")  # a process has a file of each
FIRST_SIZE = 64 * 1024  # bytes; prometheus_client doubles a file that is full
LARGEST_ENTRY = 4 * 1024  # bytes of one number with its name and labels


class ReservedDict(MmapedDict):
    """prometheus_client's file of counts, which grows only as far as the disk has room."""

    def _init_value(self, key: str) -> None:
        if self._used + LARGEST_ENTRY > self._capacity:
            os.posix_fallocate(self._f.fileno(), 0, 2 * self._capacity)
        super()._init_value(key)  # type: ignore[no-untyped-call]


class Places:
    """The places in `folder`, PROMETHEUS_MULTIPROC_DIR."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._own: dict[int, tuple[int, IO[str]]] = {}  # by process, for a fork inherits what its parent has

    def use(self) -> None:
        """From now on prometheus_client names files by places, not by process ids, and reserves their pages."""
        values.MmapedDict = ReservedDict  # type: ignore[attr-defined]
        values.ValueClass = values.MultiProcessValue(process_identifier=self.own)

    def own(self) -> int:
        """This process's place; OSError where the disk has no room for its files."""
        pid = os.getpid()
        if pid not in self._own:
            number, file = next((number, file) for number in count() if (file := self._take(number)))
            self._reserve(number)
            self._own = {pid: (number, file)}
        return self._own[pid][0]

    def _reserve(self, number: int) -> None:
        """A file that a killed process has left has its pages already."""
        for kind in KINDS:
            with (self._folder / f"{kind}_{number}.db").open("a") as file:
                os.posix_fallocate(file.fileno(), 0, FIRST_SIZE)

    def _take(self, number: int) -> IO[str] | None:
        """The locked file; None where another process has the place."""
        file = (self._folder / f"{number}.place").open("a")
        if try_lock(file.fileno(), fcntl.LOCK_EX):
            return file
        file.close()
        return None
