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
    """One row of the table; `noise` are regular expressions of lines that are not worth logging, `leftovers` glob
    patterns of what a killed one leaves behind (shared memory, sockets), `empty_leftovers` one of folders that it makes
    and others of our user may have made too: removed when they are empty and not older. `restart_request` is a file in
    which others ask for a restart: the number of the start that they mean, a space, and the reason in one line. Serving
    goes on without an `optional` one: it is not waited for, and given up where the deaths of another would end
    everything. `answers_at` is the address and path of its health check. It inherits the `listeners`, and gets the
    signals `passed_on` in place of `serve`. One that `writes_log` inherits our standard output, else we read what it
    writes."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    stop_signal: signal.Signals = signal.SIGTERM
    noise: tuple[str, ...] = ()
    leftovers: tuple[str, ...] = ()
    empty_leftovers: str = ""
    restart_request: Path | None = None
    optional: bool = False
    answers_at: tuple[Address, str] | None = None
    listeners: tuple[socket.socket, ...] = ()
    passed_on: tuple[signal.Signals, ...] = ()
    writes_log: bool = False


class System(Protocol):
    """What the supervisor needs of the world."""

    def now(self) -> float:
        """Seconds of a clock that never goes back."""

    def wait(self, timeout: float) -> int | None:
        """The next signal, or None when none came in time."""

    def start(self, process: Process) -> int:
        """The pid, which leads its own process group; raises OSError."""

    def reap(self) -> list[tuple[int, int]]:
        """(pid, exit code as subprocess has it) of all that ended, orphans too; their groups are killed."""

    def signal(self, pid: int, number: signal.Signals) -> None:
        """To the process alone, not to its group. It is to end: its listeners are closed."""

    def kill_group(self, pid: int) -> None:
        """SIGKILL to the process and all of its group."""

    def silent(self) -> set[int]:
        """Return the processes that answered their health check once, and have not since the last call."""

    def oom_kills(self) -> int | None:
        """How many of our processes the kernel has killed so far for want of memory; None where it is not said."""

    def full_places(self) -> Sequence[str]:
        """The file systems that the processes map files of and that were full when the last process ended."""

    def last_error(self, process: Process) -> str:
        """The last line of its output that looks like an error, else the last line; "" if it writes its own log."""

    def drain(self) -> None:
        """Waits a little until all that the processes wrote is in the log."""

    def ping(self) -> str:
        """Why /ping does not answer 200, Hopeless where no waiting mends it; empty when it does."""

    def say(self, text: str, level: str = "info") -> None:
        """One line of our own in the log; `level` is info, warning or error."""


class Hopeless(str):
    """A reason that stays."""

    __slots__ = ()
