"""Tests gunicorn with the options that `serve` gives it, and with an app whose requests wait until
the test lets them continue."""

import http.client
import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from gunicorn.workers.gthread import DEFAULT_WORKER_DATA_TIMEOUT

from serving.pid1.processes import gunicorn as gunicorn_process
from serving.settings.settings import Settings
from tests.support.harness import PATIENCE, ROOT, wait_until
from tests.support.started import ends_with, kill

# in total, including the workers that `serve` would start for large bodies
WORKERS, ALL_WORKERS = 2, 4
THREADS = 2
# the options that select this project's app
OTHERS = ("wsgi:app", "--preload", "--chdir", "--config")
APP = """
import gc
import sys
import time
from pathlib import Path

import msgspec

def parse():
    lists = msgspec.json.decode(b"[" + b"[]," * 300_000 + b"0]")
    return gc.get_stats()[2]["collections"]

def app(environ, start_response):
    if environ["PATH_INFO"] == "/parse":
        before = gc.get_stats()[2]["collections"]
        start_response("200 OK", [])
        return [f"{parse() - before} {sys.getswitchinterval()}".encode()]
    if name := environ["PATH_INFO"].strip("/"):
        Path(f"{name}.begun").touch()
        while not Path(name.partition("-")[0]).exists():
            time.sleep(0.01)
    start_response("200 OK", [("Content-Length", "0")])
    return []
"""


def connect(folder: Path) -> http.client.HTTPConnection:
    connection = http.client.HTTPConnection("localhost")
    connection.sock = socket.socket(socket.AF_UNIX)
    connection.sock.settimeout(PATIENCE)
    connection.sock.connect(str(folder / "gunicorn.sock"))
    return connection


def get(folder: Path, path: str) -> int:
    """Return the status of the reply, or 0 if the connection is closed without one."""
    connection = connect(folder)
    with connection.sock:
        connection.request("GET", path)
        try:
            return connection.getresponse().status
        except (OSError, http.client.HTTPException):
            return 0


def start(folder: Path, **settings: Any) -> subprocess.Popen[bytes]:
    """Start gunicorn with the app, and wait until it listens."""
    (folder / "waiting.py").write_text(APP)
    hooks = "from serving.front.gunicorn_config import post_fork, pre_request"
    (folder / "hooks.py").write_text(hooks)
    described = gunicorn_process(replace(Settings(), run_dir=folder, **settings), os.environ)
    command = [part for part in described.command if not part.startswith(OTHERS)]
    command += ["--config=hooks.py", "waiting:app"]
    environ, log = os.environ | {"PYTHONPATH": str(ROOT)}, folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=folder, env=environ, stderr=output)
    ends_with(lambda: kill(process))
    wait_until(lambda: b"Listening at" in log.read_bytes(), "gunicorn listens")
    return process


@pytest.mark.stack
def test_give_a_request_to_a_worker_with_a_free_thread(tmp_path: Path) -> None:
    process = start(tmp_path, workers=WORKERS, max_concurrency=WORKERS * (THREADS - 1))
    busy = ALL_WORKERS * THREADS - 1
    with ThreadPoolExecutor(busy) as pool:
        callers = [pool.submit(get, tmp_path, f"/go-{number}") for number in range(busy)]
        wait_until(
            lambda: len(list(tmp_path.glob("*.begun"))) == busy, "all but one thread are busy"
        )
        assert [get(tmp_path, "/") for _ in range(10)] == [200] * 10
        (tmp_path / "go").touch()
        assert [caller.result() for caller in callers] == [200] * busy
    kill(process)


def is_closed(connection: http.client.HTTPConnection) -> bool:
    try:
        connection.sock.send(b"x")
    except BrokenPipeError:
        return True
    return False


@pytest.mark.stack
def test_keep_a_worker_whose_replies_are_read_slowly(tmp_path: Path) -> None:
    """gunicorn waits up to 2 s for a caller to close its connection. If it did that in its main
    loop, eight callers would block a worker for longer than it may hang, and another caller would
    lose its reply."""
    slow, hang_timeout = 8, 10.0
    process = start(tmp_path, workers=1, max_concurrency=slow + 1, hang_timeout=hang_timeout)
    with ThreadPoolExecutor(1) as pool:
        caller = pool.submit(get, tmp_path, "/last-0")
        connections = [connect(tmp_path) for _ in range(slow)]
        for number, connection in enumerate(connections):
            connection.request("GET", f"/slow-{number}")
        wait_until(lambda: len(list(tmp_path.glob("*.begun"))) == slow + 1, "all have begun")
        (tmp_path / "slow").touch()
        for connection in connections:
            wait_until(partial(is_closed, connection), "gunicorn closes the connection")
        (tmp_path / "last").touch()
        assert caller.result() == 200
    kill(process)


@pytest.mark.stack
def test_answer_a_request_that_nginx_sends_late(tmp_path: Path) -> None:
    """By default, gunicorn would close a connection on which nothing arrives for this long."""
    process = start(tmp_path, workers=1, max_concurrency=1)
    connection = connect(tmp_path)
    time.sleep(DEFAULT_WORKER_DATA_TIMEOUT + 1)
    connection.request("GET", "/")
    assert connection.getresponse().status == 200
    kill(process)


@pytest.mark.stack
def test_let_no_thread_wait_long_for_the_others(tmp_path: Path) -> None:
    """While large bodies are parsed, the garbage collector is off, because all threads wait for a
    collection."""
    process = start(tmp_path, workers=1, max_concurrency=1)
    connection = connect(tmp_path)
    connection.request("GET", "/parse")
    collections, seconds = connection.getresponse().read().split()
    assert int(collections) == 0
    assert float(seconds) < 0.005  # shorter than Python's default
    kill(process)


FORKED = """
import gc
from types import SimpleNamespace
import serving.front.gunicorn_config as hooks
from predictor import create_app
from serving.settings.settings import Settings

app = create_app(Settings.from_env({}))
before = len(gc.get_objects())
hooks.pre_fork(SimpleNamespace(app=SimpleNamespace(wsgi=lambda: app)), SimpleNamespace(age=1))
print(before, len(gc.get_objects()))
"""


@pytest.mark.unit
def test_freeze_imported_modules_for_the_garbage_collector() -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKED], cwd=ROOT, capture_output=True, text=True, check=True
    )
    before, after = map(int, done.stdout.split())
    assert after < before / 100
