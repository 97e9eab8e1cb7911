"""The real System of the supervisor: processes, signals, output and /ping on Linux."""

import contextlib
import glob
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from serving.errors import ModelFailed
from serving.host import machine
from serving.host.network import Address, get
from serving.host.processes import dying_with_us, remove_made
from serving.supervisor.log import OUTPUT_END_TIMEOUT, Output, Pump
from serving.supervisor.system import STOP_SIGNALS, PermanentFailure, Process

PING_TIMEOUT = 2.0
ATTEMPTS = 3  # health checks that fail one after the other before a server counts as hung
PAUSE = 1.0  # seconds between two of them
FILE_CLOCK = 5  # CLOCK_REALTIME_COARSE, by which the kernel dates files: up to 4 ms behind time.time()
FULL = 2**20  # bytes: who has less left is full


def has_terminal() -> bool:
    """Whether a terminal controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


class Prober(threading.Thread):
    """Asks for a server's health again and again, each time on a new connection, until `end` is called."""

    def __init__(self, address: Address, path: str, timeout: float) -> None:
        super().__init__(name=f"probe-{path}", daemon=True)
        self._address, self._path, self._timeout = address, path, timeout
        self._answered, self._ended = threading.Event(), threading.Event()
        self._has_answered = False

    def run(self) -> None:
        while not self._ended.wait(PAUSE):
            with contextlib.suppress(OSError):
                get(self._address, self._path, self._timeout)
                self._has_answered = True
                self._answered.set()

    def end(self) -> None:
        self._ended.set()

    def is_silent(self) -> bool:
        """Return whether it answered once, and has not since the last call."""
        answered = self._answered.is_set()
        self._answered.clear()
        return self._has_answered and not answered


@dataclass
class _Running:
    process: Process
    child: subprocess.Popen[bytes]
    prober: Prober | None
    started: float  # by FILE_CLOCK


class LinuxSystem:
    """The System of serving/supervisor/system.py; `ping_address` is nginx's, `places` are folders of files that the
    processes map."""

    def __init__(
        self, ping_address: Address, output: Output, *, places: Sequence[Path] = (), hang_timeout: float = 0.0
    ) -> None:
        self._ping_address = ping_address
        self._output, self._places, self._hang_timeout = output, places, hang_timeout
        self._events: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._running: dict[int, _Running] = {}
        self._pumps: dict[str, Pump] = {}
        self._full: list[str] = []
        self._prefix = dying_with_us("TERM")  # nginx, gunicorn and Triton end their own children then
        self._had_terminal = has_terminal()

    def catch_signals(self) -> None:
        """From now on signals are only queued; the supervisor's loop acts on them."""
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda received, _frame: self._events.put(received))

    def now(self) -> float:
        return time.monotonic()

    def oom_kills(self) -> int | None:
        return machine.oom_kills()

    def full_places(self) -> list[str]:
        return self._full

    def silent(self) -> set[int]:
        return {pid for pid, running in self._running.items() if running.prober and running.prober.is_silent()}

    def wait(self, timeout: float) -> int | None:
        try:
            number = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        # Its terminal was closed: this is no request for anything, and nobody is there to end us.
        return signal.SIGTERM if number == signal.SIGHUP and self._had_terminal and not has_terminal() else number

    def start(self, process: Process) -> int:
        started = time.clock_gettime(FILE_CLOCK)
        child = subprocess.Popen(
            (*self._prefix, *process.command),
            env=dict(process.environment),
            cwd=process.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            pass_fds=[listener.fileno() for listener in process.listeners],
        )
        if child.stdout:
            self._pumps[process.name] = Pump(process.name, child.stdout, self._output, process.noise)
            self._pumps[process.name].start()
        prober = None
        if process.answers_at and self._hang_timeout:
            prober = Prober(*process.answers_at, self._hang_timeout / ATTEMPTS)
            prober.start()
        self._running[child.pid] = _Running(process, child, prober, started)
        return child.pid

    def reap(self) -> list[tuple[int, int]]:
        """Also reaps orphans, which PID 1 inherits."""
        ended = []
        with contextlib.suppress(ChildProcessError):
            while found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                # Before the wait, until which no other process or group can get its number.
                if found.si_pid in self._running:
                    self.kill_group(found.si_pid)
                _, status = os.waitpid(found.si_pid, 0)
                ended.append((found.si_pid, os.waitstatus_to_exitcode(status)))
                self._forget(*ended[-1])
        return ended

    def _forget(self, pid: int, code: int) -> None:
        if pid not in self._running:
            return
        ended = self._running.pop(pid)
        if ended.prober:
            ended.prober.end()
        ended.child.returncode = code  # so that Popen does not wait for it again
        self._full = [str(place) for place in self._places if machine.free_bytes(place) < FULL]
        for leftover in chain.from_iterable(map(glob.glob, ended.process.leftovers)):
            with contextlib.suppress(OSError):
                Path(leftover).unlink()
        remove_made(ended.process.leftover_folders, ended.process.name, ended.started)

    def signal(self, pid: int, number: signal.Signals) -> None:
        if pid in self._running:
            os.kill(pid, number)
            for listener in self._running[pid].process.listeners:
                listener.close()

    def kill_group(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def last_error(self, process: Process) -> str:
        return self._pumps[process.name].last_error() if process.name in self._pumps else ""

    def ping(self) -> str:
        try:
            status, body = get(self._ping_address, "/ping", PING_TIMEOUT)
        except OSError as err:
            return f"/ping: {err}"
        return "" if status == 200 else _reason(status, body)

    def say(self, text: str, level: str = "info") -> None:
        self._output.write("serve", text, level=level)

    def drain(self) -> None:
        deadline = self.now() + OUTPUT_END_TIMEOUT
        for pump in self._pumps.values():
            pump.join(max(0.0, deadline - self.now()))


def _reason(status: int, body: bytes) -> str:
    try:
        said = json.loads(body)
        text = f"/ping: {status} {said['error']}"
        return PermanentFailure(text) if said.get("code") == ModelFailed.code else text
    except (ValueError, KeyError, TypeError):
        return f"/ping: {status} {body.decode('utf-8', 'replace').strip()}"
