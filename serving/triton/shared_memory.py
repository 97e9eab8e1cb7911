"""Writes large inputs into /dev/shm, so that Triton reads them there instead of receiving them over
gRPC.

    free --write--> lent --give_back--> free --trim--> free, its pages returned to the system

A region is a file that is registered with Triton before its first use and never unregistered
(quirks.py). Names are never used twice, so Triton cannot mistake an old region for a new one.
`serve` removes the files when Triton ends.
"""

import contextlib
import errno
import mmap
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from serving.errors import ServingError
from serving.triton.tensors import Tensor

FOLDER = Path("/dev/shm")
# bytes of an input: with 0.6 MB nothing is gained, with 4.9 MB a call takes half the time
LEAST = 2**20


@dataclass(eq=False)
class Region:
    """A file of `size` bytes, of which the first `backed` have pages. An abandoned call may still
    read a `late` one."""

    name: str
    size: int
    memory: mmap.mmap
    backed: int = 0
    late: bool = False

    def empty(self) -> None:
        self.memory.madvise(mmap.MADV_REMOVE)
        self.backed = 0


class SharedMemory:
    """A worker's regions, with at most `limit` bytes of pages; safe to share between threads.

    The files' names begin with `prefix`; with "" none are made. `register` registers a file, by its
    name and size, with Triton, or raises a ServingError.
    """

    def __init__(self, prefix: str, limit: int, register: Callable[[str, int], None]) -> None:
        self._prefix, self._limit, self._register = prefix, limit, register
        self._lock = threading.Lock()
        self._regions: set[Region] = set()
        self._free: list[Region] = []

    def write(self, inputs: Sequence[Tensor]) -> dict[str, Region]:
        """Write each large input into a region while there is room. Return the regions by the
        inputs' names."""
        written = {}
        for tensor in inputs:
            size = len(tensor.data)
            if self._prefix and LEAST <= size <= self._limit and (region := self._lend(size)):
                region.memory[:size] = tensor.data
                written[tensor.name] = region
        return written

    def give_back(self, regions: Iterable[Region], late: bool = False) -> None:
        """Free the regions for other calls. If `late`, their call was abandoned: their pages stay,
        because Triton may still read them, and would die if they were gone and /dev/shm were
        full."""
        with self._lock:
            for region in self._regions.intersection(regions):
                region.late = region.late or late
                self._free.append(region)

    def forget(self, regions: Iterable[Region]) -> None:
        """Drop all regions. Triton does not know these `regions`, so it was restarted."""
        with self._lock:
            if not self._regions.isdisjoint(regions):
                self._regions.clear()
                self._free.clear()

    def trim(self) -> None:
        """Return the pages of free regions to the system."""
        with self._lock:
            for region in self._free:
                if not region.late:
                    region.empty()

    def remove_files(self, pid: int | str = "*") -> None:
        """Remove the files of a worker that has ended. Triton still maps them, so free their pages
        first."""
        for path in FOLDER.glob(f"{self._prefix}-{pid}-*") if self._prefix else ():
            with contextlib.suppress(OSError, ValueError), path.open("r+b") as file:
                mmap.mmap(file.fileno(), 0).madvise(mmap.MADV_REMOVE)
            path.unlink(missing_ok=True)

    def _lend(self, size: int) -> Region | None:
        """Return a region for `size` bytes, None if there is no room or no Triton."""
        try:
            return self._reuse(size) or self._make(size)
        except FileNotFoundError:  # Triton has ended, and `serve` has removed its files
            self.forget(set(self._regions))
        except (OSError, ServingError):
            pass
        return None

    def _reuse(self, size: int) -> Region | None:
        with self._lock:
            fitting = [region for region in self._free if region.size >= size]
            if not fitting:
                return None
            region = min(fitting, key=lambda region: (region.size, -region.backed))
            self._back(region, size)
            self._free.remove(region)
            return region

    def _make(self, size: int) -> Region:
        name, length = (
            f"{self._prefix}-{os.getpid()}-{secrets.token_hex(8)}",
            1 << (size - 1).bit_length(),
        )
        with open(FOLDER / name, "x+b", opener=partial(os.open, mode=0o600)) as file:
            file.truncate(length)
            region = Region(name, length, mmap.mmap(file.fileno(), length))
        try:
            with self._lock:
                self._back(region, size)
                self._regions.add(region)
            self._register(name, length)
        except (OSError, ServingError):
            with self._lock:
                self._regions.discard(region)
            region.empty()
            (FOLDER / name).unlink(missing_ok=True)
            raise
        return region

    def _back(self, region: Region, size: int) -> None:
        """Reserve pages for `size` bytes. Writing without them could end the process (SIGBUS)."""
        if size <= region.backed:
            return
        if sum(other.backed for other in self._regions) - region.backed + size > self._limit:
            raise OSError(errno.ENOSPC, "regions have as many pages as they may")
        with (FOLDER / region.name).open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        region.backed = size
