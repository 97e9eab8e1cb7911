"""Files that several processes share."""

import fcntl
import hashlib
import os
import threading
from pathlib import Path


def replace_file(file: Path, data: bytes, mode: int = 0o666) -> None:
    """Writes the whole file in one step: a reader sees the old one or the new one. `mode` is subject to the umask."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        temporary.touch(mode, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def digest(name: str) -> str:
    """A name as a file's name."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def try_lock(descriptor: int, kind: int) -> bool:
    """Whether an open file could be locked at once (LOCK_SH or LOCK_EX of fcntl). Closing it frees the lock."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
