"""Signs of life: a server's answers, a worker's beats, and the states that the kernel tells."""

import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from socketserver import BaseServer, ThreadingUnixStreamServer

import pytest

from serving.host.network import Address
from serving.supervisor.signs import Signs, groups
from serving.supervisor.system import Process
from tests.support.harness import wait_until


class Server:
    """Answers /live with 503 while `works`, and lets callers wait else."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.works = threading.Event()
        self.asked = 0
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.asked += 1
                server.works.wait()
                self.send_response(503 if self.path == "/live" else 404)
                self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self.address: Address
        self.server: BaseServer
        if kind == "port":
            http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
            self.server, self.address = http, ("127.0.0.1", int(http.server_address[1]))
        else:
            self.address = folder / "socket"
            self.server = ThreadingUnixStreamServer(str(self.address), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture(params=["port", "socket"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Server]:
    running = Server(tmp_path, request.param)
    yield running
    running.works.set()
    running.server.shutdown()
    running.server.server_close()


def test_who_answered_once_and_no_longer_does_is_silent(server: Server) -> None:
    process = Process("triton", (), {}, Path("/"), answers_at=(server.address, "/live"))
    signs = Signs(process, 7, hang_timeout=0.6)
    wait_until(lambda: server.asked > 1, "it is asked more than once, in vain")
    assert signs.silent({}) == set(), "it may be starting"
    server.works.set()
    wait_until(lambda: signs.silent({}) == {7}, "it has answered, and not since the last look")
    wait_until(lambda: signs.silent({}) == set(), "it has answered again")
    server.works.clear()
    wait_until(lambda: signs.silent({}) == {7}, "it does not answer")
    asked = server.asked
    wait_until(lambda: server.asked > asked + 1, "two attempts fail")
    assert signs.silent({}) == {7}
    signs.end()


def test_a_server_that_is_gone_is_silent(tmp_path: Path) -> None:
    running = Server(tmp_path, "port")
    running.works.set()
    signs = Signs(Process("triton", (), {}, Path("/"), answers_at=(running.address, "/live")), 7, hang_timeout=0.6)
    wait_until(lambda: running.asked, "it is asked")
    running.server.shutdown()
    running.server.server_close()
    asked = running.asked
    signs.silent({})
    wait_until(lambda: signs.silent({}) == {7}, "nobody answers")
    assert running.asked == asked
    signs.end()


def test_a_worker_that_has_not_beaten_since_the_last_look_is_silent(tmp_path: Path) -> None:
    signs = Signs(Process("nginx", (), {}, Path("/"), beats=tmp_path), 1, hang_timeout=15)
    group = {1: "S", 2: "S", 3: "R"}
    assert signs.silent(group) == set()
    for pid in (1, 2, 3, 4):
        (tmp_path / str(pid)).touch()
    assert signs.silent(group) == set(), "the first look at their beats"
    os.utime(tmp_path / "3", (1, 1))
    assert signs.silent(group) == {2}, "the master has no beat, 4 is not in the group, and clocks may go back"
    assert signs.silent(group) == {2, 3}


def test_who_is_stopped_is_silent_and_who_is_debugged_is_not() -> None:
    signs = Signs(Process("gunicorn", (), {}, Path("/")), 1, hang_timeout=15)
    assert signs.silent({1: "S", 2: "T", 3: "t", 4: "R", 5: "D", 6: "Z"}) == {2}


def test_groups_are_read_whatever_a_program_is_called(tmp_path: Path) -> None:
    for pid, stat in {"7": "7 (a) b ( c)) T 1 5 5", "8": "8 (d) S 7 5 5", "9": "9 (e) R 1 9 9", "10": ""}.items():
        (tmp_path / pid).mkdir()
        (tmp_path / pid / "stat").write_text(stat)
    (tmp_path / "self").mkdir()
    assert groups(tmp_path) == {5: {7: "T", 8: "S"}, 9: {9: "R"}}


def test_this_process_is_found_in_its_group() -> None:
    assert groups()[os.getpgid(0)][os.getpid()] in "RS"


def test_a_listener_that_speaks_no_http_has_not_answered() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        signs = Signs(
            Process("triton", (), {}, Path("/"), answers_at=(("127.0.0.1", listener.getsockname()[1]), "/")), 7, 9.0
        )
        for _ in range(2):
            caller, _ = listener.accept()
            caller.sendall(b"220 smtp\r\n")
            caller.close()
        assert signs.silent({}) == set()
        signs.end()
