"""gunicorn with the flags that `serve` gives it, and an app whose requests wait until they may go on."""

import http.client
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from serving.settings.table import Settings
from serving.supervisor.processes import gunicorn as gunicorn_process
from tests.support.harness import wait_until

WORKERS = THREADS = 2
OTHERS = ("wsgi:app", "--preload", "--chdir", "--config")  # what makes it our app
APP = """
import time
from pathlib import Path

def app(environ, start_response):
    name = environ["PATH_INFO"].strip("/")
    if name:
        Path(f"{name}.begun").touch()
        while not Path("go").exists():
            time.sleep(0.01)
    start_response("200 OK", [("Content-Length", "0")])
    return []
"""


@dataclass
class Gunicorn:
    process: subprocess.Popen[bytes]
    folder: Path

    def get(self, path: str) -> int:
        connection = http.client.HTTPConnection("localhost")
        connection.sock = socket.socket(socket.AF_UNIX)
        connection.sock.settimeout(10)
        try:
            connection.sock.connect(str(self.folder / "gunicorn.sock"))
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def begun(self) -> int:
        return len(list(self.folder.glob("*.begun")))


@pytest.fixture
def gunicorn(tmp_path: Path) -> Iterator[Gunicorn]:
    (tmp_path / "waiting.py").write_text(APP)
    settings = replace(Settings(), run_dir=tmp_path, workers=WORKERS, max_concurrency=WORKERS * (THREADS - 1))
    command = gunicorn_process(settings, os.environ).command
    own = [part for part in command if not part.startswith(OTHERS)]
    with subprocess.Popen([*own, "waiting:app"], cwd=tmp_path) as process:
        running = Gunicorn(process, tmp_path)
        wait_until((tmp_path / "gunicorn.sock").exists, "gunicorn listens")
        yield running
        process.terminate()


def test_a_request_waits_for_no_busy_worker_while_another_has_a_thread_free(gunicorn: Gunicorn) -> None:
    busy = WORKERS * THREADS - 1
    callers = [threading.Thread(target=gunicorn.get, args=(f"/{number}",)) for number in range(busy)]
    for caller in callers:
        caller.start()
    wait_until(lambda: gunicorn.begun() == busy, "all but one thread are busy")
    for _ in range(10):
        assert gunicorn.get("/") == 200
    (gunicorn.folder / "go").touch()
    for caller in callers:
        caller.join()
