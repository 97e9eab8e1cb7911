"""What is supervised (Process), and what the supervisor needs of the world (System; linux.py has the real one)."""

import signal
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from serving.host.network import Address

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True)
class Process:
    """One row of the table of processes."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    stop_signal: signal.Signals = signal.SIGTERM
    noise: tuple[str, ...] = ()  # regular expressions of lines that are not logged
    leftovers: tuple[str, ...] = ()  # glob patterns of what a killed one leaves: shared memory, sockets
    # Glob pattern of folders that it makes, and that others of our user may make too. They are removed when they are
    # not older than the process, and no other process of its name runs.
    leftover_folders: str = ""
    # File in which others ask for a restart: the number of the start that they mean, a space, the reason in one line.
    restart_request: Path | None = None
    optional: bool = False  # serving goes on without it: it is not waited for, and too many deaths end only itself
    answers_at: tuple[Address, str] | None = None  # address and path of its health check
    listeners: tuple[socket.socket, ...] = ()  # inherited
    passed_on: tuple[signal.Signals, ...] = ()  # signals that it gets instead of `serve`


class System(Protocol):
    """What the supervisor needs of the world."""

    def now(self) -> float:
        """Return the seconds of a clock that never goes back."""

    def wait(self, timeout: float) -> int | None:
        """Return the next signal, None when none came in time."""

    def start(self, process: Process) -> int:
        """Start the process as the leader of its own group, and return its pid. Raise OSError."""

    def reap(self) -> list[tuple[int, int]]:
        """Return (pid, exit code) of all that ended, orphans too, and kill their groups."""

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Signal the process alone, not its group, and close its listeners, because it is to end."""

    def kill_group(self, pid: int) -> None:
        """Send SIGKILL to the process and all of its group."""

    def silent(self) -> set[int]:
        """Return the processes that answered their health check once, and have not since the last call."""

    def oom_kills(self) -> int | None:
        """Return how many of our processes the kernel has killed for lack of memory, None if it does not say."""

    def full_places(self) -> Sequence[str]:
        """Return the file systems with files that processes map which were full when the last process ended."""

    def last_error(self, process: Process) -> str:
        """Return the last line of its output that looks like an error, else the last line."""

    def drain(self) -> None:
        """Wait a little until all that the processes wrote is in the log."""

    def ping(self) -> str:
        """Return why /ping does not answer 200, "" when it does; a PermanentFailure if waiting will not help."""

    def say(self, text: str, level: str = "info") -> None:
        """Write one line of our own to the log; `level` is info, warning or error."""


class PermanentFailure(str):
    """A reason that waiting does not remove."""

    __slots__ = ()
