"""Keeps models that were unpacked from archives or fetched from a bucket, each in its own folder.
If SERVE_RUN_DIR is set, the folders survive a restart."""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from serving.host.files import digest
from serving.repository.unpacking import size_of

# A function that writes a model into a new folder, its first argument. It may write temporary files
# into the folder's parent. Its second argument is a function `take`: it calls take(size) before it
# writes files of `size` bytes in total, and take(-size) after it has removed them.
Write = Callable[[Path, Callable[[int], None]], None]


class Cache:
    """A cache of model folders in `root`, with at most `most` bytes in total (0: half of the sum of
    the cache's size and the free disk space at startup). The least recently used folders are
    removed first. The folders of loaded models, which `served` returns, are never removed.
    Thread-safe, but only one thread at a time may use a key."""

    def __init__(self, root: Path, most: int, served: Callable[[], Collection[Path]]) -> None:
        self._root = root
        self._served = served
        self._lock = threading.Lock()
        self._in_use: set[Path] = set()
        root.mkdir(parents=True, exist_ok=True)
        for unfinished in root.glob(".*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        folders = sorted(root.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        # the size of each folder in bytes, ordered from the least to the most recently used
        self._sizes = {folder: size_of(folder) for folder in folders}
        available = shutil.disk_usage(root).free + sum(self._sizes.values())
        self._most = most or available // 2

    @contextmanager
    def folder(self, key: str, write: Write) -> Iterator[Path]:
        """Yield the folder of the model with this key. The folder is not removed before the `with`
        block ends. If it does not exist, call `write` to create it. Raise the errors of `write`, or
        OSError."""
        folder = self._root / digest(key)
        with self._lock:
            self._in_use.add(folder)
            if folder in self._sizes:
                self._sizes[folder] = self._sizes.pop(folder)  # move it to the end
        try:
            if folder.is_dir():
                os.utime(folder)  # a restart orders the folders by this time
            else:
                self._write(folder, write)
            yield folder
        finally:
            with self._lock:
                self._in_use.discard(folder)

    def _write(self, folder: Path, write: Write) -> None:
        """Create the folder, which exists only once `write` has succeeded."""
        unfinished = folder.with_name(f".{folder.name}")
        with self._lock:
            self._sizes[folder] = 0
        try:
            write(unfinished / "model", partial(self._take, folder))
            (unfinished / "model").rename(folder)
        except BaseException:
            with self._lock:
                del self._sizes[folder]
            raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)

    def _take(self, folder: Path, size: int) -> None:
        """Add `size`, which may be negative, to the size of the folder. If there is no space for
        it, remove other folders. If that would not be enough, remove no folder and raise
        OSError."""
        with self._lock:
            self._sizes[folder] += size
            if self._has_space(size):
                return
            used = {*self._in_use, *self._served()}
            unused = [other for other in self._sizes if not _contains_any(other, used)]
            removable = sum([self._sizes[other] for other in unused])
            if self._has_space(size, removable):
                for other in unused:
                    shutil.rmtree(other, ignore_errors=True)
                    del self._sizes[other]
                    if self._has_space(size):
                        return
        reason = f"the model needs {size} more bytes than SERVE_UNPACKED_MB allows or the disk has"
        raise OSError(errno.ENOSPC, reason)

    def _has_space(self, size: int, removed: int = 0) -> bool:
        """Return whether there would be space for `size` bytes, which are already counted but not
        yet written, if other folders with `removed` bytes were removed."""
        free = shutil.disk_usage(self._root).free + removed
        total = sum(self._sizes.values()) - removed
        return size <= free and total <= self._most


def _contains_any(folder: Path, paths: Collection[Path]) -> bool:
    return any(path.is_relative_to(folder) for path in paths)
