"""Starts, signals and watches processes on behalf of the supervisor."""

import contextlib
import glob
import json
import os
import queue
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from serving.errors import ModelFailed
from serving.host import machine
from serving.host.network import Address, ask
from serving.host.processes import dying_with_us, remove_leftovers
from serving.pid1.log import OUTPUT_END_TIMEOUT, Output, Pump

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
PING_TIMEOUT = 2.0  # seconds
ATTEMPTS = 3  # one health check may take 1 / ATTEMPTS of the hang timeout
PAUSE = 1.0  # seconds between health checks
# CLOCK_REALTIME_COARSE, the clock from which files get their modification times. It is up to one
# tick of the kernel (1 to 10 ms) behind time.time().
FILE_CLOCK = 5


@dataclass(frozen=True)
class Process:
    """Describes a process to supervise."""

    name: str
    command: tuple[str, ...]
    environment: Mapping[str, str]
    folder: Path
    stop_signal: signal.Signals = signal.SIGTERM
    noise: tuple[str, ...] = ()  # regular expressions for lines of its output that are dropped
    omitted: str = ""  # a regular expression for text that is removed from the other lines
    # glob patterns for files that the process leaves if it is killed: shared memory and sockets
    leftovers: tuple[str, ...] = ()
    # A glob pattern for folders that the process leaves. Other processes of the same user may
    # create such folders too. So a folder is removed only if it is not older than the process, and
    # no other process with this name is running.
    leftover_folders: str = ""
    # If true, the server can be ready without this process, even if it dies too often.
    optional: bool = False
    answers_at: tuple[Address, str] | None = None  # address and path of the health check
    listeners: tuple[socket.socket, ...] = ()  # sockets that the process inherits


class PermanentFailure(str):
    """The reason why the server is not ready, if waiting will not help."""

    __slots__ = ()


class HealthCheck(threading.Thread):
    """A thread that checks a server's health repeatedly, each time with a new connection, until
    `ended` is set.

    `silence` is how many seconds the checks since the server's last response, and the pauses before
    them, have taken. It stays 0.0 until the server has responded for the first time. A check counts
    for at most its timeout, so that a pause of the whole container does not count.
    """

    def __init__(
        self,
        address: Address,
        path: str,
        timeout: float,
        send: Callable[[Address, str, float], object] = ask,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(name=f"health-{path}", daemon=True)
        self._address = address
        self._path = path
        self._timeout = timeout
        self._send = send
        self._clock = clock
        self._has_answered = False
        self.silence = 0.0
        self.ended = threading.Event()

    def run(self) -> None:
        while not self.ended.wait(PAUSE):
            self.check_once()

    def check_once(self) -> None:
        """Send a health check, and update `silence`."""
        began = self._clock()
        try:
            self._send(self._address, self._path, self._timeout)
            self._has_answered = True
            self.silence = 0.0
        except OSError:
            if self._has_answered:
                self.silence += PAUSE + min(self._timeout, self._clock() - began)


@dataclass
class _Running:
    """A process that `System.start` has started and `System.reap` has not reaped yet."""

    process: Process
    child: subprocess.Popen[bytes]
    check: HealthCheck | None
    started: float  # time.clock_gettime(FILE_CLOCK)

    def clean_up(self) -> None:
        """End the health check of a process that has ended, and remove its leftovers."""
        if self.check:
            self.check.ended.set()
        process = self.process
        for pattern in process.leftovers:
            for leftover in glob.glob(pattern):  # noqa: PTH207
                with contextlib.suppress(OSError):
                    Path(leftover).unlink()
        remove_leftovers(process.leftover_folders, process.name, self.started)


class System:
    """The supervisor's interface to Linux. `ping_address` is nginx's address. If `hang_timeout` is
    0, there are no health checks."""

    def __init__(self, ping_address: Address, output: Output, hang_timeout: float = 0.0) -> None:
        self._ping_address = ping_address
        self._output = output
        self._hang_timeout = hang_timeout
        self._signals: queue.SimpleQueue[int] = queue.SimpleQueue()
        self._running: dict[int, _Running] = {}
        self._pumps: dict[str, Pump] = {}
        # not SIGKILL: at SIGTERM, nginx, gunicorn and tritonserver also end their own children
        self._command_prefix = dying_with_us("TERM")

    def catch_signals(self) -> None:
        """From now on, put each stop signal and SIGCHLD into a queue, from which `wait` returns
        it."""
        for number in (*STOP_SIGNALS, signal.SIGCHLD):
            signal.signal(number, lambda received, _frame: self._signals.put(received))

    def now(self) -> float:
        """Return the time in seconds on a monotonic clock."""
        return time.monotonic()

    def wait(self, timeout: float) -> int | None:
        """Return the next signal, or None if none arrives within `timeout` seconds."""
        try:
            return self._signals.get(timeout=timeout)
        except queue.Empty:
            return None

    def start(self, process: Process) -> int:
        """Start the process as the leader of a new process group, and the threads that log its
        output and check its health. Return its pid. Raise OSError if it cannot be started."""
        started = time.clock_gettime(FILE_CLOCK)
        child = subprocess.Popen(
            (*self._command_prefix, *process.command),
            env=dict(process.environment),
            cwd=process.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            process_group=0,
            pass_fds=[listener.fileno() for listener in process.listeners],
        )
        if child.stdout:  # always true; for the type checker
            pump = Pump(process.name, child.stdout, self._output, process.noise, process.omitted)
            pump.start()
            self._pumps[process.name] = pump
        check = None
        if process.answers_at and self._hang_timeout:
            check = HealthCheck(*process.answers_at, self._hang_timeout / ATTEMPTS)
            check.start()
        self._running[child.pid] = _Running(process, child, check, started)
        return child.pid

    def reap(self) -> list[tuple[int, int]]:
        """Return (pid, exit code) for each process that has ended, including orphans that process 1
        has inherited. The code of a process that a signal killed is the negated signal number. If
        `start` started the process, also kill the rest of its group, and remove its leftovers."""
        ended = []
        with contextlib.suppress(ChildProcessError):
            while child := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                # Kill its group before reaping the process: only until then is it certain that the
                # id does not belong to another process.
                if child.si_pid in self._running:
                    self.kill_group(child.si_pid)
                _, status = os.waitpid(child.si_pid, 0)
                code = os.waitstatus_to_exitcode(status)
                ended.append((child.si_pid, code))
                if running := self._running.pop(child.si_pid, None):
                    running.child.returncode = code  # otherwise Popen would wait for the process
                    running.clean_up()
        return ended

    def signal(self, pid: int, number: signal.Signals) -> None:
        """Send a stop signal to the process, but not to its group. Close its listeners, so that new
        connections are refused as soon as the process has closed them too. Do nothing if the
        process has been reaped."""
        if pid in self._running:
            os.kill(pid, number)
            for listener in self._running[pid].process.listeners:
                listener.close()

    def kill_group(self, pid: int) -> None:
        """Send SIGKILL to the process and its whole group."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def silence(self, pid: int) -> float:
        """Return for how many seconds the process has failed its health check since its last
        response (HealthCheck.silence), or 0.0 if it has no health check."""
        check = self._running[pid].check
        return check.silence if check else 0.0

    def oom_kills(self) -> int | None:
        """Return how many processes of this container the OOM killer has killed, or None if that is
        unknown."""
        return machine.oom_kills()

    def last_error(self, process: Process) -> str:
        """Return the last line of the process's output that looks like an error, or else the last
        line, or "" if there is none."""
        pump = self._pumps.get(process.name)
        return pump.last_error() if pump else ""

    def ping(self) -> str:
        """Return why /ping does not return 200, or "" if it does. Return a PermanentFailure if
        waiting will not help."""
        try:
            status, body = ask(self._ping_address, "/ping", PING_TIMEOUT)
        except OSError as err:
            return f"/ping: {err}"
        if status == 200:
            return ""
        try:
            reply = json.loads(body)
            reason = f"/ping: {status} {reply['error']}"
            is_permanent = reply.get("code") == ModelFailed.code
            return PermanentFailure(reason) if is_permanent else reason
        except (ValueError, KeyError, TypeError):
            return f"/ping: {status} {body.decode('utf-8', 'replace').strip()}"

    def say(self, text: str, level: str = "info") -> None:
        """Log a line from the supervisor itself. `level` is info, warning or error."""
        self._output.write("serve", text, level=level)

    def drain(self) -> None:
        """Wait briefly until all output of the processes has been logged."""
        deadline = self.now() + OUTPUT_END_TIMEOUT
        for pump in self._pumps.values():
            pump.join(max(0.0, deadline - self.now()))
