"""What a killed `serve` leaves in /dev/shm, which outlives it: a pod's volume, a host's own. Standard library only.

As long as a `serve` lives it locks a file there, named by the prefix of what it and its processes make.
"""

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path

from serving.host.files import try_lock

FOLDER = Path("/dev/shm")
LOCK = "lock-"
PREFIX = re.compile(r"serve-[0-9a-f]{16}")  # that new_prefix makes: another program's file named lock-… says nothing


def new_prefix() -> str:
    return f"serve-{secrets.token_hex(8)}"


@contextlib.contextmanager
def held(prefix: str, folder: Path = FOLDER) -> Iterator[None]:
    """Nobody removes what has that prefix, inside the context; and what others have left is removed before."""
    for lock in folder.glob(f"{LOCK}*"):
        left = lock.name.removeprefix(LOCK)
        if not PREFIX.fullmatch(left):
            continue
        with contextlib.suppress(OSError), lock.open("r+b") as file:
            if try_lock(file.fileno(), fcntl.LOCK_EX):
                _remove(left, folder)
    with contextlib.ExitStack() as locked:
        with contextlib.suppress(OSError):  # a full or missing /dev/shm has its own warning
            descriptor = os.open(folder / f".{prefix}", os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
            locked.callback(os.close, descriptor)
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            (folder / f".{prefix}").rename(folder / f"{LOCK}{prefix}")  # by that name it is always locked
            locked.callback(_remove, prefix, folder)
        yield


def _remove(prefix: str, folder: Path) -> None:
    for left in (*folder.glob(f"{prefix}*"), folder / f"{LOCK}{prefix}"):
        with contextlib.suppress(OSError):
            left.unlink()
