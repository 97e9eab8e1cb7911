"""How much memory a process and all below it take."""

from collections.abc import Iterable, Iterator
from pathlib import Path


def used_by(pid: int, proc: Path = Path("/proc")) -> int:
    """Bytes of memory of a process and all below it that the kernel cannot take back: their own pages, and what
    the topmost shares with the others. 0 when the process is gone."""
    return sum(_bytes(proc, each, "RssAnon") for each in tree(pid, proc)) + _bytes(proc, pid, "RssShmem")


def pss_of(pids: Iterable[int], proc: Path = Path("/proc")) -> int:
    """Bytes of memory of processes, where a page that several share is divided by their number (the kernel's PSS); 0
    where it is not said."""
    return sum(_bytes(proc, pid, "Pss", "smaps_rollup") for pid in pids)


def tree(pid: int, proc: Path = Path("/proc")) -> Iterator[int]:
    """A process and all below it."""
    children: dict[int, list[int]] = {}
    for entry in proc.iterdir():
        if entry.name.isdigit() and (parent := _parent(entry)):
            children.setdefault(parent, []).append(int(entry.name))
    waiting = [pid]
    while waiting:
        each = waiting.pop()
        yield each
        waiting += children.get(each, [])


def _parent(entry: Path) -> int:
    """From /proc/PID/stat, where the program's name in brackets may hold anything."""
    try:
        return int((entry / "stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):
        return 0


def _bytes(proc: Path, pid: int, field: str, file: str = "status") -> int:
    try:
        with (proc / str(pid) / file).open() as lines:
            return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{field}:")), 0)
    except OSError:
        return 0
