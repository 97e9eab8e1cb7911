"""Tests the supervisor's policy in a simulated world in which only files are real."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from signal import SIGHUP, SIGINT, SIGKILL, SIGQUIT, SIGSEGV, SIGTERM, Signals
from typing import Any

import pytest

from serving.host.processes import describe_exit
from serving.pid1.supervisor import Supervisor
from serving.pid1.system import PermanentFailure, Process, System
from serving.settings.settings import Settings

pytestmark = pytest.mark.unit

SIGCHLD = 17
SETTINGS = Settings(start_timeout=30.0, stop_timeout=25.0, hang_timeout=15.0)


class FakeSystem(System):
    """A system whose events occur at given times, and end a wait if they send a signal. Processes
    end 0.1 s after their stop signal, or when a test says so."""

    supervisor: Supervisor

    def __init__(self) -> None:
        self.clock = 0.0
        self.killed_for_memory: int | None = 3  # the number from before the start
        self.hung: dict[str, float] = {}
        self.pids: dict[str, int] = {}
        self.history: list[tuple[float, str, str]] = []
        self.logged: list[str] = []
        self.deaf: set[str] = set()
        self.missing: set[str] = set()
        self.down: Callable[[], str] = lambda: ""
        self._events: list[tuple[float, Callable[[], int | None]]] = []
        self._ended: list[tuple[int, int]] = []
        self._next_pid = 100

    def run(self) -> int:
        return self.supervisor.run()

    def run_until(self, when: float) -> None:
        """Run until a SIGTERM at that time. Assert that the exit code is then 0."""
        self.at(when, self.send(SIGTERM))
        assert self.run() == 0

    def at(self, when: float, action: Callable[[], int | None]) -> None:
        self._events.append((when, action))

    def send(self, number: Signals) -> Callable[[], int]:
        return lambda: number

    def die(self, name: str, code: int) -> Callable[[], int]:
        def action() -> int:
            if name in self.pids:
                self._ended.append((self.pids.pop(name), code))
            return SIGCHLD

        return action

    def now(self) -> float:
        return self.clock

    def wait(self, timeout: float) -> int | None:
        end = self.clock + timeout
        while due := min(
            (each for each in self._events if each[0] <= end),
            key=lambda each: each[0],
            default=None,
        ):
            self._events.remove(due)
            self.clock = max(self.clock, due[0])
            if (number := due[1]()) is not None:
                return number
        self.clock = end
        return None

    def start(self, process: Process) -> int:
        if process.name in self.missing:
            raise FileNotFoundError(2, "No such file or directory", process.name)
        self._next_pid += 1
        self.pids[process.name] = self._next_pid
        self.history.append((round(self.clock, 2), "start", process.name))
        return self._next_pid

    def reap(self) -> list[tuple[int, int]]:
        ended, self._ended = self._ended, []
        return ended

    def signal(self, pid: int, number: Signals) -> None:
        name = self._name(pid)
        self.history.append((round(self.clock, 2), number.name, name))
        if name not in self.deaf:
            self.at(self.clock + 0.1, self.die(name, 0))

    def kill_group(self, pid: int) -> None:
        name = self._name(pid)
        self.history.append((round(self.clock, 2), "SIGKILL", name))
        self.hung.pop(name, None)
        self.at(self.clock, self.die(name, -SIGKILL))

    def silence(self, pid: int) -> float:
        name = next((name for name, known in self.pids.items() if known == pid), "")
        return self.clock - self.hung.get(name, self.clock)

    def hang(self, name: str) -> Callable[[], None]:
        return lambda: self.hung.update({name: self.clock})

    def answer(self, name: str) -> Callable[[], None]:
        return lambda: (self.hung.pop(name, None), None)[1]

    def last_error(self, process: Process) -> str:
        return f"{process.name}'s last words"

    def oom_kills(self) -> int | None:
        return self.killed_for_memory

    def run_out_of_memory(self, name: str) -> Callable[[], int]:
        def action() -> int:
            self.killed_for_memory = (self.killed_for_memory or 0) + 1
            return self.die(name, -SIGKILL)()

        return action

    def ping(self) -> str:
        return self.down()

    def drain(self) -> None:
        self.logged.append("(drained)")

    def say(self, text: str, level: str = "info") -> None:
        self.logged.append(text)

    def has_message(self, *words: str) -> bool:
        """Return whether a single log line contains all of the words."""
        return any(all(word in line for word in words) for line in self.logged)

    def last_message_has(self, *words: str) -> bool:
        """Return whether the last log line contains all of the words."""
        return all(word in self.logged[-1] for word in words)

    def starts(self, name: str) -> list[float]:
        return [when for when, what, who in self.history if (what, who) == ("start", name)]

    def stops(self) -> list[tuple[str, str]]:
        return [(what, who) for _, what, who in self.history if what != "start"]

    def _name(self, pid: int) -> str:
        return next(name for name, known in self.pids.items() if known == pid)


@pytest.fixture
def status_file(tmp_path: Path) -> Path:
    return tmp_path / "status.json"


@pytest.fixture
def system(status_file: Path) -> FakeSystem:
    """Return a system with a supervisor of three processes."""
    table = [
        Process("tritonserver", ("tritonserver",), {}, Path("/")),
        Process("gunicorn", ("gunicorn",), {}, Path("/")),
        Process("nginx", ("nginx",), {}, Path("/"), SIGQUIT),
    ]
    world = FakeSystem()
    world.supervisor = Supervisor(table, world, replace(SETTINGS, run_dir=status_file.parent))
    return world


IN_ORDER = [("SIGQUIT", "nginx"), ("SIGTERM", "gunicorn"), ("SIGTERM", "tritonserver")]


def test_start_all_in_the_order_of_the_table_and_log_when_ready(system: FakeSystem) -> None:
    system.down = lambda: "/ping: 503 loading" if system.clock < 2 else ""
    system.run_until(5)
    assert [who for _, what, who in system.history if what == "start"] == [
        "tritonserver",
        "gunicorn",
        "nginx",
    ]
    assert (
        len(system.logged) == 3
        and "2.0 s" in system.logged[0]
        and system.logged[1:] == ["(drained)", "stopped"]
    )


def test_restart_a_process_that_died_after_a_growing_pause(system: FakeSystem) -> None:
    for when in (10, 20, 30, 40):
        system.at(when, system.die("gunicorn", 3))
    system.run_until(60)
    pauses = [round(start % 10, 2) for start in system.starts("gunicorn")[1:]]
    assert pauses == pytest.approx([0.25, 0.5, 1, 2], abs=0.11)
    assert system.has_message("gunicorn", "status 3", "0.25 s")
    assert len(system.starts("tritonserver")) == len(system.starts("nginx")) == 1


def test_reset_the_pause_after_a_minute_without_deaths(system: FakeSystem) -> None:
    for when in (10, 20, 100):
        system.at(when, system.die("nginx", 1))
    system.run_until(110)
    assert "0.25 s" in system.logged[-4]


def test_stop_everything_at_the_sixth_death_in_a_minute(system: FakeSystem) -> None:
    for when in (10, 15, 20, 25, 30, 35):
        system.at(when, system.die("tritonserver", -SIGKILL))
    assert system.run() == 1
    assert system.stops() == IN_ORDER[:2]
    assert system.last_message_has(
        "tritonserver", "6 times", "SIGKILL", "tritonserver's last words"
    )


def test_always_restart_a_process_that_ran_out_of_memory(system: FakeSystem) -> None:
    for when in range(10, 50, 2):
        system.at(when, system.run_out_of_memory("tritonserver"))
    system.run_until(60)
    assert len(system.starts("tritonserver")) == 21


def test_count_the_deaths_of_each_process_separately(system: FakeSystem) -> None:
    for when in range(10, 20):
        system.at(when, system.die(("nginx", "gunicorn")[when % 2], 1))
    system.run_until(50)


def test_keep_restarting_in_a_slow_crash_loop(system: FakeSystem) -> None:
    for when in range(10, 200, 13):
        system.at(when, system.die("tritonserver", 1))
    system.run_until(300)
    assert len(system.starts("tritonserver")) == 16


def test_stop_everything_if_the_start_is_not_ready_in_time(system: FakeSystem) -> None:
    system.down = lambda: "/ping: 503 model 'resnet' is not ready"
    assert system.run() == 1
    assert 30 < system.clock < 31
    assert system.stops() == IN_ORDER
    assert system.last_message_has("30 s", "503 model 'resnet'")


def test_stop_everything_at_once_if_a_retry_cannot_help(system: FakeSystem) -> None:
    system.down = lambda: (
        PermanentFailure("/ping: 503 a damaged model") if system.clock > 5 else "/ping: 503 loading"
    )
    assert system.run() == 1
    assert 5 < system.clock < 6
    assert system.last_message_has("503 a damaged model")


def test_wait_for_a_restart_even_if_ping_reports_a_failure(system: FakeSystem) -> None:
    system.down = lambda: PermanentFailure("/ping: 503") if 50 < system.clock < 70 else ""
    system.at(60, system.die("tritonserver", -SIGSEGV))
    system.run_until(90)


def test_stop_everything_if_a_restart_is_not_ready_in_time(system: FakeSystem) -> None:
    system.down = lambda: "/ping: 503" if system.clock > 50 else ""
    system.at(60, system.die("tritonserver", -SIGSEGV))
    assert system.run() == 1
    assert 90 < system.clock < 91


def test_do_not_extend_the_start_for_deaths_while_starting(system: FakeSystem) -> None:
    system.down = lambda: "/ping: 503"
    for when in (12, 24, 29.95):
        system.at(when, system.die("tritonserver", 1))
    assert system.run() == 1
    assert system.clock < 31
    assert system.last_message_has("30 s", "tritonserver", "status 1")


@pytest.mark.parametrize("number", [SIGTERM, SIGINT, SIGHUP, SIGQUIT])
@pytest.mark.parametrize("stage", ["starting", "ready"])
def test_stop_all_in_order_on_a_signal(system: FakeSystem, number: Signals, stage: str) -> None:
    system.down = lambda: "/ping: 503" if stage == "starting" else ""
    system.at(5, system.send(number))
    assert system.run() == 0
    assert system.stops() == IN_ORDER
    assert system.logged[-1] == "stopped"
    assert system.clock < 6


def test_start_no_process_that_backs_off_during_a_stop(system: FakeSystem) -> None:
    system.at(5, system.die("gunicorn", 1))
    system.at(5.1, system.send(SIGTERM))
    assert system.run() == 0
    assert system.stops() == [IN_ORDER[0], IN_ORDER[2]]
    assert len(system.starts("gunicorn")) == 1


def test_ignore_a_second_signal_while_stopping(system: FakeSystem) -> None:
    for when in (5, 5.05, 5.15, 5.25):
        system.at(when, system.send(SIGINT))
    assert system.run() == 0
    assert system.stops() == IN_ORDER


def test_kill_a_process_that_ignores_signals_soon_during_a_start(system: FakeSystem) -> None:
    system.deaf = {"tritonserver"}
    system.down = lambda: "/ping: 503"
    system.at(1, system.send(SIGINT))
    assert system.run() == 0
    assert system.history[-1] == (4.0, "SIGKILL", "tritonserver")


def test_stop_all_within_one_shared_deadline(system: FakeSystem) -> None:
    system.deaf = {"nginx", "gunicorn", "tritonserver"}
    system.run_until(5)
    assert {(when, who) for when, what, who in system.history if what == "SIGKILL"} == {
        (30.0, "nginx"),
        (30.0, "gunicorn"),
        (30.0, "tritonserver"),
    }


def test_stop_everything_if_a_program_is_missing(system: FakeSystem) -> None:
    system.missing = {"nginx"}
    assert system.run() == 1
    assert system.stops() == IN_ORDER[1:]
    assert system.last_message_has("nginx", "[Errno 2]")


def test_write_every_stage_to_the_status_file(system: FakeSystem, status_file: Path) -> None:
    seen: list[dict[str, Any]] = []

    def look() -> int:
        seen.append(json.loads(status_file.read_text()))
        return SIGCHLD

    system.down = lambda: "/ping: 503" if system.clock < 2 else ""
    for when in (1, 4, 5.1, 7):
        system.at(when, look)
    system.at(5, system.die("tritonserver", -SIGKILL))
    system.run_until(8)
    look()
    triton = [status["processes"]["tritonserver"] for status in seen]
    assert [status["stage"] for status in seen] == [
        "starting",
        "ready",
        "starting",
        "ready",
        "stopping",
    ]
    assert [each["state"] for each in triton] == [
        "running",
        "running",
        "backing off",
        "running",
        "stopped",
    ]
    assert [each["starts"] for each in triton] == [1, 1, 1, 2, 2]
    assert "SIGKILL" in triton[2]["last_exit"]
    assert triton[0]["pid"] == 101 and triton[2]["pid"] is None


def test_ignore_an_unwritable_status_file(system: FakeSystem, status_file: Path) -> None:
    status_file.mkdir()
    system.run_until(5)
    assert system.stops() == IN_ORDER
    assert "[Errno 21]" in system.logged[0]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "status 0"),
        (3, "status 3"),
        (-9, "SIGKILL"),
        (-11, "native code"),
        (-15, "SIGTERM"),
        (-99, "signal 99"),
    ],
)
def test_explain_exit_codes_in_words(code: int, words: str) -> None:
    assert words in describe_exit(code)


@pytest.mark.parametrize(
    ("kills", "words"),
    [(4, "out of memory"), (3, "not out of memory"), (None, "perhaps out of memory")],
)
def test_blame_memory_for_a_sigkill(system: FakeSystem, kills: int | None, words: str) -> None:
    def killed() -> int:
        system.killed_for_memory = kills
        return system.die("gunicorn", -SIGKILL)()

    system.at(10, killed)
    system.run_until(20)
    assert system.has_message("gunicorn", f"SIGKILL ({words})")


def test_kill_a_process_that_hangs_longer_than_its_timeout(system: FakeSystem) -> None:
    system.at(100.25, system.hang("tritonserver"))
    system.run_until(130)
    assert system.stops() == [("SIGKILL", "tritonserver"), *IN_ORDER]
    assert 115 <= system.starts("tritonserver")[1] <= 118
    assert system.has_message("tritonserver", "15 s", "0.25 s")


def test_restart_the_hang_timeout_with_each_answer(system: FakeSystem) -> None:
    for when in range(100, 160, 14):
        system.at(when, system.hang("tritonserver"))
        system.at(when + 12, system.answer("tritonserver"))
    system.run_until(200)
    assert system.stops() == IN_ORDER


@pytest.fixture
def with_agent(system: FakeSystem, status_file: Path) -> FakeSystem:
    table = [
        Process("nginx", ("nginx",), {}, Path("/")),
        Process("agent", ("agent",), {}, Path("/"), optional=True),
    ]
    settings = replace(SETTINGS, run_dir=status_file.parent, hang_timeout=0.0)
    system.supervisor = Supervisor(table, system, settings)
    return system


def test_kill_nothing_without_a_hang_timeout(with_agent: FakeSystem) -> None:
    with_agent.at(10, with_agent.hang("nginx"))
    with_agent.run_until(1000)
    assert len(with_agent.starts("nginx")) == 1


def test_restart_an_optional_process_without_waiting_for_it(with_agent: FakeSystem) -> None:
    with_agent.at(50, with_agent.die("agent", 1))
    with_agent.run_until(100)
    assert with_agent.starts("agent")[1] == pytest.approx(50.25, abs=0.11)
    assert len([line for line in with_agent.logged if line.startswith("ready")]) == 1


def test_serve_on_if_an_optional_process_cannot_start(with_agent: FakeSystem) -> None:
    with_agent.missing = {"agent"}
    with_agent.run_until(10)
    assert "agent" in with_agent.logged[0]
