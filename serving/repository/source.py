"""Finds models by name in the repository of on-demand mode.

This module defines the interface `Source`, and implements it for a folder that contains model
folders and archives; bucket.py implements it for a bucket. A model's name is the path of its
folder, or of its archive without `.tar.gz`. A model folder on disk is used where it is. An archive
is unpacked into the cache.
"""

import errno
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path

from serving.errors import ConfigError, LoadFailed, ModelNotReady
from serving.repository.cache import Cache
from serving.repository.layout import is_model, is_name
from serving.repository.locate_archive import Archive, archive_in, model_in
from serving.repository.paths import is_nameable, real_path
from serving.repository.staging import signature
from serving.repository.unpacking import BadArchive, unpack

ARCHIVE = ".tar.gz"
MOST_LISTED = 1_000  # the maximum number of models listed, and of folders searched for them


class Unreachable(ModelNotReady, code=ModelNotReady.code):
    """Raised if the repository cannot be read. The message says why."""


@dataclass(frozen=True)
class Found:
    """A model that is in the repository: its name, its folder or archive, and a fingerprint that
    changes whenever the model changes."""

    name: str
    url: str
    signature: str


class Source(ABC):
    """A repository in which models can be found by name. Thread-safe."""

    def __init__(self, cache: Cache) -> None:
        self._cache = cache

    @abstractmethod
    def find(self, name: str) -> Found | None:
        """Return the model called `name`, or None if there is none. Raise Unreachable."""

    @abstractmethod
    def sizes(self) -> dict[str, int | None]:
        """Return the names of at most MOST_LISTED models, each with the size of its archive or
        folder in bytes, or None if only reading the folder would show the size. Raise
        Unreachable."""

    @abstractmethod
    def write(self, found: Found, folder: Path, take: Callable[[int], None]) -> None:
        """Write the model into a new folder. Call `take` with the sizes of its files (cache.py).
        Raise BadArchive, OSError or Unreachable. The OSError is a FileNotFoundError if an object in
        a bucket no longer exists."""

    @contextmanager
    def archive(self, found: Found) -> Iterator[Archive]:
        """Yield the model in a local folder, which is not removed before the `with` block ends.
        Raise ConfigError, LoadFailed, BadArchive, OSError or Unreachable. If the folder is in the
        cache, a ConfigError or LoadFailed, also one that the `with` block raises, becomes a
        LoadFailed that names the archive instead of the folder."""
        key = f"{found.name} {found.signature}"
        with self._cache.folder(key, partial(self._write_unchanged, found)) as folder:
            try:
                yield archive_in(folder, real_path(folder))
            except (ConfigError, LoadFailed) as err:
                text = str(err).replace(str(folder), Path(found.url).name)
                raise LoadFailed(text) from err

    def _write_unchanged(self, found: Found, folder: Path, take: Callable[[int], None]) -> None:
        """Call `write`. Raise BadArchive if the model was changed meanwhile."""
        try:
            self.write(found, folder, take)
            is_unchanged = self.find(found.name) == found
        except FileNotFoundError:
            is_unchanged = False
        if not is_unchanged:
            raise BadArchive(f"{found.url} was changed while it was read")


@contextmanager
def _translated_errors() -> Iterator[None]:
    """Raise Unreachable instead of OSError. Used as a decorator."""
    try:
        yield
    except OSError as err:
        raise Unreachable(f"the model repository cannot be read: {err}; try again") from err


class FolderSource(Source):
    """The models in the folder `root`. Archives are unpacked into the cache."""

    def __init__(self, root: Path, cache: Cache) -> None:
        super().__init__(cache)
        self.root = real_path(root)

    @_translated_errors()
    def find(self, name: str) -> Found | None:
        if not may_be_found(name):
            return None
        path = self.root / name
        archive = path.with_name(path.name + ARCHIVE)
        try:
            if is_name(path.name) and path.is_dir() and is_model(path):
                return Found(name, str(path), signature(path))
            if archive.is_file():
                return Found(name, str(archive), _signature_of_archive(archive))
        except OSError as err:
            if err.errno != errno.ENAMETOOLONG:  # no file can have such a name
                raise
        self.root.stat()  # raises FileNotFoundError if the repository itself is missing
        return None

    @contextmanager
    def archive(self, found: Found) -> Iterator[Archive]:
        path = Path(found.url)
        real = real_path(path, self.root)  # raises ConfigError if the path leads out of the root
        if real.is_dir():
            yield model_in(path, self.root)
        else:
            with super().archive(found) as archive:
                yield archive

    def write(self, found: Found, folder: Path, take: Callable[[int], None]) -> None:
        unpack(Path(found.url), folder, take)

    @_translated_errors()
    def sizes(self) -> dict[str, int | None]:
        sizes: dict[str, int | None] = {}
        folders = [self.root]
        for folder in islice(folders, MOST_LISTED):  # the loop itself appends to this list
            for path in sorted(folder.iterdir()):
                name = str(path.relative_to(self.root))
                if _is_hidden(path.name):
                    continue
                if name.endswith(ARCHIVE) and path.is_file():
                    # if names are equal, the folder comes first, and `find` prefers it too
                    sizes.setdefault(plain_name(name), path.stat().st_size)
                elif is_name(path.name) and path.is_dir():
                    if is_model(path):
                        sizes[name] = None
                    elif not path.is_symlink():  # links could lead in circles
                        folders.append(path)
        return dict(sorted(sizes.items())[:MOST_LISTED])


def _signature_of_archive(archive: Path) -> str:
    """Return a fingerprint that changes whenever the file changes. Raise OSError."""
    status = archive.stat()
    return f"{status.st_dev}-{status.st_ino}-{status.st_size}-{status.st_mtime_ns}"


def plain_name(name: str) -> str:
    """Return the name of a model without the ending .tar.gz, which callers may append."""
    return name.removesuffix(ARCHIVE)


def may_be_found(name: str) -> bool:
    """Return whether a repository may contain a model of this name."""
    return is_nameable(name) and not any(map(_is_hidden, name.split("/")))


def _is_hidden(name: str) -> bool:
    return name.startswith((".", "__"))
