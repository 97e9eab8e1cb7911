"""The repository of on-demand models: a folder of model folders and archives, found by name.

A model's name is its path in the repository, for an archive without `.tar.gz`. A model folder is
used where it is. An archive is unpacked into a folder of its own, which is kept until the disk
space for unpacked archives is used up.
"""

import errno
import os
import shutil
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from serving.host.files import digest
from serving.repository.layout import is_model, is_name
from serving.repository.locate_archive import Archive, archive_in, model_in
from serving.repository.paths import is_nameable, real_path
from serving.repository.staging import signature
from serving.repository.unpacking import BadArchive, size_of, unpack

ARCHIVE = ".tar.gz"
MOST_LISTED = 1_000  # models in a list, and folders that are searched for them


@dataclass(frozen=True)
class Found:
    """A model that is in the repository: its name, and its folder or its archive."""

    name: str
    path: Path

    def signature(self) -> str:
        """Return a fingerprint that changes whenever the model changes, or "" if it is gone. Raise
        OSError."""
        if self.path.is_dir():
            return signature(self.path)
        try:
            status = self.path.stat()
        except FileNotFoundError:
            return ""
        return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


class FolderSource:
    """The models in the folder `root`. Archives are unpacked into `unpacked`, which may have `most`
    bytes. `served` returns the folders of all models that are loaded. Thread-safe."""

    def __init__(
        self, root: Path, unpacked: Path, most: int, served: Callable[[], Collection[Path]]
    ) -> None:
        self.root = real_path(root)
        self._cache = UnpackedArchives(unpacked, most, served)

    def find(self, name: str) -> Found | None:
        """Return the model called `name`, or None if there is none. Raise OSError."""
        if not is_nameable(name) or any(map(_is_hidden, name.split("/"))):
            return None
        path = self.root / name
        try:
            if is_name(path.name) and path.is_dir() and is_model(path):
                return Found(name, path)
            archive = path.with_name(path.name + ARCHIVE)
            if archive.is_file():
                return Found(name, archive)
            self.root.stat()  # raises FileNotFoundError if the whole repository is away
            return None
        except OSError as err:
            if err.errno == errno.ENAMETOOLONG:
                return None
            raise

    @contextmanager
    def archive(self, found: Found) -> Iterator[Archive]:
        """Yield the model, unpacked. It is not removed inside the `with` block. Raise ConfigError,
        BadArchive or OSError."""
        path = real_path(found.path, self.root)
        if path.is_dir():
            yield model_in(found.path, self.root)
            return
        with self._cache.unpacked(found) as folder:
            yield archive_in(folder, real_path(folder))

    def names(self) -> list[str]:
        """Return the names of the first MOST_LISTED models. Raise OSError."""
        names: list[str] = []
        pending = [self.root]
        for _ in range(MOST_LISTED):
            if not pending:
                break
            for path in sorted(pending.pop().iterdir()):
                name = str(path.relative_to(self.root))
                if _is_hidden(path.name):
                    continue
                if name.endswith(ARCHIVE) and path.is_file():
                    names.append(plain_name(name))
                elif is_name(path.name) and path.is_dir():
                    if is_model(path):
                        names.append(name)
                    elif not path.is_symlink():  # links could lead in circles
                        pending.append(path)
        return sorted(set(names))[:MOST_LISTED]


def plain_name(name: str) -> str:
    """Return the name of the model that a caller calls `name`, which may end in .tar.gz."""
    return name.removesuffix(ARCHIVE)


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__"))


class UnpackedArchives:
    """Folders of unpacked archives in `root`. Together they have at most `most` bytes (0: half of
    what is free): the least recently used ones are removed first. They survive a restart.
    Thread-safe."""

    def __init__(self, root: Path, most: int, served: Callable[[], Collection[Path]]) -> None:
        self._root, self._served = root, served
        self._lock = threading.Lock()
        self._in_use: set[Path] = set()
        root.mkdir(parents=True, exist_ok=True)
        for unfinished in root.glob(".*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        folders = sorted(root.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        # the bytes of each folder, ordered from the least to the most recently used
        self._sizes = {folder: size_of(folder) for folder in folders}
        self._most = most or (shutil.disk_usage(root).free + sum(self._sizes.values())) // 2

    @contextmanager
    def unpacked(self, found: Found) -> Iterator[Path]:
        """Yield the folder of the unpacked archive, which is not removed inside the `with` block.
        Raise BadArchive or OSError."""
        state = found.signature()
        folder = self._root / digest(f"{found.name} {state}")
        with self._lock:
            self._in_use.add(folder)
            if folder in self._sizes:
                self._sizes[folder] = self._sizes.pop(folder)
        try:
            if folder.is_dir():
                os.utime(folder)
            else:
                self._unpack(found, state, folder)
            yield folder
        finally:
            with self._lock:
                self._in_use.discard(folder)

    def _unpack(self, found: Found, state: str, folder: Path) -> None:
        unfinished = folder.with_name(f".{folder.name}")
        with self._lock:
            self._sizes[folder] = 0
        try:
            unpack(found.path, unfinished, partial(self._take, folder))
            if found.signature() != state:
                raise BadArchive(f"{found.path.name} was changed while it was unpacked")
            unfinished.rename(folder)
        except BaseException:
            shutil.rmtree(unfinished, ignore_errors=True)
            with self._lock:
                del self._sizes[folder]
            raise

    def _take(self, folder: Path, size: int) -> None:
        """Count `size` more bytes for the folder, and remove others to make space. Raise OSError if
        that is not possible."""
        with self._lock:
            self._sizes[folder] += size
            if sum(self._sizes.values()) <= self._most:
                return
            roots = {*self._in_use, *self._served()}
            for old in [old for old in self._sizes if not _is_used(old, roots)]:
                shutil.rmtree(old, ignore_errors=True)
                del self._sizes[old]
                if sum(self._sizes.values()) <= self._most:
                    return
        reason = f"unpacked archives may have {self._most} bytes in all (SERVE_UNPACKED_MB)"
        raise OSError(errno.ENOSPC, reason)


def _is_used(folder: Path, used: Collection[Path]) -> bool:
    return any(path.is_relative_to(folder) for path in used)
