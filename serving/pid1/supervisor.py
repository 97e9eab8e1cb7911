"""Decides when the processes are started, restarted, killed and stopped.

    starting --processes run, /ping answers 200--> ready
        ^---- a process dies that is not optional ---/

From either stage, a signal in STOP_SIGNALS or a failure leads to the stage `stopping`.

A process that dies is restarted after a pause, which grows with its deaths in the last minute. A
process that stops answering its health check (`Process.answers_at`) for `hang_timeout` seconds is
killed, which counts as a death.

Supervision fails, and the log says why, if a process that is not optional cannot be started or dies
more than five times in a minute, if it takes too long until the server is ready (again), or if
/ping says, before the server has ever been ready, that waiting will not help. Deaths for lack of
memory do not count, because callers can cause them. Tests replay such events with a fake System.
"""

import math
import signal
from collections.abc import Sequence
from dataclasses import dataclass, field

from serving.host.files import ProcessStatus, write_status
from serving.host.processes import describe_exit
from serving.pid1.system import STOP_SIGNALS, PermanentFailure, Process, System
from serving.settings.settings import Settings

DEATHS_ALLOWED = 5  # deaths of one process within WINDOW seconds
WINDOW = 60.0
BACKOFF_FIRST = 0.25  # seconds between the first death of a process and its restart
BACKOFF_MAX = 8.0  # maximum seconds between a death and the restart
# maximum seconds between rounds of the loop while waiting for a process or for readiness
POLL_INTERVAL = 0.1
IDLE_INTERVAL = 1.0  # maximum seconds between rounds once everything is running and ready
REPORT_INTERVAL = 5.0  # seconds between log lines that say why the container is not ready yet
# Seconds that a stop may take if the server was never ready. No request is in flight then, and
# waiting longer would not help, because tritonserver ignores the signal while it loads models.
STOP_BEFORE_READY = 3.0
KILL_TIMEOUT = 8.0  # seconds to wait for the end of a process that was killed
OUT_OF_MEMORY = "out of memory"


class Failure(Exception):
    """Raised if supervision cannot continue. The message is the reason."""


@dataclass
class _Child:
    """The state of a supervised process. Times are those of System.now."""

    process: Process
    pid: int | None = None  # None while the process is not running
    starts: int = 0
    deaths: list[float] = field(default_factory=list)  # times of deaths that count, within WINDOW
    hangs: bool = False  # whether the process is being killed because it did not answer
    retry_at: float = 0.0  # when to start it (again); infinity means never
    last_exit: str = ""  # how it last ended, to be put after its name


class Supervisor:
    """Runs `processes` until a signal arrives or supervision fails, then stops them in reverse
    order. Logs the lines `when_ready` when everything is ready for the first time."""

    def __init__(
        self,
        processes: Sequence[Process],
        system: System,
        settings: Settings,
        when_ready: Sequence[str] = (),
    ) -> None:
        self._children = [_Child(process) for process in processes]
        self._system = system
        self._settings = settings
        self._when_ready = list(when_ready)
        self._stage = "starting"
        self._has_been_ready = False
        self._starting_since = system.now()
        self._next_report = REPORT_INTERVAL  # seconds after _starting_since
        self._oom_kills = system.oom_kills()

    def run(self) -> int:
        """Run until a signal arrives or supervision fails. Return the exit code: 0 after a signal,
        1 after a failure. The last line of the log says why."""
        code = 0
        reason = "stopped"
        try:
            self._start_due()
            while self._system.wait(self._seconds_to_wait()) not in STOP_SIGNALS:
                for child, exit_code in self._reap():
                    self._handle_death(child, exit_code)
                self._kill_hung_processes()
                self._start_due()
                self._check_readiness()
        except Failure as failure:
            code = 1
            reason = str(failure)
            self._system.say(reason, "error")
        self._stop()
        self._system.drain()
        level = "error" if code else "info"
        self._system.say(reason, level)
        return code

    def _seconds_to_wait(self) -> float:
        """Return how long the loop may wait for a signal before its next round."""
        is_backing_off = any(
            child.pid is None and child.retry_at < math.inf for child in self._children
        )
        is_idle = self._stage == "ready" and not is_backing_off
        return IDLE_INTERVAL if is_idle else POLL_INTERVAL

    def _start_due(self) -> None:
        """Start each process that is not running and whose pause is over. Raise Failure if a
        process that is not optional cannot be started."""
        for child in self._children:
            if child.pid is None and self._system.now() >= child.retry_at:
                try:
                    child.pid = self._system.start(child.process)
                    child.starts += 1
                    self._write_status()
                except OSError as err:
                    self._give_up(child, f"{child.process.name} cannot be started: {err}")

    def _reap(self) -> list[tuple[_Child, int]]:
        """Return the supervised processes that have ended, with their exit codes."""
        ended = dict(self._system.reap())
        return [(child, ended[child.pid]) for child in self._children if child.pid in ended]

    def _handle_death(self, child: _Child, code: int) -> None:
        """Schedule a restart of the process after a pause, or give up on it if it has died too
        often (_give_up). If the server was ready and needs the process, return to the stage
        `starting`."""
        now = self._system.now()
        name = child.process.name
        cause = self._cause_of_kill(code)
        if child.hangs:
            limit = self._settings.hang_timeout
            child.last_exit = f"was killed because it did not answer for {limit:g} s"
        else:
            child.last_exit = describe_exit(code, cause)
        child.pid = None
        child.hangs = False
        deaths = [time for time in child.deaths if time > now - WINDOW]
        if cause != OUT_OF_MEMORY:
            deaths.append(now)
        child.deaths = deaths
        if self._stage == "ready" and not child.process.optional:
            self._stage = "starting"
            self._starting_since = now
        if len(deaths) > DEATHS_ALLOWED:
            problem = (
                f"{name} died {len(deaths)} times within {WINDOW:g} s, the last time it "
                f"{child.last_exit}"
            )
            reasons = [problem, self._system.last_error(child.process)]
            self._give_up(child, ": ".join(filter(None, reasons)))
        else:
            doublings = max(0, len(deaths) - 1)  # `deaths` is empty if only OOM kills occurred
            pause = min(BACKOFF_MAX, BACKOFF_FIRST * 2**doublings)
            child.retry_at = now + pause
            self._write_status()
            self._system.say(f"{name} {child.last_exit}; starting it again in {pause:g} s", "error")

    def _cause_of_kill(self, code: int) -> str:
        """Return why a process with this exit code was killed by SIGKILL, or "" if it was not. Call
        this once for each death, because it updates the number of OOM kills."""
        before = self._oom_kills
        self._oom_kills = self._system.oom_kills()
        if code != -signal.SIGKILL:
            return ""
        if before is None or self._oom_kills is None:
            return "perhaps out of memory"
        return "not out of memory" if self._oom_kills == before else OUT_OF_MEMORY

    def _kill_hung_processes(self) -> None:
        """Kill each process that has not answered for `hang_timeout` seconds, if that is not 0.
        `_reap` returns the process once it has ended."""
        limit = self._settings.hang_timeout
        if not limit:
            return
        for child in self._children:
            if child.pid and not child.hangs and self._system.silence(child.pid) >= limit:
                child.hangs = True
                self._system.kill_group(child.pid)

    def _give_up(self, child: _Child, reason: str) -> None:
        """Do not restart the process any more. Raise Failure if it is not optional."""
        if not child.process.optional:
            raise Failure(reason)
        child.retry_at = math.inf
        self._write_status()
        self._system.say(f"{reason}; going on without {child.process.name}", "error")

    def _check_readiness(self) -> None:
        """Enter the stage `ready` if everything is ready. Log that, or at intervals why not. Raise
        Failure if it takes too long or, before it was ever ready, if waiting will not help."""
        if self._stage == "ready":
            return
        down = [
            child for child in self._children if child.pid is None and not child.process.optional
        ]
        if down:
            reason = f"{down[0].process.name} {down[0].last_exit}"
        else:
            reason = self._system.ping()
        took = self._system.now() - self._starting_since
        if not reason:
            self._stage = "ready"
            self._has_been_ready = True
            self._write_status()
            self._next_report = REPORT_INTERVAL
            self._system.say(f"ready after {took:.1f} s")
            while self._when_ready:
                self._system.say(self._when_ready.pop(0))
        elif isinstance(reason, PermanentFailure) and not self._has_been_ready:
            raise Failure(f"this cannot start: {reason}")
        elif took > self._settings.start_timeout:
            raise Failure(f"not ready within {self._settings.start_timeout:g} s: {reason}")
        elif took > self._next_report:
            self._next_report += REPORT_INTERVAL
            if self._has_been_ready:
                self._system.say(f"not ready for {took:.0f} s: {reason}", "warning")
            else:
                self._system.say(f"still starting after {took:.0f} s: {reason}")

    def _stop(self) -> None:
        """Stop the processes one by one in reverse order, within one deadline, then kill any that
        remain."""
        self._stage = "stopping"
        self._write_status()
        # The server may have become ready, and have callers, since the last check.
        may_have_callers = self._has_been_ready or not self._system.ping()
        timeout = self._settings.stop_timeout
        if not may_have_callers:
            timeout = min(STOP_BEFORE_READY, timeout)
        deadline = self._system.now() + timeout
        for child in reversed(self._children):
            if child.pid is not None:
                self._system.signal(child.pid, child.process.stop_signal)
                self._await_end(child, deadline)
        for child in self._children:
            if child.pid is not None:
                self._system.say(
                    f"{child.process.name} did not stop in time: killing it", "warning"
                )
                self._system.kill_group(child.pid)
                self._await_end(child, self._system.now() + KILL_TIMEOUT)

    def _await_end(self, child: _Child, deadline: float) -> None:
        """Wait until the process has ended, but not after `deadline`. Record each process that ends
        meanwhile."""
        while child.pid is not None:
            left = deadline - self._system.now()
            if left <= 0:
                return
            self._system.wait(min(left, 1.0))
            for ended, code in self._reap():
                ended.last_exit = describe_exit(code)
                ended.pid = None
                self._write_status()

    def _write_status(self) -> None:
        processes = {}
        not_running = "stopped" if self._stage == "stopping" else "backing off"
        for child in self._children:
            state = "running" if child.pid else not_running
            processes[child.process.name] = ProcessStatus(
                child.pid, child.starts, state, child.last_exit
            )
        try:
            write_status(self._settings.status_file, self._stage, processes)
        except OSError as err:  # a full disk must not end the supervision
            self._system.say(f"the status cannot be written: {err}", "warning")
