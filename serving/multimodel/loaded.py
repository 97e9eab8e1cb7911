"""What all gunicorn workers know of the loaded archives: one small file each, and the locks that order their use.

A file says what Triton does not: the platform's name and URL of a model, and its folder. It is worth nothing
once the tritonserver that it was written for is gone, which is told from the supervisor's status file.
"""

import fcntl
import hashlib
import json
import os
import struct
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from serving.errors import TritonTimeout, TritonUnavailable

LOADING, READY, UNLOADING = "loading", "ready", "unloading"
PAUSE = 0.02
_FLOCK = "hhqqi4x"  # struct flock: l_type, l_whence, l_start, l_len, l_pid


@dataclass(frozen=True)
class LoadedModel:
    """An archive: the platform's `name` and `url`, the Target-Model `target`, Triton's name for it, the model's
    `folder`, the names of the `parts` of an ensemble, its `state` here, the bytes it was thought to take, an id of
    this load, and the tritonserver's."""

    name: str
    url: str
    target: str
    triton_name: str
    folder: str
    parts: list[str]
    state: str
    estimate: int
    load: str
    server: str


class LoadedModels:
    """The files in `folder`; safe to share between threads and processes."""

    def __init__(self, folder: Path, status_file: Path) -> None:
        self.folder, self._status_file = folder, status_file

    def server(self) -> str:
        """The running tritonserver, told from all before it; raises TritonUnavailable when none runs."""
        process = self._tritonserver()
        return f"{process['starts']}-{process['pid']}"

    def pid(self) -> int:
        """The running tritonserver's process id."""
        return int(self._tritonserver()["pid"])

    def _tritonserver(self) -> dict[str, Any]:
        try:
            process = dict(json.loads(self._status_file.read_text())["processes"]["tritonserver"])
        except (OSError, ValueError, KeyError):
            process = {}
        if not process.get("pid"):
            raise TritonUnavailable("tritonserver is being started (again): try again shortly")
        return process

    def read(self, name: str) -> LoadedModel | None:
        """What is known of the platform's model of that name; None when nothing that is still true."""
        found = _read(self._file(name))
        return found if found and found.server == self.server() else None

    def named(self, target: str) -> LoadedModel | None:
        """The same by the Target-Model header, or by the platform's name."""
        try:
            name = self._alias(target).read_text(encoding="utf-8")
        except OSError:
            name = target
        return self.read(name)

    def all(self) -> list[LoadedModel]:
        """By name."""
        server = self.server()
        found = [model for file in self.folder.glob("*.json") if (model := _read(file)) and model.server == server]
        return sorted(found, key=lambda model: model.name)

    def write(self, model: LoadedModel) -> None:
        """In one step, so that a reader sees the old or the new."""
        _replace(self._file(model.name), json.dumps(asdict(model)))
        _replace(self._alias(model.target), model.name)

    def remove(self, model: LoadedModel) -> None:
        self._alias(model.target).unlink(missing_ok=True)
        self._file(model.name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.folder / f"{digest(name)}.json"

    def _alias(self, target: str) -> Path:
        return self.folder / f"{digest(target)}.target"

    @contextmanager
    def changing(self, name: str, seconds: float) -> Iterator[None]:
        """While a model is loaded or unloaded nobody else does either with it."""
        with self._lock(f"change {name}", fcntl.F_WRLCK, seconds):
            yield

    @contextmanager
    def using(self, name: str, seconds: float = 1.0) -> Iterator[None]:
        """While a call uses a model it is not unloaded."""
        with self._lock(f"use {name}", fcntl.F_RDLCK, seconds):
            yield

    @contextmanager
    def unused(self, name: str, seconds: float) -> Iterator[None]:
        """Once no call uses a model; raises TritonTimeout."""
        with self._lock(f"use {name}", fcntl.F_WRLCK, seconds):
            yield

    def is_changing(self, name: str) -> bool:
        """Whether somebody is at it: a file may be left by a worker that was killed."""
        with self._descriptor() as descriptor:
            return not _try_lock(descriptor, f"change {name}", fcntl.F_WRLCK)

    @contextmanager
    def _lock(self, what: str, kind: int, seconds: float) -> Iterator[None]:
        deadline = time.monotonic() + seconds
        with self._descriptor() as descriptor:
            while not _try_lock(descriptor, what, kind):
                if time.monotonic() > deadline:
                    raise TritonTimeout(f"the model is still in use after {seconds:g} s; try again")
                time.sleep(PAUSE)
            yield

    @contextmanager
    def _descriptor(self) -> Iterator[int]:
        """Of a file description of its own, to which the locks belong; closing it frees them."""
        descriptor = os.open(self.folder / "locks", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            yield descriptor
        finally:
            os.close(descriptor)


def digest(name: str) -> str:
    """A name as a file's name."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


def _try_lock(descriptor: int, what: str, kind: int) -> bool:
    """Locks one byte of the file, far beyond its end, so that any number of locks need one file only."""
    byte = int(digest(what)[:15], 16)
    try:
        fcntl.fcntl(descriptor, fcntl.F_OFD_SETLK, struct.pack(_FLOCK, kind, os.SEEK_SET, byte, 1, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def _read(file: Path) -> LoadedModel | None:
    try:
        return LoadedModel(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def _replace(file: Path, text: str) -> None:
    temporary = file.with_suffix(f".{os.getpid()}-{threading.get_ident()}.new")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)
