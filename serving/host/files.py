"""Files that several processes share, and the one in which process 1 reports its processes to the
front."""

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


def replace_file(file: Path, data: bytes, mode: int = 0o666) -> None:
    """Write the whole file in one step: a reader sees the old one or the new one. `mode` is subject
    to the umask."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        temporary.touch(mode, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def digest(name: str) -> str:
    """Return a name of a file for any name."""
    return hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:32]


@dataclass(frozen=True)
class ProcessStatus:
    """`pid` is None while the process does not run; `last_exit` says in words how it ended the last
    time."""

    pid: int | None = None
    starts: int = 0
    state: str = "unknown"
    last_exit: str = ""


def write_status(file: Path, stage: str, processes: Mapping[str, ProcessStatus]) -> None:
    """Write the processes' status. Raise OSError."""
    status = {
        "stage": stage,
        "processes": {name: asdict(process) for name, process in processes.items()},
    }
    replace_file(file, json.dumps(status).encode())


def read_status(file: Path) -> dict[str, ProcessStatus]:
    """Return the processes by name; empty until process 1 writes them, and if the file cannot be
    read."""
    try:
        processes = json.loads(file.read_bytes())["processes"]
    except (OSError, ValueError):
        return {}
    return {name: ProcessStatus(**process) for name, process in processes.items()}


def read_tritonserver(file: Path) -> ProcessStatus:
    """Return tritonserver's status, that of a process that never started if there is none."""
    return read_status(file).get("tritonserver", ProcessStatus())
