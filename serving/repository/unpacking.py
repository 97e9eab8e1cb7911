"""Unpacks archives, with limits on the number and the size of their files. Standard library
only."""

import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path

from serving.repository.paths import MOST_ENTRIES


class BadArchive(Exception):
    """Raised if a model cannot be unpacked, was changed while it was read, or has too many files in
    its bucket. The message says why."""


def size_of(path: Path) -> int:
    """Return the size in bytes of a file, or of all files under a folder. Do not follow links to
    folders."""
    files = filter(Path.is_file, chain([path], path.rglob("*")))
    return sum(file.stat().st_size for file in files)


def unpack(archive: Path, folder: Path, take: Callable[[int], object] = int) -> None:
    """Unpack a tar archive, compressed or not, into a new folder. If that fails, remove the folder
    and raise BadArchive.

    tarfile's "data" filter (PEP 706) rejects devices and entries outside the folder, and ignores
    owners. Before a file is written, `take` (by default a function that does nothing) is called
    with its size in bytes; it raises OSError if there is no space for the file.
    """
    folder.mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, _checked_entries(tar, folder, take), filter="data")
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as err:
        shutil.rmtree(folder, ignore_errors=True)
        text = str(err) or type(err).__name__
        reason = text.splitlines()[0].rstrip(":")
        if isinstance(err, tarfile.ReadError):
            reason += "; make it with tar czf"
        raise BadArchive(f"{archive.name} cannot be unpacked: {reason}") from err


def _checked_entries(
    tar: tarfile.TarFile, folder: Path, take: Callable[[int], object], most: int = MOST_ENTRIES
) -> Iterator[tarfile.TarInfo]:
    """Yield the entries of the archive. Before yielding an entry, call `take` with its size. Raise
    ValueError if there are more than `most` entries, or if an entry is larger than the free space
    on the disk of `folder`."""
    for count, member in enumerate(tar, 1):
        if count > most:
            raise ValueError(f"it has more than {most} files")
        take(member.size)
        free = shutil.disk_usage(folder).free
        if member.size > free:
            raise ValueError(f"'{member.name}' is larger than the {free} bytes free on the disk")
        yield member
