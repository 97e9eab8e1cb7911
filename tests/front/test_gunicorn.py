"""gunicorn with the options that `serve` gives it, and an app whose requests wait until they may go
on."""

import http.client
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from serving.pid1.processes import gunicorn as gunicorn_process
from serving.settings.table import Settings
from tests.support.harness import PATIENCE, ROOT, wait_until
from tests.support.started import ends_with, kill

WORKERS = THREADS = 2
OTHERS = ("wsgi:app", "--preload", "--chdir", "--config")  # what makes it our app
APP = """
import time
from pathlib import Path

def app(environ, start_response):
    if name := environ["PATH_INFO"].strip("/"):
        Path(f"{name}.begun").touch()
        while not Path("go").exists():
            time.sleep(0.01)
    start_response("200 OK", [("Content-Length", "0")])
    return []
"""


@pytest.mark.stack
def test_give_a_request_to_a_worker_with_a_free_thread(tmp_path: Path) -> None:
    def get(path: str) -> int:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(PATIENCE)
        with connection.sock:
            connection.sock.connect(str(tmp_path / "gunicorn.sock"))
            connection.request("GET", path)
            return connection.getresponse().status

    (tmp_path / "waiting.py").write_text(APP)
    (tmp_path / "hooks.py").write_text("from serving.front.gunicorn_config import pre_request")
    settings = replace(
        Settings(), run_dir=tmp_path, workers=WORKERS, max_concurrency=WORKERS * (THREADS - 1)
    )
    command = [
        part
        for part in gunicorn_process(settings, os.environ).command
        if not part.startswith(OTHERS)
    ]
    command += ["--config=hooks.py", "waiting:app"]
    environ, log = os.environ | {"PYTHONPATH": str(ROOT)}, tmp_path / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, cwd=tmp_path, env=environ, stderr=output)
    ends_with(lambda: kill(process))
    wait_until(lambda: b"Listening at" in log.read_bytes(), "gunicorn listens")
    busy = WORKERS * THREADS - 1
    callers = [threading.Thread(target=get, args=(f"/{number}",)) for number in range(busy)]
    for caller in callers:
        caller.start()
    wait_until(lambda: len(list(tmp_path.glob("*.begun"))) == busy, "all but one thread are busy")
    assert [get("/") for _ in range(10)] == [200] * 10
    (tmp_path / "go").touch()
    for caller in callers:
        caller.join()
    kill(process)


FORKED = """
import gc
from types import SimpleNamespace
import serving.front.gunicorn_config as hooks
from predictor import create_app
from serving.settings.table import Settings

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
