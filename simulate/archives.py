"""Unpacks model archives as the platform does, and finds them in the folder that stands for S3."""

import shutil
import tarfile
import zlib
from pathlib import Path


class BadArchive(Exception):
    """An archive cannot be unpacked; the message says why."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpacks a tar archive, compressed or not, into a new folder. tarfile's "data" filter (PEP 706) refuses devices
    and entries outside of the folder, and ignores owners. Raises BadArchive and removes the folder then."""
    folder.mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as err:
        shutil.rmtree(folder, ignore_errors=True)
        reason = str(err).splitlines()[0].rstrip(":") if str(err) else type(err).__name__
        raise BadArchive(f"{archive.name} cannot be unpacked: {reason}") from err


def find(folder: Path, name: str) -> Path | None:
    """The file with that path below the folder, as S3 finds an object by its key; None when there is none."""
    path = folder / name.lstrip("/")
    inside = ".." not in Path(name).parts and path.resolve().is_relative_to(folder.resolve())
    return path if inside and path.is_file() else None


def size_of(folder: Path) -> int:
    """The size of all files in the folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
