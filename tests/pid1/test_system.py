"""Tests the supervisor's system calls with real processes. Code that reaps runs in a separate
process, because it reaps all child processes."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from serving.pid1.log import Output
from serving.pid1.system import HealthCheck, PermanentFailure, System
from tests.support.harness import PATIENCE, ROOT, wait_until
from tests.support.started import ends_with, kill

pytestmark = pytest.mark.unit

# Supervises `sh -c` commands, {name: command} in argv[1], with the status file argv[2]. /ping is at
# port argv[3]. As a subreaper it inherits orphans, as PID 1 does.
SUPERVISE = """
import ctypes, json, os, sys
from pathlib import Path
from serving.pid1.supervisor import Supervisor
from serving.pid1.system import Process, System
from serving.pid1.log import Output
from serving.settings.settings import Settings
ctypes.CDLL(None).prctl(36, 1, 0, 0, 0)  # PR_SET_CHILD_SUBREAPER
commands, folder, port = json.loads(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
system = System(("127.0.0.1", port), Output(1), hang_timeout=3.0)
system.catch_signals()
table = [
    Process(
        name,
        ("sh", "-c", command),
        os.environ,
        folder,
        noise=("harmless",),
        leftovers=(f"{folder}/left-*",),
        leftover_folders=f"{folder}/made-*",
    )
    for name, command in commands.items()
]
settings = Settings(run_dir=folder, start_timeout=20.0, stop_timeout=1.5, hang_timeout=3.0)
sys.exit(Supervisor(table, system, settings).run())
"""


class Supervised:
    def __init__(self, folder: Path, port: int, commands: dict[str, str]) -> None:
        self.folder, self._log = folder, folder / "log"
        with self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-c", SUPERVISE, json.dumps(commands), str(folder), str(port)],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(ROOT)},
            )

        ends_with(lambda: kill(self.process))

    def lines(self) -> list[str]:
        return self._log.read_text().splitlines()

    def entries(self, process: str = "serve") -> list[str]:
        logged = [json.loads(line) for line in self.lines() if line.startswith("{")]
        return [entry["message"] for entry in logged if entry["process"] == process]

    def says(self, *words: str, process: str = "serve") -> None:
        """Wait for a log message that contains all of the words."""

        def is_said() -> bool:
            return any(all(word in message for word in words) for message in self.entries(process))

        wait_until(is_said, lambda: f"{words} in {self.lines()}")

    def number(self, process: str, text: str) -> int:
        """Wait for the number that the process prints after that text."""
        self.says(text, process=process)
        return next(
            int(message.partition(text)[2]) for message in self.entries(process) if text in message
        )

    def pid(self, name: str) -> int:
        """Return the process id, or 0 if the process is not running."""
        wait_until((self.folder / "status.json").exists, "the supervisor has told its processes")
        return int(
            json.loads((self.folder / "status.json").read_text())["processes"][name]["pid"] or 0
        )

    def stop(self) -> int:
        self.process.terminate()
        return self.process.wait(PATIENCE)


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}").exists()


@contextlib.contextmanager
def answering(status: int = 200, body: bytes = b"") -> Iterator[int]:
    """Answer each GET of /ping with this status and body, and other paths with 404. Yield the
    port."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status if self.path == "/ping" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[[dict[str, str]], Supervised]]:
    started: list[Supervised] = []

    def start(commands: dict[str, str]) -> Supervised:
        started.append(Supervised(tmp_path, ping_port, commands))
        return started[-1]

    with answering() as ping_port:
        yield start
        for supervised in started:
            if supervised.process.poll() is None:
                supervised.stop()


Start = Callable[[dict[str, str]], Supervised]


def test_stop_all_on_a_signal_and_exit_with_0(supervise: Start) -> None:
    running = supervise({"one": "echo hello; exec sleep 100", "two": "exec sleep 100"})
    running.says("ready after")
    pids = [running.pid("one"), running.pid("two")]
    assert running.stop() == 0
    assert not any(alive(pid) for pid in pids)
    assert running.entries("one") == ["hello"]
    assert running.entries()[-1] == "stopped"


def test_restart_a_killed_process_and_end_the_rest_of_its_group(supervise: Start) -> None:
    running = supervise({"one": "sleep 100 & echo rest=$!; wait"})
    rest = running.number("one", "rest=")
    first = running.pid("one")
    os.kill(first, signal.SIGKILL)
    running.says("one", "SIGKILL", "0.25 s")
    wait_until(lambda: not alive(rest), "the rest of its group is gone")
    wait_until(lambda: running.pid("one") not in (first, 0), "it is back")
    assert running.stop() == 0


def test_remove_what_a_killed_process_left_but_no_older_folder(
    supervise: Start, tmp_path: Path
) -> None:
    (tmp_path / "made-before").mkdir()
    os.utime(tmp_path / "made-before", (0, 0))
    running = supervise({"one": "touch left-$$; mkdir made-$$; touch made-$$/file; exec sleep 100"})
    first = running.pid("one")
    left = [tmp_path / f"left-{first}", tmp_path / f"made-{first}/file"]
    wait_until(lambda: all(path.exists() for path in left), "it leaves something behind")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: not any(path.exists() for path in left), "that is removed")
    assert running.stop() == 0
    assert not list(tmp_path.glob("left-*")) and (tmp_path / "made-before").is_dir()


def test_keep_folders_while_another_process_of_that_name_runs(
    supervise: Start, tmp_path: Path
) -> None:
    """The folder may have just been created by the tritonserver of another `serve`."""
    name = f"one{os.getpid()}"  # a name that no other run of the tests uses
    shutil.copy("/bin/sleep", tmp_path / name)
    other = subprocess.Popen([tmp_path / name, "100"])
    ends_with(lambda: kill(other))
    running = supervise({name: "mkdir made-$$; exec sleep 100"})
    first = running.pid(name)
    wait_until((tmp_path / f"made-{first}").is_dir, "it makes it")
    os.kill(first, signal.SIGKILL)
    wait_until(lambda: running.pid(name) not in (first, 0), "another is started")
    assert (tmp_path / f"made-{first}").is_dir()
    kill(other)
    running.stop()


def test_end_all_when_the_supervisor_is_killed(supervise: Start) -> None:
    running = supervise(
        {"one": "exec sleep 100", "two": "trap 'kill $!; exit' TERM; sleep 100 & wait"}
    )
    running.says("ready")
    pids = [running.pid("one"), running.pid("two")]
    running.process.kill()
    running.process.wait()
    wait_until(lambda: not any(alive(pid) for pid in pids), "they are gone")


def test_reap_an_orphan(supervise: Start) -> None:
    running = supervise({"one": "sh -c 'setsid sleep 0.5 & echo orphan=$!'; exec sleep 100"})
    orphan = running.number("one", "orphan=")
    wait_until(lambda: not alive(orphan), "the orphan is reaped")
    assert running.stop() == 0


def test_kill_a_process_that_ignores_sigterm_with_its_group(supervise: Start) -> None:
    running = supervise(
        {"deaf": "trap '' TERM; sleep 100 & echo rest=$!; while :; do sleep 1; done"}
    )
    rest = running.number("deaf", "rest=")
    running.says("ready")
    assert running.stop() == 0
    wait_until(lambda: not alive(rest), "the rest of its group is gone")
    running.says("deaf", "killing")


@pytest.mark.parametrize(
    ("status", "body", "reason"),
    [
        (200, b"", ""),
        (
            503,
            b'{"error": "resnet is loading", "code": "model_not_ready"}',
            "/ping: 503 resnet is loading",
        ),
        (
            503,
            b'{"error": "resnet is damaged", "code": "model_failed"}',
            "/ping: 503 resnet is damaged",
        ),
        (502, b"<html>", "/ping: 502 <html>"),
    ],
)
def test_return_why_ping_is_not_200(status: int, body: bytes, reason: str) -> None:
    with answering(status, body) as port:
        answer = System(("127.0.0.1", port), Output(1)).ping()
    assert (answer, isinstance(answer, PermanentFailure)) == (reason, "damaged" in reason)


def test_report_that_nothing_listens_for_ping() -> None:
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))  # so that no other program listens there
        answer = System(("127.0.0.1", silent.getsockname()[1]), Output(1)).ping()
    assert "[Errno 111]" in answer


def test_ignore_time_in_which_the_container_was_paused() -> None:
    now, is_paused = 0.0, True

    def send(*_: object) -> None:
        nonlocal now
        if is_paused:
            now += 3600
            raise TimeoutError

    check = HealthCheck(("127.0.0.1", 1), "/", 5.0, send, lambda: now)
    check.check_once()
    assert check.silence == 0, "it has not answered yet"
    is_paused = False
    check.check_once()
    is_paused = True
    check.check_once()
    check.check_once()
    assert check.silence == 12
