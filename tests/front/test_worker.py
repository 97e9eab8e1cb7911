"""gunicorn with our worker, as serve starts it but for the app."""

import http.client
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from serving.front.worker import PATIENCE as ACCEPT_SECONDS
from serving.front.worker import SPARE
from tests.support.harness import PATIENCE, ROOT, wait_until
from tests.support.started import ends_with, kill

THREADS = 6
APP = """
import threading, time
from pathlib import Path

at_work, peak, lock = 0, 0, threading.Lock()

def count(change):
    global at_work, peak
    with lock:
        at_work += change
        peak = max(peak, at_work)
        Path("at-work").write_text(str(at_work))
        Path("peak").write_text(str(peak))

def app(environ, start_response):
    path = environ["PATH_INFO"].strip("/")
    count(1)
    try:
        if path.startswith("held"):
            while not Path("go").exists():
                time.sleep(0.01)
        if path.endswith("exit"):
            raise SystemExit(1)
        if path == "fail":
            raise ValueError("on purpose")
        read = len(environ["wsgi.input"].read()) if path == "read" else 0
    finally:
        count(-1)
    start_response("413 Too large" if path == "refuse" else "200 OK", [("Content-Length", str(len(str(read))))])
    return [str(read).encode()]
"""


@dataclass
class Gunicorn:
    """One worker of THREADS threads; a call of a path that begins with "held" lasts until `go`."""

    process: subprocess.Popen[bytes]
    socket: Path

    def number(self, name: str) -> int:
        """What the app counts: `at-work`, and its `peak`."""
        file = self.socket.with_name(name)
        return int(file.read_text() or 0) if file.exists() else 0

    def wait_at_work(self, count: int) -> None:
        wait_until(lambda: self.number("at-work") == count, f"{count} calls at work")

    def go(self) -> None:
        self.socket.with_name("go").touch()

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=PATIENCE)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE)
        connection.sock.connect(str(self.socket))
        return connection

    def get(self, path: str, body: bytes = b"") -> tuple[int, bytes]:
        connection = self.connect()
        try:
            connection.request("POST", path, body)
            reply = connection.getresponse()
            return reply.status, reply.read()
        finally:
            connection.close()

    def answers(self) -> bool:
        try:
            return self.get("/read") == (200, b"0")
        except OSError:
            return False

    def leave(self, path: str) -> None:
        """A call that gets no answer."""
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            self.get(path)

    def worker(self) -> psutil.Process:
        (child,) = psutil.Process(self.process.pid).children()
        return child

    def threads(self) -> int:
        """Those of the one worker, without its first."""
        return int(self.worker().num_threads()) - 1


@pytest.fixture
def graceful() -> int:
    """Seconds that a stop waits for what is in work."""
    return int(PATIENCE)


@pytest.fixture
def gunicorn(tmp_path: Path, graceful: int) -> Iterator[Gunicorn]:
    (tmp_path / "slow.py").write_text(APP)
    address = tmp_path / "g.sock"
    command = [
        sys.executable,
        "-m",
        "gunicorn",
        "slow:app",
        "--worker-class=serving.front.worker.Worker",
        "--workers=1",
    ]
    command += [f"--bind=unix:{address}", f"--threads={THREADS}", f"--worker-connections={THREADS}", "--keep-alive=0"]
    command += [f"--chdir={tmp_path}", f"--graceful-timeout={graceful}", "--no-control-socket"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)})
    ends_with(lambda: kill(process))
    running = Gunicorn(process, address)
    wait_until(running.answers, "gunicorn answers")
    yield running
    running.go()
    process.terminate()
    process.wait(PATIENCE)


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


@contextmanager
def together(count: int, call: Callable[[], object]) -> Iterator[list[Future[object]]]:
    """So many calls at once."""
    with ThreadPoolExecutor(count) as callers:
        yield [callers.submit(call) for _ in range(count)]


def answers(calls: list[Future[object]]) -> list[object]:
    return [each.result() for each in calls]


def test_there_are_threads_for_what_is_in_work_and_they_end_again(gunicorn: Gunicorn) -> None:
    wait_until(lambda: gunicorn.threads() == SPARE, "no more threads than the spare ones")
    with together(4, lambda: gunicorn.get("/held")) as calls:
        gunicorn.wait_at_work(4)
        assert gunicorn.threads() > SPARE
        gunicorn.go()
        assert answers(calls) == [(200, b"0")] * 4
    wait_until(lambda: gunicorn.threads() == SPARE, "the others' end")


def test_no_more_are_in_work_than_threads_and_the_rest_waits(gunicorn: Gunicorn) -> None:
    with together(THREADS + 1, lambda: gunicorn.get("/held")) as calls:
        gunicorn.wait_at_work(THREADS)
        assert gunicorn.threads() <= THREADS
        gunicorn.go()
        assert answers(calls) == [(200, b"0")] * (THREADS + 1)
    assert gunicorn.number("peak") == THREADS


def test_an_app_that_fails_or_exits_takes_no_thread_away(gunicorn: Gunicorn) -> None:
    for _ in range(THREADS + 1):
        assert gunicorn.get("/fail")[0] == 500
        gunicorn.leave("/exit")
    with together(THREADS, lambda: gunicorn.leave("/held-exit")):
        gunicorn.wait_at_work(THREADS)
        gunicorn.go()
    assert_all_threads_answer(gunicorn)


def assert_all_threads_answer(gunicorn: Gunicorn) -> None:
    gunicorn.socket.with_name("go").unlink(missing_ok=True)
    with together(THREADS, lambda: gunicorn.get("/held")) as calls:
        gunicorn.wait_at_work(THREADS)
        gunicorn.go()
        assert answers(calls) == [(200, b"0")] * THREADS


def test_an_answer_arrives_though_the_body_was_not_read(gunicorn: Gunicorn) -> None:
    connection = gunicorn.connect()
    connection.putrequest("POST", "/refuse")
    connection.putheader("Content-Length", f"{10**7}")
    connection.endheaders()
    connection.send(bytes(60_000))
    select.select([connection.sock], [], [], PATIENCE)  # until the answer comes
    connection.send(b"more")
    assert connection.getresponse().status == 413
    connection.close()
    assert gunicorn.get("/read", bytes(10**7)) == (200, b"10000000")


def test_callers_who_leave_or_say_nothing_take_no_thread_away_for_good(gunicorn: Gunicorn) -> None:
    silent = [gunicorn.connect() for _ in range(THREADS)]
    for connection in silent:
        connection.close()
    half = gunicorn.connect()
    half.putrequest("POST", "/read")
    half.putheader("Content-Length", "10")
    half.endheaders(b"five!")
    half.close()
    assert_all_threads_answer(gunicorn)


def test_a_worker_that_may_open_no_more_files_waits_until_it_may(gunicorn: Gunicorn) -> None:
    worker = gunicorn.worker()
    taken = {int(entry.name) for entry in Path(f"/proc/{worker.pid}/fd").iterdir()}
    few = next(number for number in range(1000) if number not in taken)
    before = worker.rlimit(psutil.RLIMIT_NOFILE)
    worker.rlimit(psutil.RLIMIT_NOFILE, (few, before[1]))
    time.sleep(4 * ACCEPT_SECONDS)  # a thread that waits has its number already
    used = cpu_seconds(worker)
    with together(1, lambda: gunicorn.get("/read")) as (call,):
        time.sleep(1)
        assert not call.done()
        assert cpu_seconds(worker) - used < 0.3, "it does not try without a pause"
        worker.rlimit(psutil.RLIMIT_NOFILE, before)
        assert call.result() == (200, b"0")


def test_what_is_in_work_at_the_stop_is_answered_and_the_stop_waits_for_nothing_else(gunicorn: Gunicorn) -> None:
    with together(1, lambda: gunicorn.get("/held")) as (call,):
        gunicorn.wait_at_work(1)
        gunicorn.process.send_signal(signal.SIGTERM)
        gunicorn.go()
        assert call.result() == (200, b"0")
    assert gunicorn.process.wait(PATIENCE / 2) == 0, "the graceful timeout is PATIENCE"


@pytest.mark.parametrize("graceful", [2])
def test_a_stop_does_not_wait_longer_than_the_graceful_timeout(gunicorn: Gunicorn) -> None:
    connection = gunicorn.connect()
    connection.request("GET", "/held")
    gunicorn.wait_at_work(1)
    gunicorn.process.send_signal(signal.SIGTERM)
    gunicorn.process.wait(PATIENCE)
    connection.close()
