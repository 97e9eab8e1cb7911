"""gunicorn with the flags that `serve` gives it, and an app whose requests wait until they may go on."""

import hashlib
import http.client
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest

from serving.settings.table import Settings
from serving.supervisor.processes import gunicorn as gunicorn_process
from tests.support.harness import PATIENCE, ROOT, wait_until
from tests.support.started import kill

pytestmark = pytest.mark.stack

WORKERS = THREADS = 2
OTHERS = ("wsgi:app", "--preload", "--chdir", "--config")  # what makes it our app
APP = """
import hashlib
import os
import time
from pathlib import Path

Path(f"{os.getpid()}.imported").touch()

def app(environ, start_response):
    name = environ["PATH_INFO"].strip("/")
    if name == "read":
        read = environ["wsgi.input"].read(int(environ["QUERY_STRING"]))
        reply = f"{len(read)} {hashlib.sha256(read).hexdigest()}".encode()
        start_response("200 OK", [("Content-Length", str(len(reply)))])
        return [reply]
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
        connection.sock.settimeout(PATIENCE)
        try:
            connection.sock.connect(str(self.folder / "gunicorn.sock"))
            connection.request("GET", path)
            return connection.getresponse().status
        finally:
            connection.close()

    def raw(self, request: bytes) -> bytes:
        """What it answers to bytes that no HTTP library would send."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(PATIENCE)
            connection.connect(str(self.folder / "gunicorn.sock"))
            connection.sendall(request)
            return connection.makefile("rb").read()

    def log(self) -> bytes:
        return (self.folder / "log").read_bytes()

    def workers(self) -> list[psutil.Process]:
        found: list[psutil.Process] = psutil.Process(self.process.pid).children()
        return found

    def begun(self) -> int:
        return len(list(self.folder.glob("*.begun")))

    def imported(self) -> int:
        return len(list(self.folder.glob("*.imported")))


@pytest.fixture
def gunicorn(tmp_path: Path) -> Iterator[Gunicorn]:
    (tmp_path / "waiting.py").write_text(APP)
    (tmp_path / "hooks.py").write_text("from serving.front.gunicorn_config import pre_request")
    settings = replace(Settings(), run_dir=tmp_path, workers=WORKERS, max_concurrency=WORKERS * (THREADS - 1))
    command = gunicorn_process(settings, os.environ).command
    own = [part for part in command if not part.startswith(OTHERS)]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    with (
        (tmp_path / "log").open("wb") as log,
        subprocess.Popen([*own, "--config=hooks.py", "waiting:app"], cwd=tmp_path, env=environ, stderr=log) as process,
    ):
        running = Gunicorn(process, tmp_path)
        wait_until(lambda: b"Listening at" in running.log(), "gunicorn listens")
        yield running
        kill(process)  # a worker that is booting would not hear of a stop


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


BODY = bytes(range(256)) * 12_000  # 3 MB
LENGTH = f"Content-Length: {len(BODY)}".encode()


def said_of(read: bytes) -> str:
    return f"{len(read)} {hashlib.sha256(read).hexdigest()}"


@pytest.mark.parametrize(("asked", "read"), [(len(BODY), BODY), (2 * len(BODY), BODY)], ids=["whole", "more"])
def test_a_body_is_read_up_to_its_length(gunicorn: Gunicorn, asked: int, read: bytes) -> None:
    head = b"POST /read?%d HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n" % (asked, LENGTH)
    assert gunicorn.raw(head + BODY).decode().endswith(f"\r\n\r\n{said_of(read)}")


def test_a_body_in_chunks_is_read(gunicorn: Gunicorn) -> None:
    head = b"POST /read?%d HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" % len(BODY)
    chunks = b"%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY)
    assert gunicorn.raw(head + chunks).decode().endswith(said_of(BODY))


def test_a_body_that_ends_too_early_is_read_as_far_as_it_came(gunicorn: Gunicorn) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(gunicorn.folder / "gunicorn.sock"))
        connection.sendall(b"POST /read?%d HTTP/1.1\r\nHost: x\r\n%s\r\n\r\n%s" % (len(BODY), LENGTH, BODY[:-1]))
        connection.shutdown(socket.SHUT_WR)
        assert connection.makefile("rb").read().decode().endswith(said_of(BODY[:-1]))
