"""What all gunicorn workers know of the loaded archives: one small file each, and the locks that order their use.

A file says what Triton does not: the platform's name and URL of a model, and its folder. It counts as long as the
tritonserver runs that it was written for, which the supervisor's status file names.
"""

import fcntl
import json
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from serving.errors import TritonTimeout, TritonUnavailable
from serving.host.files import digest, replace_file, try_lock
from serving.host.status import ProcessStatus, read_tritonserver

LOADING, READY, UNLOADING = "loading", "ready", "unloading"
PAUSE = 0.02


@dataclass(frozen=True)
class LoadedModel:
    """An archive: the platform's `name` and `url`, the Target-Model `target`, Triton's name for it, the model's
    `folder`, the names of the `parts` of an ensemble, its `state` here, the bytes it was thought to take, an id of
    this load, when it began (time.monotonic), and the tritonserver's id."""

    name: str
    url: str
    target: str
    triton_name: str
    folder: str
    parts: list[str]
    state: str
    estimate: int
    load: str
    began: float
    server: str


class LoadedModels:
    """The files in `folder`; safe to share between threads and processes."""

    def __init__(self, folder: Path, status_file: Path) -> None:
        self.folder, self._status_file = folder, status_file

    def server(self) -> str:
        """The running tritonserver, told from all before it; raises TritonUnavailable when none runs."""
        process = self._tritonserver()
        return f"{process.starts}-{process.pid}"

    def pid(self) -> int:
        """The running tritonserver's process id."""
        return self._tritonserver().pid or 0

    def _tritonserver(self) -> ProcessStatus:
        process = read_tritonserver(self._status_file)
        if process.pid is None:
            raise TritonUnavailable("tritonserver is being started (again): try again shortly")
        return process

    def read(self, name: str) -> LoadedModel | None:
        """The record of the platform's model of that name; None when there is none of the running tritonserver."""
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
        replace_file(self._file(model.name), json.dumps(asdict(model)).encode())
        replace_file(self._alias(model.target), model.name.encode())

    def remove(self, model: LoadedModel) -> None:
        self._alias(model.target).unlink(missing_ok=True)
        self._file(model.name).unlink(missing_ok=True)

    def _file(self, name: str) -> Path:
        return self.folder / f"{digest(name)}.json"

    def _alias(self, target: str) -> Path:
        return self.folder / f"{digest(target)}.target"

    def changing(self, name: str, seconds: float) -> AbstractContextManager[None]:
        """While one loads or unloads a model nobody else does either with it."""
        return self._lock(f"change {name}", fcntl.LOCK_EX, seconds)

    def using(self, name: str, seconds: float = 1.0) -> AbstractContextManager[None]:
        """While a call uses a model nobody unloads it."""
        return self._lock(f"use {name}", fcntl.LOCK_SH, seconds)

    def unused(self, name: str, seconds: float) -> AbstractContextManager[None]:
        """Waits until no call uses the model, and lets none begin; raises TritonTimeout."""
        return self._lock(f"use {name}", fcntl.LOCK_EX, seconds)

    def is_changing(self, name: str) -> bool:
        """Whether somebody loads or unloads it: a worker that was killed may have left its record."""
        with self._lock_file(f"change {name}").open("a") as file:
            return not try_lock(file.fileno(), fcntl.LOCK_EX)

    @contextmanager
    def _lock(self, what: str, kind: int, seconds: float) -> Iterator[None]:
        """A lock belongs to the open file: closing it, or the end of its process, frees the lock."""
        deadline = time.monotonic() + seconds
        with self._lock_file(what).open("a") as file:
            while not try_lock(file.fileno(), kind):
                if time.monotonic() > deadline:
                    raise TritonTimeout(f"the model is still in use after {seconds:g} s; try again")
                time.sleep(PAUSE)
            yield

    def _lock_file(self, what: str) -> Path:
        """Empty, and kept until the next start: to remove it would take it from another who waits for it."""
        return self.folder / f"{digest(what)}.lock"


def _read(file: Path) -> LoadedModel | None:
    try:
        return LoadedModel(**json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None
