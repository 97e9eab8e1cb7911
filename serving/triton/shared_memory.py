"""Passes large inputs to Triton in files in /dev/shm, because sending them over gRPC takes longer.

Such a file is called a region. It is registered with Triton before its first use, reused for many
calls, and never unregistered (quirks.py). These methods change the state of a region:

    new or free    --write---------> lent
    lent           --give_back-----> free       Triton has answered, or the call was never sent
    lent           --mark_waiting--> waiting    the caller gave up, and Triton may still read it
    waiting        --give_back-----> free       Triton has answered
    free           --trim----------> free       its pages are returned to the system
    any of these   --forget--------> gone       tritonserver was restarted

The name of a file is never reused, so that Triton cannot mistake an old region for a new one.
`serve` removes the files when tritonserver ends.
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
# The smallest size in bytes of an input that is passed in a region. At 0.6 MB, this is not faster
# than a message; at 4.9 MB, a call takes half the time.
LEAST = 2**20
# The maximum number of a model's regions whose callers gave up while Triton may still read them. If
# there are this many, the model hangs or is overloaded, and its next inputs are sent in messages,
# which Triton drops at their deadline. A request usually leaves one or two regions.
MOST_WAITING = 8


@dataclass(eq=False)
class Region:
    """A file of `size` bytes in /dev/shm, whose first `backed` bytes have memory pages. If the
    region is waiting, `waits_for` is the model that may still read it; otherwise it is ""."""

    name: str
    size: int
    memory: mmap.mmap
    backed: int = 0
    is_free: bool = False
    waits_for: str = ""

    def empty(self) -> None:
        """Return the memory pages to the system."""
        self.memory.madvise(mmap.MADV_REMOVE)
        self.backed = 0


class SharedMemory:
    """The regions of one worker, with at most `limit` bytes of memory pages in total. Thread-safe.

    The names of the files begin with `prefix`. If it is "", no files are created, and all inputs
    are sent in messages. `register(name, size)` registers a file with Triton, or raises a
    ServingError.
    """

    def __init__(self, prefix: str, limit: int, register: Callable[[str, int], None]) -> None:
        self._prefix = prefix
        self._limit = limit
        self._register = register
        self._lock = threading.Lock()
        self._regions: set[Region] = set()

    def write(self, model: str, inputs: Sequence[Tensor]) -> dict[str, Region]:
        """Write the large inputs of a call to `model` into regions, as long as there is space.
        Return the regions, keyed by the names of the inputs. Write nothing if MOST_WAITING of the
        model's regions are waiting."""
        written: dict[str, Region] = {}
        with self._lock:
            waiting = sum(region.waits_for == model for region in self._regions)
        if waiting >= MOST_WAITING or not self._prefix:
            return written
        for tensor in inputs:
            size = len(tensor.data)
            if LEAST <= size <= self._limit:
                region = self._lend(size)
                if region:
                    region.memory[:size] = tensor.data
                    written[tensor.name] = region
        return written

    def mark_waiting(self, model: str, regions: Iterable[Region]) -> None:
        """Mark lent regions as waiting, because their caller left before the model answered."""
        with self._lock:
            for region in regions:
                region.waits_for = model

    def give_back(self, regions: Iterable[Region]) -> None:
        """Free the regions for other calls. Call this only once for each `write`: a region that is
        freed twice could be lent to two calls, which would overwrite each other's inputs."""
        with self._lock:
            for region in regions:
                region.is_free = True
                region.waits_for = ""

    def forget(self, regions: Iterable[Region]) -> None:
        """Drop all regions if one of `regions` is among them. Called if Triton does not know these
        `regions`, which means that it has been restarted."""
        with self._lock:
            if not self._regions.isdisjoint(regions):
                self._regions.clear()

    def trim(self) -> None:
        """Return the memory pages of free regions to the system."""
        with self._lock:
            for region in self._regions:
                if region.is_free:
                    region.empty()

    def remove_files(self, pid: int | str = "*") -> None:
        """Remove the files of the worker `pid`, which has ended, or by default of all workers.
        Free their memory pages first, because Triton still has the files mapped."""
        if not self._prefix:
            return
        for path in FOLDER.glob(f"{self._prefix}-{pid}-*"):
            with contextlib.suppress(OSError, ValueError), path.open("r+b") as file:
                mmap.mmap(file.fileno(), 0).madvise(mmap.MADV_REMOVE)
            path.unlink(missing_ok=True)

    def _lend(self, size: int) -> Region | None:
        """Return a region for `size` bytes. Return None if that fails, for example because there is
        no space or tritonserver has ended."""
        try:
            return self._reuse(size) or self._make(size)
        except FileNotFoundError:  # Triton has ended, and `serve` has removed its files
            self.forget(set(self._regions))
        except (OSError, ServingError):
            pass
        return None

    def _reuse(self, size: int) -> Region | None:
        """Lend the smallest free region that is large enough. Return None if there is none. Raise
        OSError as `_reserve_pages` does."""
        with self._lock:
            fitting = [region for region in self._regions if region.is_free and region.size >= size]
            if not fitting:
                return None
            # of the smallest, prefer one that already has its memory pages
            region = min(fitting, key=lambda region: (region.size, -region.backed))
            self._reserve_pages(region, size)
            region.is_free = False
            return region

    def _make(self, size: int) -> Region:
        """Create a region for `size` bytes, register it with Triton, and lend it. Raise OSError or
        a ServingError."""
        name = f"{self._prefix}-{os.getpid()}-{secrets.token_hex(8)}"
        length = 1 << (size - 1).bit_length()  # the next power of two, for inputs of similar sizes
        with open(FOLDER / name, "x+b", opener=partial(os.open, mode=0o600)) as file:
            file.truncate(length)
            region = Region(name, length, mmap.mmap(file.fileno(), length))
        try:
            with self._lock:
                self._reserve_pages(region, size)
                self._regions.add(region)
            self._register(name, length)
        except (OSError, ServingError):
            with self._lock:
                self._regions.discard(region)
            region.empty()
            (FOLDER / name).unlink(missing_ok=True)
            raise
        return region

    def _reserve_pages(self, region: Region, size: int) -> None:
        """Reserve memory pages for the first `size` bytes of a region. If /dev/shm were full,
        writing without reserved pages would kill the process (SIGBUS). The caller holds the lock.
        Raise OSError if /dev/shm is full or the regions would exceed the limit."""
        if size <= region.backed:
            return
        others = sum(other.backed for other in self._regions if other is not region)
        if others + size > self._limit:
            raise OSError(errno.ENOSPC, "regions have as many pages as they may")
        with (FOLDER / region.name).open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, size)
        region.backed = size
