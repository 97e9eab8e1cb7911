"""Model archives: unpacked as the platform unpacks them, and found in the folder that stands for S3."""

import shutil
import tarfile
import zlib
from pathlib import Path


class BadArchive(Exception):
    """It cannot be unpacked; the message says why."""


def unpack(archive: Path, folder: Path) -> None:
    """A tar, packed or not, into a new folder. No entry leaves it, and devices and foreign owners are not taken over
    (tarfile's "data" filter, PEP 706). Raises BadArchive, and leaves nothing then."""
    folder.mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as err:
        shutil.rmtree(folder, ignore_errors=True)
        reason = str(err).splitlines()[0].rstrip(":") if str(err) else type(err).__name__
        raise BadArchive(f"{archive.name} cannot be unpacked: {reason}") from err


def find(folder: Path, name: str) -> Path | None:
    """A file by its path below a folder, as S3 has it by its key; None where there is none."""
    path = folder / name.lstrip("/")
    inside = ".." not in Path(name).parts and path.resolve().is_relative_to(folder.resolve())
    return path if inside and path.is_file() else None


def size_of(folder: Path) -> int:
    """Bytes of all files."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
