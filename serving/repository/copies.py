"""Copies of model folders, so that what is served stays as it was when somebody changes the folder. Standard library
only."""

import os
import shutil
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from serving.host.files import digest

LARGEST_COPY = 16 * 2**20  # bytes; a larger file is linked, as it may be as large as the disk
IGNORED = ("__pycache__",)


def signature(folder: Path) -> str:
    """Another one as soon as a file in the folder is another one; "" where there is no folder."""
    try:
        rows = [_row(folder, path) for path in _entries(folder)]
    except FileNotFoundError:  # removed while we looked
        rows = []
    return digest("\n".join(rows)) if rows else ""


def copy(folder: Path, target: Path) -> None:
    """Makes `target` with the same files. One larger than LARGEST_COPY is the same file under another name (a hard
    link), or where that cannot be, as on another file system, a symbolic link. Raises OSError."""
    target.mkdir(parents=True)
    for path in _entries(folder):
        copied = target / path.relative_to(folder)
        if path.is_dir():
            copied.mkdir()
        elif path.stat().st_size > LARGEST_COPY:
            _link(path.resolve(), copied)
        else:
            shutil.copy(path, copied)


def _link(file: Path, target: Path) -> None:
    try:
        target.hardlink_to(file)
    except OSError:
        target.symlink_to(file)


def _row(folder: Path, path: Path) -> str:
    found, name = path.stat(), path.relative_to(folder)
    if path.is_dir():
        return f"{name}/"
    return f"{name} {found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _entries(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """All files and folders in it, the folders first; links are followed, but not in a circle."""
    above = (*above, os.path.realpath(folder))
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in IGNORED or os.path.realpath(path) in above:
            continue
        with suppress(FileNotFoundError):
            if path.is_dir() or path.stat():
                yield path
        if path.is_dir():
            yield from _entries(path, above)
