"""Processes of this machine: how they ended, the memory that they take, and those of Triton's Python backends.

tritonserver reaps a stub that it has ended itself. One that dies otherwise stays a zombie until tritonserver's end.
"""

import glob
import os
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MEANINGS: dict[int, str] = {
    signal.SIGSEGV: "a crash in native code",
    signal.SIGABRT: "it gave up",
    signal.SIGBUS: "perhaps /dev/shm or the run folder was full",
}
PROGRAM = "triton_python_backend_stub"
FILE, INSTANCE = 1, -2  # of its command line: the model's file, and the instance as Triton's messages name it
EXIT_CODE = 49  # of /proc/PID/stat, counted from the state; as waitpid has it


def dying_with_us(signal_name: str) -> tuple[str, ...]:
    """What stands before a command whose process the kernel sends that signal when ours ends, however it ends; nothing
    where util-linux is missing. A function between fork and exec (preexec_fn) would do it too, but is not safe beside
    threads."""
    return ("setpriv", "--pdeathsig", signal_name, "--") if shutil.which("setpriv") else ()


def runs(program: str) -> bool:
    """Return whether a process of that name runs on this machine."""
    for file in Path("/proc").glob("[0-9]*/comm"):
        with suppress(OSError):
            if file.read_text() == f"{program}\n":
                return True
    return False


def remove_made(pattern: str, program: str, since: float) -> None:
    """Remove our user's folders that match the glob pattern and were made `since` then. Do nothing while `program` runs
    elsewhere, because the folders may belong to that process."""
    folders = glob.glob(pattern)  # noqa: PTH207
    if folders and runs(program):
        return
    for folder in map(Path, folders):
        with suppress(OSError):
            made = folder.stat()
            if made.st_uid == os.geteuid() and made.st_mtime >= since:
                shutil.rmtree(folder)


def describe_exit(code: int, meaning: str = "") -> str:
    """What an exit code as subprocess has it (negative: a signal's number) means."""
    if code >= 0:
        return f"exited with status {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    meaning = meaning or MEANINGS.get(-code, "")
    return f"was killed by {name}{f' ({meaning})' if meaning else ''}"


def used_by(pid: int, proc: Path = Path("/proc")) -> int:
    """Bytes of memory of a process and all below it that the kernel cannot take back: their own pages, and what
    the topmost shares with the others. 0 when the process is gone."""
    return sum(_bytes(proc, each, "RssAnon") for each in tree(pid, proc)) + _bytes(proc, pid, "RssShmem")


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


@dataclass(frozen=True)
class Stub:
    """`file` lies in REPOSITORY/MODEL/VERSION."""

    pid: int
    file: Path
    instance: str


@dataclass(frozen=True)
class Death:
    """How a stub ended, in words, and when it was last seen alive (time.monotonic)."""

    stub: Stub
    how: str
    alive: float


class Stubs:
    """Those of one tritonserver after another, as far as they were seen alive."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self._proc = proc
        self._seen: dict[int, tuple[Stub, float]] = {}
        self._zombies: set[int] = set()

    def look(self, server: int) -> list[Death]:
        """Those that have died, each told once. One that two looks find dead was not just being reaped."""
        now = time.monotonic()
        found = {pid: fields for pid in tree(server, self._proc) if (fields := self._fields(pid))}
        zombies = {pid for pid, fields in found.items() if fields[0] == "Z"}
        dead = [self._death(pid, found[pid]) for pid in sorted(zombies & self._zombies & self._seen.keys())]
        self._zombies = zombies
        unsure = zombies & self._seen.keys() - {each.stub.pid for each in dead}
        alive = {pid: (stub, now) for pid in found.keys() - zombies if (stub := self._stub(pid))}
        self._seen = {pid: self._seen[pid] for pid in unsure} | alive
        return dead

    def all(self) -> list[tuple[Stub, float]]:
        """As the last look saw them, and when each was last seen alive (time.monotonic)."""
        return list(self._seen.values())

    def _stub(self, pid: int) -> Stub | None:
        return self._seen[pid][0] if pid in self._seen else self._read(pid)

    def _read(self, pid: int) -> Stub | None:
        try:
            words = (self._proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")[:-1]
        except OSError:
            return None
        is_stub = len(words) > FILE - INSTANCE and Path(words[0]).name == PROGRAM
        return Stub(pid, Path(words[FILE]), words[INSTANCE]) if is_stub else None

    def _fields(self, pid: int) -> list[str]:
        try:
            return (self._proc / str(pid) / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            return []

    def _death(self, pid: int, fields: list[str]) -> Death:
        stub, alive = self._seen[pid]
        return Death(stub, f"it {describe_exit(os.waitstatus_to_exitcode(int(fields[EXIT_CODE])))}", alive)
