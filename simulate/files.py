"""Model archives, and the folder that stands for S3: s3://BUCKET/KEY is FOLDER/BUCKET/KEY."""

import re
import shutil
import tarfile
import zlib
from pathlib import Path

from serving.host.files import replace_file
from simulate.errors import ValidationError

_LOCATION = re.compile(r"s3://([^/]+)/(.+)")


class BadArchive(Exception):
    """An archive cannot be unpacked; the message says why."""


def unpack(archive: Path, folder: Path) -> None:
    """Unpack a tar archive, compressed or not, into a new folder. Raise BadArchive, and remove the folder then.

    tarfile's "data" filter (PEP 706) refuses devices and entries outside of the folder, and ignores owners.
    """
    folder.mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(folder, filter="data")
    except (tarfile.TarError, zlib.error, OSError, EOFError, ValueError) as err:
        shutil.rmtree(folder, ignore_errors=True)
        reason = str(err).splitlines()[0].rstrip(":") if str(err) else type(err).__name__
        raise BadArchive(f"{archive.name} cannot be unpacked: {reason}") from err


def find(folder: Path, name: str) -> Path | None:
    """Return the file with that path below the folder, as S3 finds an object by its key; None if there is none."""
    path = folder / name.lstrip("/")
    inside = ".." not in Path(name).parts and path.resolve().is_relative_to(folder.resolve())
    return path if inside and path.is_file() else None


def size_of(folder: Path) -> int:
    """Return the size of all files in the folder, in bytes."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def find_object(root: Path, location: str) -> Path | None:
    """Return an object's file; None if there is none. Raise ValidationError."""
    return find(root, _key(location))


def write_object(root: Path, location: str, data: bytes) -> None:
    """Write an object atomically, so that nobody reads an incomplete one."""
    path = root / _key(location)
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)


def _key(location: str) -> str:
    match = _LOCATION.fullmatch(location)
    if not match or ".." in Path(location).parts:
        raise ValidationError(f"{location!r} is not the location of an object in S3; use s3://BUCKET/KEY")
    return f"{match[1]}/{match[2]}"
