"""What the supervisor tells the front about the processes: one JSON file in the run folder."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from serving.host.files import replace_file


@dataclass(frozen=True)
class ProcessStatus:
    """`pid` is None while the process does not run; `last_exit` says in words how it ended the last time."""

    pid: int | None = None
    starts: int = 0
    state: str = "unknown"
    last_exit: str = ""


def write_status(file: Path, stage: str, processes: Mapping[str, ProcessStatus]) -> None:
    """Raises OSError."""
    status = {"stage": stage, "processes": {name: asdict(process) for name, process in processes.items()}}
    replace_file(file, json.dumps(status).encode())


def read_status(file: Path | None) -> dict[str, ProcessStatus]:
    """Return the processes by name; none when there is no supervisor or it has not written yet."""
    try:
        processes = json.loads(file.read_bytes())["processes"] if file else {}
    except FileNotFoundError:
        return {}
    return {name: ProcessStatus(**process) for name, process in processes.items()}


def read_tritonserver(file: Path | None) -> ProcessStatus:
    """Return tritonserver's status, that of a process that never started if there is none."""
    return read_status(file).get("tritonserver", ProcessStatus())
