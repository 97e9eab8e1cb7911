"""What the supervisor tells the front about the processes: one JSON file in the run folder."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from serving.host.files import replace_file


@dataclass(frozen=True)
class ProcessStatus:
    """`pid` is None while the process does not run, `last_exit` is how it ended the last time, in words."""

    pid: int | None = None
    starts: int = 0
    state: str = "unknown"
    last_exit: str = ""


def write_status(file: Path, stage: str, processes: Mapping[str, ProcessStatus]) -> None:
    """Raises OSError."""
    shown = {name: asdict(process) for name, process in processes.items()}
    replace_file(file, json.dumps({"stage": stage, "processes": shown}).encode())


def read_status(file: Path | None) -> dict[str, ProcessStatus]:
    """The processes by name; empty where nothing supervises, or has not written yet."""
    try:
        processes = json.loads(file.read_bytes())["processes"] if file else {}
        return {name: ProcessStatus(**process) for name, process in processes.items()}
    except FileNotFoundError:
        return {}
