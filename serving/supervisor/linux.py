"""The real System of the supervisor: processes, signals, output and /ping on Linux."""

import contextlib
import glob
import json
import os
import queue
import re
import select
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

from serving.errors import ModelFailed
from serving.host import machine
from serving.host.http import Address, get
from serving.supervisor.signs import Signs, groups
from serving.supervisor.supervisor import STOP_SIGNALS, Hopeless, Process

LINE_LIMIT = 16 * 1024
CHUNK = 64 * 1024  # the size of a pipe's buffer
PING_TIMEOUT = 2.0
OUTPUT_END_TIMEOUT = 1.0
OUTPUT_PATIENCE = 1.0  # seconds for a reader of the log that is slow
FULL = 2**20  # bytes: who has less left is full
# What we start ends with us, even when we are killed: nginx, gunicorn and Triton end their own children then. A
# function between fork and exec (preexec_fn) would do it too, but is not safe beside threads.
DIES_WITH_US = ("setpriv", "--pdeathsig", "TERM", "--")
# Nobody who sends a request writes into a terminal, or begins a line of the log. Escaped as in JSON, which lines are.
ESCAPED = {code: f"\\u{code:04x}" for code in (*range(9), *range(10, 32), *range(127, 160), 0x2028, 0x2029)}
ERROR_LINE = re.compile(r"^E\d{4} |\b(error|exception|fatal|emerg|critical|failed)\b|Error\b", re.I)


class Output:
    """Writes whole lines from many threads to one file descriptor, each with the name of its process.

    A line that is a JSON object stays as it is: it names its process itself. Serving is worth more than its log: where
    nobody reads, lines are dropped, so that neither the processes nor our own loop wait. Their number is told to a
    reader that comes back.
    """

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._lock = threading.Lock()
        self._dropped = 0

    def write(self, name: str, *lines: str) -> None:
        data = "".join(f"{line}\n" if is_json(line) else f"{name} | {line}\n" for line in lines).encode()
        with self._lock:
            told = f"\nserve | {self._dropped} lines were dropped: nobody read the log\n" if self._dropped else ""
            if self._written(told.encode() + data):
                self._dropped = 0
            else:
                self._dropped += len(lines)

    def _written(self, data: bytes) -> bool:
        """In parts that a pipe takes whole once it takes any. After the first wait in vain there is no other."""
        patience = 0.0 if self._dropped else OUTPUT_PATIENCE
        with contextlib.suppress(OSError):
            while data and select.select([], [self._descriptor], [], patience)[1]:
                data = data[os.write(self._descriptor, data[: select.PIPE_BUF]) :]
        return not data


class Pump(threading.Thread):
    """Reads a process's output to its end: drops noise, writes the rest to `output`, keeps the last error."""

    def __init__(self, name: str, stream: IO[bytes], output: Output, noise: Sequence[str]) -> None:
        super().__init__(name=f"pump-{name}", daemon=True)
        self._source, self._stream, self._output = name, stream, output
        self._noise = [re.compile(pattern) for pattern in noise]
        self._last_line = self._last_error = ""

    def run(self) -> None:
        with self._stream:
            for lines in read_lines(self._stream):
                kept = [line for line in lines if is_json(line) or not any(each.search(line) for each in self._noise)]
                for line in kept:
                    self._remember(line)
                self._output.write(self._source, *kept)

    def _remember(self, line: str) -> None:
        if is_json(line) and not (line := json_message(line)):
            return
        if line.strip():
            self._last_line = line.strip()
        if ERROR_LINE.search(line):
            self._last_error = line.strip()

    def last_error(self) -> str:
        self.join(OUTPUT_END_TIMEOUT)
        return self._last_error or self._last_line


def has_terminal() -> bool:
    """Whether a terminal controls this process."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


def is_json(line: str) -> bool:
    return line.startswith('{"') and line.endswith("}")


def json_message(line: str) -> str:
    """Level and message of a log line of serving/front/logs.py; "" for a request in nginx's log."""
    try:
        document = json.loads(line) if '"message"' in line else {}
    except ValueError:
        return line
    return f"{document['level']}: {document['message']}" if {"level", "message"} <= document.keys() else ""


def read_lines(stream: IO[bytes]) -> Iterator[list[str]]:
    """The lines that have come, without their ends; cut after 16 kB, undecodable bytes replaced, controls escaped."""
    rest = b""
    while data := os.read(stream.fileno(), CHUNK):
        *whole, rest = (rest + data).split(b"\n")
        rest = rest[: LINE_LIMIT + 1]
        yield [_text(line) for line in whole]
    if rest:
        yield [_text(rest)]


def _text(line: bytes) -> str:
    return line[:LINE_LIMIT].decode("utf-8", "replace").rstrip("\r").translate(ESCAPED)


@dataclass
class _Running:
    process: Process
    child: subprocess.Popen[bytes]
    signs: Signs
    started: float  # as files have their times


class LinuxSystem:
    """The System of serving/supervisor/supervisor.py; `ping_address` is nginx's, `places` are folders of files that the
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
        self._prefix = DIES_WITH_US if shutil.which(DIES_WITH_US[0]) else ()
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

    def silent(self) -> dict[int, set[int]]:
        found = groups()
        return {pid: running.signs.silent(found.get(pid, {})) for pid, running in self._running.items()}

    def wait(self, timeout: float) -> int | None:
        try:
            number = self._events.get(timeout=timeout)
        except queue.Empty:
            return None
        # Its terminal was closed: this is no request for anything, and nobody is there to end us.
        return signal.SIGTERM if number == signal.SIGHUP and self._had_terminal and not has_terminal() else number

    def start(self, process: Process) -> int:
        started = time.time()
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
        if child.stdout is None:
            raise OSError("no pipe to read the output from")
        pump = Pump(process.name, child.stdout, self._output, process.noise)
        pump.start()
        self._pumps[process.name] = pump
        self._running[child.pid] = _Running(process, child, Signs(process, child.pid, self._hang_timeout), started)
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
        ended.signs.end()
        ended.child.returncode = code  # so that Popen does not wait for it again
        self._full = [str(place) for place in self._places if machine.free_bytes(place) < FULL]
        for leftover in chain.from_iterable(map(glob.glob, ended.process.leftovers)):
            with contextlib.suppress(OSError):
                Path(leftover).unlink()
        for folder in glob.glob(ended.process.empty_leftovers):  # noqa: PTH207
            with contextlib.suppress(OSError):
                made = Path(folder).stat()
                if made.st_uid == os.geteuid() and made.st_mtime >= ended.started:
                    Path(folder).rmdir()

    def signal(self, pid: int, number: signal.Signals) -> None:
        if pid in self._running:
            os.kill(pid, number)
            for listener in self._running[pid].process.listeners:
                listener.close()

    def kill_group(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, signal.SIGKILL)

    def kill(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)

    def last_error(self, process: Process) -> str:
        return self._pumps[process.name].last_error()

    def ping(self) -> str:
        try:
            status, body = get(self._ping_address, "/ping", PING_TIMEOUT)
        except OSError as err:
            return f"/ping: {err}"
        return "" if status == 200 else _reason(status, body)

    def say(self, text: str) -> None:
        self._output.write("serve", text)

    def drain(self) -> None:
        deadline = self.now() + OUTPUT_END_TIMEOUT
        for pump in self._pumps.values():
            pump.join(max(0.0, deadline - self.now()))


def _reason(status: int, body: bytes) -> str:
    try:
        said = json.loads(body)
        text = f"/ping: {status} {said['error']}"
        return Hopeless(text) if said.get("code") == ModelFailed.code else text
    except (ValueError, KeyError, TypeError):
        return f"/ping: {status} {body.decode('utf-8', 'replace').strip()}"
