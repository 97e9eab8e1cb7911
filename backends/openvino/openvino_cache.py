"""The folder in which OpenVINO keeps a compiled model, for the next start: SERVE_ENGINE_CACHE/openvino/MODEL/VERSION.

OpenVINO finds a file there by the model, the properties, the processor and its own version, and compiles again when the
file is incomplete. A compiled model is code, so it is kept only in folders that nobody else may write to.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

DEFAULT = "/tmp/serve-engines"  # as in serving/settings/table.py
LIMIT_BYTES = 4 << 30  # of all models: in multi-model mode they come and go for as long as the container lives


def root() -> Path:
    """Where the compiled models of this container are."""
    return Path(os.environ.get("SERVE_ENGINE_CACHE") or DEFAULT) / "openvino"


@contextmanager
def opened(model: str, version: str) -> Iterator[Path]:
    """The folder of one version, which no other instance uses meanwhile; OSError when there can be none."""
    folder = root() / quote(model, safe="") / version
    for each in (root().parent, root(), folder.parent, folder):
        own(each)
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        before = blobs(folder)
        yield folder
        _tidy(folder, before)
    finally:
        os.close(handle)


def own(folder: Path) -> None:
    """Makes it; PermissionError for a folder that others may write to."""
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    found = folder.stat()
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written to by others: set SERVE_ENGINE_CACHE to a folder of your own")


def blobs(folder: Path) -> set[Path]:
    """The compiled models below it."""
    return set(folder.rglob("*.blob"))


def _tidy(folder: Path, before: set[Path]) -> None:
    """Marks what was used or, when there is something new, removes what was there of the same version before it and,
    past the limit of all models, the oldest."""
    new = blobs(folder) - before
    for old in before:
        if new:
            old.unlink(missing_ok=True)
        else:
            os.utime(old)
    found = sorted(((path.stat(), path) for path in blobs(root())), key=lambda each: -each[0].st_mtime)
    total = 0
    for stat, path in found:
        total += stat.st_size
        if total > LIMIT_BYTES and path not in new:
            path.unlink(missing_ok=True)
