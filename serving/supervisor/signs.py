"""Signs of life of the processes that run, and of those in their groups: a stub, a worker.

Three kinds, none of which a long request or a busy machine takes away:
- a server answers a GET on a route that waits for nothing (`Process.answers_at`);
- a worker touches a file of its own every second, as long as its loop runs (`Process.beats`, written by nginx.conf and
  front/beat.py);
- the kernel does not say that the process is stopped (SIGSTOP). This is all that a process shows which answers nobody:
  nginx's and gunicorn's masters, Triton's stubs. A debugger's stop is another one, and is left alone.

Nobody is missed before the first sign, so a start may take its time.
"""

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

from serving.host.network import Address, get
from serving.supervisor.system import Process

ATTEMPTS = 3  # that fail one after the other, before a server counts as hung
PAUSE = 1.0  # between two attempts, in seconds
STOPPED = "T"


class Prober(threading.Thread):
    """Asks a server again and again, each time on a new connection, until `end`."""

    def __init__(self, address: Address, path: str, timeout: float) -> None:
        super().__init__(name=f"probe-{path}", daemon=True)
        self._address, self._path, self._timeout = address, path, timeout
        self._answered, self._ended = threading.Event(), threading.Event()
        self._has_answered = False

    def run(self) -> None:
        while not self._ended.wait(PAUSE):
            try:
                get(self._address, self._path, self._timeout)
            except OSError:
                continue
            self._has_answered = True
            self._answered.set()

    def end(self) -> None:
        self._ended.set()

    def is_silent(self) -> bool:
        """Whether it answered once, and has not since the last call."""
        answered = self._answered.is_set()
        self._answered.clear()
        return self._has_answered and not answered


class Signs:
    """Of one process, which leads its group; `hang_timeout` in seconds says how long a server may be silent."""

    def __init__(self, process: Process, pid: int, hang_timeout: float) -> None:
        self._pid, self._folder = pid, process.beats
        self._beats: dict[int, int] = {}
        self._prober = None
        if process.answers_at and hang_timeout:
            self._prober = Prober(*process.answers_at, hang_timeout / ATTEMPTS)
            self._prober.start()

    def end(self) -> None:
        if self._prober:
            self._prober.end()

    def silent(self, group: Mapping[int, str]) -> set[int]:
        """Those that gave no sign since the last call; `group` has the state of each that is in it."""
        found = {pid for pid, state in group.items() if state == STOPPED} | self._without_beat(group)
        return found | {self._pid} if self._prober and self._prober.is_silent() else found

    def _without_beat(self, group: Mapping[int, str]) -> set[int]:
        before = self._beats
        self._beats = {pid: time for pid in group if pid != self._pid and (time := self._last_beat(pid))}
        return {pid for pid, time in self._beats.items() if before.get(pid) == time}

    def _last_beat(self, pid: int) -> int:
        """A time that is only compared with itself, so that the clock may jump; 0 before the first."""
        try:
            return (self._folder / str(pid)).stat().st_mtime_ns if self._folder else 0
        except OSError:
            return 0


def groups(proc: Path = Path("/proc")) -> dict[int, dict[int, str]]:
    """Process group -> pid -> the kernel's letter for its state, of all processes."""
    found: dict[int, dict[int, str]] = {}
    for pid, state, group in _processes(proc):
        found.setdefault(group, {})[pid] = state
    return found


def _processes(proc: Path) -> Iterator[tuple[int, str, int]]:
    """(pid, state, group) from /proc/PID/stat, where the program's name in brackets may hold anything."""
    for entry in proc.iterdir():
        if entry.name.isdigit():
            try:
                state, _parent, group = (entry / "stat").read_bytes().rpartition(b")")[2].split()[:3]
            except (OSError, ValueError):  # it has ended meanwhile
                continue
            yield int(entry.name), state.decode(), int(group)
