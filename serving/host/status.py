"""What the supervisor tells the front and `serve --status` about the processes: one JSON file in the run folder."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from serving.host.files import replace_file


@dataclass(frozen=True)
class ProcessStatus:
    """`pid` is None while the process does not run, `last_exit` is how it ended the last time, in words, `since` when
    it was started, in seconds since 1970."""

    pid: int | None = None
    starts: int = 0
    state: str = "unknown"
    last_exit: str = ""
    since: float | None = None


@dataclass(frozen=True)
class LogError:
    """An error in the log: when, of which process, and its text."""

    time: float
    process: str
    text: str


@dataclass(frozen=True)
class Status:
    """All of it: the supervisor's own process, when it began, where nginx listens, and the last errors."""

    stage: str
    processes: Mapping[str, ProcessStatus]
    pid: int = 0
    since: float = 0.0
    address: tuple[str, int] = ("", 0)
    errors: Sequence[LogError] = ()


def write_status(file: Path, status: Status) -> None:
    """Raises OSError."""
    replace_file(file, json.dumps(asdict(status)).encode())


def read_status(file: Path | None) -> dict[str, ProcessStatus]:
    """The processes by name; empty where nothing supervises, or has not written yet."""
    try:
        return _processes(json.loads(file.read_bytes())) if file else {}
    except FileNotFoundError:
        return {}


def read_tritonserver(file: Path | None) -> ProcessStatus:
    """One that was never started where nothing is said of it."""
    return read_status(file).get("tritonserver", ProcessStatus())


def read_whole_status(file: Path) -> Status:
    """Raises OSError, and others for a file that is none of ours."""
    document = json.loads(file.read_bytes())
    errors = [LogError(**error) for error in document["errors"]]
    address = tuple(document["address"])
    return Status(**document | {"processes": _processes(document), "errors": errors, "address": address})


def _processes(document: Mapping[str, Any]) -> dict[str, ProcessStatus]:
    return {name: ProcessStatus(**process) for name, process in document["processes"].items()}
