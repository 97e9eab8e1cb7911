"""The processes of one server: what they use, and how to pause and end them."""

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from serving.host.process_memory import tree

TICKS = os.sysconf("SC_CLK_TCK")


def marked(marker: str) -> set[int]:
    """The processes with `NAME=value` in their environment; misses programs that overwrite it with their title."""
    wanted = marker.encode()
    return {int(entry.name) for entry in Path("/proc").glob("[0-9]*") if wanted in _environment(entry)}


def _environment(entry: Path) -> list[bytes]:
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def family(root: int, marker: str) -> list[int]:
    """A process, its descendants and all marked processes; the root first."""
    below = list(tree(root))
    return below + sorted(marked(marker) - set(below))


def pss(pids: Iterable[int]) -> int:
    """Bytes of memory; shared memory counts proportionally."""
    return sum(_field(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in pids)


def _field(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def cpu(pids: Iterable[int]) -> dict[str, float]:
    """Seconds of processor time so far, by program name; ended children count for their parent."""
    used: dict[str, float] = {}
    for pid in pids:
        try:
            text = Path(f"/proc/{pid}/stat").read_text()
        except OSError:
            continue
        name, _, rest = text.partition("(")[2].rpartition(")")
        used[name] = used.get(name, 0.0) + sum(map(int, rest.split()[11:15])) / TICKS
    return used


def send(pids: Iterable[int], number: signal.Signals) -> None:
    """Sends a signal to each process that still exists."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def hold(pids: list[int]) -> None:
    """Pauses the processes until `resume`."""
    send(pids, signal.SIGSTOP)


def resume(pids: list[int]) -> None:
    """Resumes children first, so that no parent finds its children unresponsive."""
    send(reversed(pids), signal.SIGCONT)


def end(root: int, marker: str, patience: float) -> None:
    """Sends SIGTERM to the root, and SIGKILL to what is left after that many seconds. The caller reaps the root."""
    pids = family(root, marker)
    resume(pids)
    send([root], signal.SIGTERM)
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and any(map(_alive, pids)):
        time.sleep(0.05)
    send([*pids, *marked(marker)], signal.SIGKILL)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
