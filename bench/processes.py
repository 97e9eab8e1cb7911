"""The processes of one server: what they take, and how to stop and hold them."""

import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path

from serving.host.process_memory import tree

TICKS = os.sysconf("SC_CLK_TCK")


def marked(marker: str) -> set[int]:
    """Those whose environment has that `NAME=value`; a program that writes its title over it is not among them."""
    wanted = marker.encode()
    return {int(entry.name) for entry in Path("/proc").glob("[0-9]*") if wanted in _environment(entry)}


def _environment(entry: Path) -> list[bytes]:
    try:
        return (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def family(root: int, marker: str) -> list[int]:
    """A process, all below it and all that are marked; the root first."""
    below = list(tree(root))
    return below + sorted(marked(marker) - set(below))


def pss(pids: Iterable[int]) -> int:
    """Bytes of memory, what is shared counted in proportion."""
    return sum(_field(Path(f"/proc/{pid}/smaps_rollup"), "Pss") for pid in pids)


def _field(path: Path, name: str) -> int:
    try:
        lines = path.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:")), 0)


def cpu(pids: Iterable[int]) -> dict[str, float]:
    """Seconds of processor time so far, by the program's name; children that have ended count with their parent."""
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
    """A signal to each that is still there."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def hold(pids: list[int]) -> None:
    """They take no processor time until `resume`."""
    send(pids, signal.SIGSTOP)


def resume(pids: list[int]) -> None:
    """The lowest first, so that no parent finds its children silent for too long."""
    send(reversed(pids), signal.SIGCONT)


def end(root: int, marker: str, patience: float) -> None:
    """SIGTERM to the root, SIGKILL to what is left after that many seconds. The caller reaps the root."""
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
