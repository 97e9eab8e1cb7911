"""Disks that are full."""

import contextlib
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """A file system of 8 MB in memory; the test is skipped where none can be mounted."""
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, check=False)
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    """The file that takes all that is left."""
    file = folder / "fill"
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filled:
        while True:
            filled.write(bytes(4096))
    return file
