"""gunicorn with our worker, as serve starts it but for the app."""

import http.client
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from serving.front.worker import PATIENCE, SPARE
from tests.support.harness import ROOT, wait_until

THREADS = 6
APP = """
import time

def app(environ, start_response):
    path, _, seconds = environ["PATH_INFO"].strip("/").partition("/")
    time.sleep(float(seconds or 0))
    if path == "exit":
        raise SystemExit(1)
    if path == "fail":
        raise ValueError("on purpose")
    read = len(environ["wsgi.input"].read()) if path == "read" else 0
    start_response("413 Too large" if path == "refuse" else "200 OK", [("Content-Length", str(len(str(read))))])
    return [str(read).encode()]
"""


@dataclass
class Gunicorn:
    """One worker of THREADS threads."""

    process: subprocess.Popen[bytes]
    socket: Path

    def connect(self) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("localhost", timeout=10)
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(10)
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
def gunicorn(tmp_path: Path) -> Iterator[Gunicorn]:
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
    command += [f"--chdir={tmp_path}", "--graceful-timeout=2", "--no-control-socket"]
    with subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(ROOT)}) as process:
        running = Gunicorn(process, address)
        wait_until(lambda: address.exists() and running.get("/read") == (200, b"0"), 20, "gunicorn")
        yield running
        process.terminate()


def cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


def together(count: int, call: Callable[[], object]) -> tuple[list[object], float]:
    """What so many calls at once give, and the seconds it takes."""
    started = time.monotonic()
    with ThreadPoolExecutor(count) as callers:
        calls = [callers.submit(call) for _ in range(count)]
    return [each.result() for each in calls], time.monotonic() - started


def test_there_are_threads_for_what_is_in_work_and_they_end_again(gunicorn: Gunicorn) -> None:
    wait_until(lambda: gunicorn.threads() == SPARE, 5, "no more threads than the spare ones")
    answers, seconds = together(4, lambda: gunicorn.get("/read/1.5"))
    assert answers == [(200, b"0")] * 4
    assert seconds < 3, "they were in work at the same time"
    assert gunicorn.threads() > SPARE
    wait_until(lambda: gunicorn.threads() == SPARE, 10 * PATIENCE, "the others' end")


def test_no_more_are_in_work_than_threads_and_the_rest_waits(gunicorn: Gunicorn) -> None:
    answers, seconds = together(THREADS + 1, lambda: gunicorn.get("/read/1"))
    assert answers == [(200, b"0")] * (THREADS + 1)
    assert 2 <= seconds < 4
    assert gunicorn.threads() <= THREADS


def test_an_app_that_fails_or_exits_takes_no_thread_away(gunicorn: Gunicorn) -> None:
    for _ in range(THREADS + 1):
        assert gunicorn.get("/fail")[0] == 500
        gunicorn.leave("/exit")
    together(THREADS, lambda: gunicorn.leave("/exit/0.5"))
    answers, _ = together(THREADS, lambda: gunicorn.get("/read/0.3"))
    assert answers == [(200, b"0")] * THREADS


def test_an_answer_arrives_though_the_body_was_not_read(gunicorn: Gunicorn) -> None:
    connection = gunicorn.connect()
    connection.putrequest("POST", "/refuse")
    connection.putheader("Content-Length", f"{10**7}")
    connection.endheaders()
    connection.send(bytes(60_000))
    time.sleep(0.3)
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
    answers, _ = together(THREADS, lambda: gunicorn.get("/read/0.3"))
    assert answers == [(200, b"0")] * THREADS


def test_a_worker_that_may_open_no_more_files_waits_until_it_may(gunicorn: Gunicorn) -> None:
    worker = gunicorn.worker()
    taken = {int(entry.name) for entry in Path(f"/proc/{worker.pid}/fd").iterdir()}
    few = next(number for number in range(1000) if number not in taken)
    before = worker.rlimit(psutil.RLIMIT_NOFILE)
    worker.rlimit(psutil.RLIMIT_NOFILE, (few, before[1]))
    time.sleep(2 * PATIENCE)  # a thread that waits has its number already
    used = cpu_seconds(worker)
    caller = threading.Thread(target=lambda: answers.append(gunicorn.get("/read")))
    answers: list[object] = []
    caller.start()
    time.sleep(1)
    assert answers == []
    assert cpu_seconds(worker) - used < 0.3, "it does not try without a pause"
    worker.rlimit(psutil.RLIMIT_NOFILE, before)
    caller.join()
    assert answers == [(200, b"0")]


def test_what_is_in_work_at_the_stop_is_answered_and_the_stop_waits_for_nothing_else(gunicorn: Gunicorn) -> None:
    answers: list[object] = []
    caller = threading.Thread(target=lambda: answers.append(gunicorn.get("/read/1")))
    caller.start()
    time.sleep(0.3)
    started = time.monotonic()
    gunicorn.process.send_signal(signal.SIGTERM)
    assert gunicorn.process.wait(10) == 0
    caller.join()
    assert answers == [(200, b"0")]
    assert 0.5 < time.monotonic() - started < 3


def test_a_stop_does_not_wait_longer_than_the_graceful_timeout(gunicorn: Gunicorn) -> None:
    connection = gunicorn.connect()
    connection.request("GET", "/read/60")
    time.sleep(0.3)
    started = time.monotonic()
    gunicorn.process.send_signal(signal.SIGTERM)
    gunicorn.process.wait(15)
    assert 1.5 < time.monotonic() - started < 5
    connection.close()
