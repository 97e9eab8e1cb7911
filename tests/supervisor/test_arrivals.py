"""arrivals.lua in the real nginx: what callers can take of it, before a tiny upstream on a unix socket."""

import contextlib
import re
import select
import shutil
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests

from serving.supervisor import nginx
from tests.supervisor.test_nginx_conf import Edge, Upstream, Upstreams, check_error, held, wait_until_at_work
from tests.support.harness import PATIENCE, ROOT, wait_until

FILES = 64 + 64  # of a worker of nginx: its own and 64 connections
REQUESTS, BODIES = 21, 10  # that it takes at a time then


@contextlib.contextmanager
def running_edge(folder: Path, **seconds: float) -> Iterator[Edge]:
    """One worker with few connections, in whose arrivals.lua these times are others."""
    lua = folder / "lua"
    lua.mkdir(parents=True)
    for file in ROOT.glob("*.lua"):
        shutil.copy(file, lua)
    text = (lua / "arrivals.lua").read_text()
    for name, value in seconds.items():
        text, count = re.subn(rf"^local {name} = [\d.]+", f"local {name} = {value}", text, flags=re.MULTILINE)
        assert count == 1
    (lua / "arrivals.lua").write_text(text)
    with Upstreams(str(folder / "gunicorn.sock"), Upstream) as server, pytest.MonkeyPatch.context() as patched:
        patched.setattr(nginx, "hard_limit", lambda: FILES)
        patched.setattr(nginx, "cpu_quota", lambda: 1.0)
        patched.setattr(nginx, "HERE", lua)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        running = Edge(folder, SERVE_MAX_BODY_MB="2", SERVE_KSERVE="true")
        yield running
        assert running.stop() == 0
        server.shutdown()


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    with running_edge(tmp_path_factory.mktemp("arrivals")) as running:
        yield running


@pytest.fixture
def patient_edge(tmp_path: Path) -> Iterator[Edge]:
    """All that a test does is done before it ends a body."""
    with running_edge(tmp_path / "run", PATIENCE=PATIENCE, LITTLE_PATIENCE=PATIENCE, A_MOMENT=3) as running:
        yield running


@pytest.fixture
def half_patient_edge(tmp_path: Path) -> Iterator[Edge]:
    """Only where many bodies come it ends some."""
    with running_edge(tmp_path / "run", PATIENCE=PATIENCE) as running:
        yield running


class Upload:
    """A request whose body begins and does not end."""

    def __init__(self, edge: Edge, path: str = "/invocations", length: int = 1000, sent: bytes = b"{") -> None:
        self.socket = socket.create_connection(("127.0.0.1", edge.settings.port), timeout=PATIENCE)
        self.socket.sendall(f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode() + sent)

    def reply(self) -> requests.Response:
        """It comes before the body's end, or the test fails."""
        return Edge.response(self.socket.makefile("rb").read())

    def reply_begins(self) -> int:
        """The status of a reply after which the connection stays open."""
        return int(self.socket.recv(65536).split()[1])

    def is_refused(self) -> bool:
        """Whether there is a reply already."""
        return bool(select.select([self.socket], [], [], 0.3)[0])

    def leave(self) -> None:
        self.socket.close()


@contextlib.contextmanager
def uploads(edge: Edge, count: int) -> Iterator[list[Upload]]:
    """All of them accepted."""
    made = [Upload(edge) for _ in range(count)]
    try:
        assert not any(each.is_refused() for each in made[-1:])
        yield made
    finally:
        for each in made:
            each.leave()


def small(edge: Edge, path: str = "/invocations", data: bytes = b"{}") -> int:
    return requests.post(edge.url + path, data=data, timeout=PATIENCE).status_code


def in_work(edge: Edge) -> int:
    """The requests that nginx has, beside the one that asks."""
    seen = requests.get(f"{edge.url}/metrics", timeout=PATIENCE).json()
    return int(seen["headers"]["X-Nginx-Writing"]) - 1


ROUTES = ["/invocations", "/models/a/invoke", "/v2/models/a/infer", "/models", "/", "/unknown", "/ping", "/metrics"]


def test_a_body_that_comes_too_slowly_is_408_on_every_route_and_others_are_answered_meanwhile(edge: Edge) -> None:
    slow = [Upload(edge, path) for path in ROUTES[:5]]
    while not slow[0].is_refused():
        assert small(edge) == 200
    for each in slow:
        error = check_error(each.reply(), 408, "too_slow")
        assert "8 kB a second" in error
    others = [Upload(edge, path) for path in ROUTES[5:]]
    assert [each.reply().status_code for each in others] == [408] * 3


def test_a_body_that_keeps_the_rate_is_taken_however_long_it_takes(edge: Edge) -> None:
    upload, length, piece = Upload(edge, length=140_001, sent=b"{"), 140_000, 10_000
    for _ in range(length // piece):
        time.sleep(0.5)
        upload.socket.sendall(bytes(piece))
    assert upload.reply_begins() == 200
    upload.leave()


def test_unfinished_bodies_take_no_more_than_their_part_and_small_requests_go_on(patient_edge: Edge) -> None:
    edge = patient_edge
    with uploads(edge, BODIES):
        assert "too many requests or bodies" in check_error(Upload(edge).reply(), 503, "overloaded")
        assert [small(edge), small(edge, "/metrics")] == [200, 200]
        in_two = Upload(edge, length=3, sent=b"")
        in_two.socket.sendall(b"{ }")
        assert in_two.reply_begins() == 200
        in_two.leave()
    wait_until(lambda: in_work(edge) == 0, "those that left are gone")
    with uploads(edge, BODIES):
        assert in_work(edge) == BODIES


def test_where_many_come_the_later_ones_are_ended_first_and_make_room(half_patient_edge: Edge) -> None:
    edge = half_patient_edge
    with uploads(edge, BODIES) as slow:
        assert slow[-1].reply().status_code == 408
        assert not slow[0].is_refused()
        check_error(Upload(edge).reply(), 408, "too_slow")  # it was taken


def test_more_requests_than_there_are_connections_for_are_503_and_ping_is_answered(edge: Edge) -> None:
    callers = [threading.Thread(target=small, args=(edge, "/invocations?hold")) for _ in range(REQUESTS)]
    with held():
        for caller in callers:
            caller.start()
        wait_until_at_work(REQUESTS)
        response = requests.post(f"{edge.url}/invocations", timeout=PATIENCE)
        check_error(response, 503, "overloaded")
        assert response.headers["Retry-After"] == "1"
        assert small(edge, "/metrics") == 200
    for caller in callers:
        caller.join()
    wait_until(lambda: small(edge) == 200, "there is a place again")


@pytest.mark.parametrize("path", ["/", "/ping", "/metrics", "/unknown", "/execution-parameters"])
def test_a_route_without_a_body_takes_a_tiny_one_at_most(edge: Edge, path: str) -> None:
    response = requests.post(edge.url + path, data=bytes(1025), timeout=PATIENCE)
    error = check_error(response, 413, "payload_too_large")
    assert "1 kB" in error and "SERVE_MAX_BODY_MB" not in error


@pytest.mark.parametrize("method", ["GET", "DELETE", "OPTIONS"])
def test_a_method_without_a_body_takes_a_tiny_one_at_most(edge: Edge, method: str) -> None:
    response = requests.request(method, f"{edge.url}/invocations", data=bytes(1025), timeout=PATIENCE)
    assert "1 kB" in check_error(response, 413, "payload_too_large")


def test_what_asks_for_a_load_is_no_longer_than_64_kb(edge: Edge) -> None:
    assert small(edge, "/models", bytes(64 * 1024)) == 200
    response = requests.post(f"{edge.url}/models", data=bytes(64 * 1024 + 1), timeout=PATIENCE)
    assert "64 kB" in check_error(response, 413, "payload_too_large")


def test_the_log_has_the_method_that_the_caller_sent_whoever_answers(edge: Edge) -> None:
    headers = {"X-Amzn-SageMaker-Inference-Id": "too-large"}
    requests.post(f"{edge.url}/unknown", data=bytes(5000), headers=headers, timeout=PATIENCE)
    [line] = [line for line in edge.lines(until="too-large") if line["request_id"] == "too-large"]
    assert (line["method"], line["status"]) == ("POST", 413)
    error = check_error(
        edge.raw(b"TRACE / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"), 405, "method_not_allowed"
    )
    assert "TRACE" in error


def test_a_long_path_is_cut_in_the_log(edge: Edge) -> None:
    headers = {"X-Amzn-SageMaker-Inference-Id": "long-path"}
    requests.get(f"{edge.url}/{'a' * 7000}", headers=headers, timeout=PATIENCE)
    [line] = [line for line in edge.lines(until="long-path") if line["request_id"] == "long-path"]
    assert line["path"] == f"/{'a' * 255}…"


def test_an_upstream_that_names_one_of_our_errors_has_it_sent(edge: Edge) -> None:
    """As serving/front/worker.py does."""
    response = requests.post(f"{edge.url}/accel?/.error/request_line", timeout=PATIENCE)
    check_error(response, 414, "invalid_request")
