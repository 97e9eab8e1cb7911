"""Reads and writes files that several processes share, such as the one in which process 1 reports
the status of all processes."""

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path


def replace_file(file: Path, data: bytes, mode: int = 0o666) -> None:
    """Replace the file's content with `data` atomically, so that a reader sees either the old or
    the new content. The umask applies to `mode`. Raise OSError if the file cannot be written."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}-{threading.get_ident()}")
    try:
        temporary.touch(mode, exist_ok=True)
        temporary.write_bytes(data)
        temporary.replace(file)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


def digest(text: str) -> str:
    """Return a hash of `text`, which may contain any characters. The hash is safe as a file
    name."""
    data = text.encode("utf-8", "surrogatepass")
    return hashlib.sha256(data).hexdigest()[:32]


@dataclass(frozen=True)
class ProcessStatus:
    """The status of a process. `pid` is None if the process is not running. `last_exit` describes
    how it ended the last time."""

    pid: int | None = None
    starts: int = 0
    state: str = "unknown"
    last_exit: str = ""


def write_status(file: Path, stage: str, processes: Mapping[str, ProcessStatus]) -> None:
    """Write the server's `stage`, and the status of its processes, keyed by name. Raise OSError if
    the file cannot be written."""
    status = {
        "stage": stage,
        "processes": {name: asdict(process) for name, process in processes.items()},
    }
    replace_file(file, json.dumps(status).encode())


def read_status(file: Path) -> dict[str, ProcessStatus]:
    """Return the status of each process, keyed by name. Return {} if process 1 has not written the
    file yet, or if it cannot be read."""
    try:
        processes = json.loads(file.read_bytes())["processes"]
    except (OSError, ValueError):
        return {}
    return {name: ProcessStatus(**process) for name, process in processes.items()}


def read_tritonserver(file: Path) -> ProcessStatus:
    """Return tritonserver's status, or the default ProcessStatus if it is unknown."""
    return read_status(file).get("tritonserver", ProcessStatus())
