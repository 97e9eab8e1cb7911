"""The processes of Triton's Python backends: which model each is of, and which have died.

tritonserver reaps a process that it has ended itself. One that dies otherwise stays a zombie until tritonserver's end.
"""

import os
import time
from dataclasses import dataclass
from pathlib import Path

from serving.host.exits import describe_exit
from serving.host.process_memory import tree

PROGRAM = "triton_python_backend_stub"
FILE, INSTANCE = 1, -2  # of its command line: the model's file, and the instance as Triton's messages name it
EXIT_CODE = 49  # of /proc/PID/stat, counted from the state; as waitpid has it


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
