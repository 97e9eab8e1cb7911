"""Tests nginx.conf, rendered by `serve`, in a real nginx in front of a tiny upstream on a unix
socket."""

import contextlib
import json
import os
import select
import signal
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import ClassVar

import pytest
import requests

from serving.host.machine import Machine
from serving.pid1.nginx import FEWEST_REQUESTS, nginx
from serving.settings.settings import BODIES, Settings
from tests.support.harness import PATIENCE, HttpCaller, free_port, wait_until
from tests.support.started import ends_with, kill

pytestmark = pytest.mark.unit

HALF_A_BODY = b"POST /invocations HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000\r\n\r\n{"
MACHINE = Machine(cpus=2.0, memory=8 * 1024**3, gpu=False)


class Upstream(BaseHTTPRequestHandler):
    """Answers with the request that it received: after SECONDS at `/invocations?SECONDS`, or once
    `go_on` is set at `?hold`."""

    protocol_version = "HTTP/1.1"
    at_work: ClassVar[set[int]] = set()
    asked: ClassVar[list[str]] = []  # the paths of all requests
    go_on = threading.Event()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path, _, query = self.path.partition("?")
        self.asked.append(path)
        self.at_work.add(threading.get_ident())
        if query == "hold":
            self.go_on.wait(PATIENCE)
        else:
            time.sleep(float(query or 0))
        self.at_work.discard(threading.get_ident())
        status = {"/busy": 503, "/ping": 503}.get(path, 200)
        reply = json.dumps(
            {"path": self.path, "bytes": len(body), "headers": dict(self.headers)}
        ).encode()
        self.send_response(status)
        for name, value in {
            "X-Request-Id": self.headers["X-Request-Id"],
            "X-Model-Name": "echo",
            "Content-Type": self.headers["Accept"],
        }.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    do_GET = do_POST

    def log_message(self, *_: object) -> None:
        pass


class Upstreams(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64


class Edge(HttpCaller):
    """A running nginx. `log` is its access log. `changes` are made to its configuration."""

    def __init__(
        self, folder: Path, changes: Mapping[str, str] | None = None, **variables: str
    ) -> None:
        own = {"SERVE_HOST": "127.0.0.1", "PORT": str(free_port()), "SERVE_RUN_DIR": str(folder)}
        environ = own | variables
        self.settings = Settings.from_env(environ, MACHINE)
        self.url = f"http://127.0.0.1:{self.settings.port}"
        self.log = folder / "log"
        process = nginx(self.settings, os.environ)
        configuration = folder / "nginx.conf"
        for old, new in (changes or {}).items():
            text = configuration.read_text()
            assert old in text
            configuration.write_text(text.replace(old, new))
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(process.command, cwd=folder, stdout=log, stderr=log)
        ends_with(lambda: kill(self.process))
        wait_until(lambda: self.listens() or self.process.poll() is not None, self.log.read_text)
        assert self.process.poll() is None, self.log.read_text()

    def listens(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.settings.port), timeout=PATIENCE).close()
        except OSError:
            return False
        return True

    def lines(self, until: str) -> list[dict[str, object]]:
        """Return the access log once it contains the request `until`, because nginx logs a request
        after it has answered."""
        wait_until(lambda: f'"request_id":"{until}"' in self.log.read_text(), self.log.read_text)
        return [
            json.loads(line) for line in self.log.read_text().splitlines() if line.startswith("{")
        ]

    def stop(self) -> int:
        self.process.send_signal(signal.SIGQUIT)
        return self.process.wait(PATIENCE)


@pytest.fixture(scope="module")
def upstream(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return the run folder that contains the upstream's socket, under both of its names."""
    folder = tmp_path_factory.mktemp("run")
    (folder / "gunicorn-large.sock").symlink_to(folder / "gunicorn.sock")
    with Upstreams(str(folder / "gunicorn.sock"), Upstream) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield folder
        server.shutdown()


@pytest.fixture(scope="module")
def edge(upstream: Path) -> Iterator[Edge]:
    running = Edge(upstream, SERVE_MAX_BODY_MB="2", SERVE_MAX_CONCURRENCY="2")
    yield running
    assert running.stop() == 0


def behind(upstream: Path, folder: Path) -> Path:
    """Return another run folder with the same upstream."""
    run = folder / "run"
    run.mkdir()
    for name in ("gunicorn.sock", "gunicorn-large.sock"):
        (run / name).symlink_to(upstream / "gunicorn.sock")
    return run


Start = Callable[..., Edge]


@pytest.fixture
def start(upstream: Path, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts another nginx in front of the upstream."""
    edges: list[Edge] = []

    def begin(changes: Mapping[str, str] | None = None, **variables: str) -> Edge:
        edges.append(Edge(behind(upstream, tmp_path), changes, **variables))
        return edges[-1]

    yield begin
    assert [edge.stop() for edge in edges] == [0] * len(edges)


@pytest.fixture
def impatient_edge(start: Start) -> Edge:
    return start(SERVE_REQUEST_TIMEOUT="1")


@pytest.fixture
def edge_alone(tmp_path: Path) -> Iterator[Edge]:
    running = Edge(tmp_path)
    yield running
    assert running.stop() == 0


def check_error(response: requests.Response, status: int, code: str) -> str:
    """Assert that the response is an error in this project's format. Return its message."""
    body = response.json()
    assert (response.status_code, body["code"]) == (status, code)
    assert set(body) == {"error", "code", "request_id"}
    assert response.headers["X-Request-Id"] == body["request_id"] != ""
    assert response.headers["Content-Type"] == "application/json"
    return str(body["error"])


def wait_until_at_work(count: int) -> None:
    wait_until(
        lambda: len(Upstream.at_work) == count,
        lambda: f"{count} are at work; there are {Upstream.at_work}",
    )


@contextlib.contextmanager
def held() -> Iterator[None]:
    """Hold the answers to requests with `?hold` in this context."""
    Upstream.go_on.clear()
    try:
        yield
    finally:
        Upstream.go_on.set()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SERVE_HOST": "::1", "SERVE_LOG_LEVEL": "debug", "SERVE_STOP_TIMEOUT": "0"},
        {"SERVE_MAX_BODY_MB": "0", "SERVE_REQUEST_TIMEOUT": "3600", "SERVE_LOG_LEVEL": "critical"},
        {"SERVE_MAX_CONCURRENCY": "4096", "SERVE_LOG_LEVEL": "error"},
        {
            "SERVE_MAX_BODY_MB": "0.001",
            "SERVE_REQUEST_TIMEOUT": "1.5",
            "SERVE_LOG_LEVEL": "warning",
        },
    ],
)
def test_render_a_configuration_that_nginx_accepts(
    tmp_path: Path, variables: dict[str, str]
) -> None:
    environ = {"PORT": str(free_port()), "SERVE_RUN_DIR": str(tmp_path), **variables}
    process = nginx(Settings.from_env(environ, MACHINE), os.environ)
    done = subprocess.run([*process.command, "-t"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "{{" not in (tmp_path / "nginx.conf").read_text().partition("daemon off")[2]
    assert not [line for line in done.stderr.splitlines() if "[warn]" in line or "[alert]" in line]


def test_let_nginx_write_only_into_the_run_folder(edge: Edge) -> None:
    edge.post(data=bytes(1_900_000))
    opened = {str(path.readlink()) for path in Path(f"/proc/{edge.process.pid}/fd").iterdir()}
    files = {name for name in opened if name.startswith("/") and not name.startswith("/dev/null")}
    assert files == {str(edge.log)}
    assert {path.name for path in edge.settings.run_dir.iterdir()} > {
        "nginx.pid",
        "nginx-client-body",
    }


def test_forward_a_request_with_body_path_and_headers(edge: Edge) -> None:
    headers = {"SCRIPT_NAME": "/invocations", "X-Amzn-SageMaker-Custom-Attributes": "a" * 1024}
    response = edge.post("/invocations?0", data=b"x" * 1_500_000, headers=headers)
    seen = response.json()
    assert response.status_code == 200
    assert (seen["path"], seen["bytes"]) == ("/invocations?0", 1_500_000)
    assert "SCRIPT_NAME" not in seen["headers"]
    assert seen["headers"]["X-Amzn-SageMaker-Custom-Attributes"] == "a" * 1024
    assert response.headers["Server"] == "nginx"


def test_forward_only_the_path_of_a_get_request_to_triton(edge: Edge) -> None:
    edge.settings.triton_folder.mkdir()
    edge.settings.triton_http.symlink_to(edge.settings.gunicorn_socket)
    headers = {
        "Inference-Header-Content-Length": "x",
        "Content-Encoding": "gzip",
        "Triton-Key": "forged",
    }
    response = edge.get("/v2/models/m/config?q=1", data=b"12345", headers=headers)
    seen = response.json()
    assert (seen["path"], seen["bytes"], set(seen["headers"])) == (
        "/v2/models/m/config",
        0,
        {"Host"},
    )


@pytest.mark.parametrize("sent_id", ["order-7", "a.b_c:D-9", "x" * 64])
def test_use_the_caller_s_id_as_the_request_id_once(edge: Edge, sent_id: str) -> None:
    headers = {"X-Amzn-SageMaker-Inference-Id": sent_id, "X-Request-Id": "forged"}
    response = edge.post(headers=headers)
    assert response.json()["headers"]["X-Request-Id"] == sent_id
    # requests would join two headers with a comma
    assert response.headers["X-Request-Id"] == sent_id


@pytest.mark.parametrize(
    "sent_id", ["", "x" * 65, "two words", 'quote"', "semi;colon", "ü".encode().decode("latin-1")]
)
def test_replace_an_invalid_request_id(edge: Edge, sent_id: str) -> None:
    response = edge.post("/x", headers={"X-Amzn-SageMaker-Inference-Id": sent_id})
    assert len(response.headers["X-Request-Id"]) == 32
    assert response.json()["headers"]["X-Request-Id"] == response.headers["X-Request-Id"]


@pytest.mark.parametrize("accept", ["*/*", "text/event-stream"])
@pytest.mark.parametrize(
    "path", ["/invocations", "/invocations?0", "/models/a%2Fb/invoke", "/v2/models/x/infer"]
)
def test_let_only_nginx_set_the_start_time_of_a_request(edge: Edge, path: str, accept: str) -> None:
    headers, begun = {"X-Request-Start": "99999999999", "Accept": accept}, time.time()
    seen = edge.post(path, headers=headers).json()
    assert begun - 1 < float(seen["headers"]["X-Request-Start"]) < time.time() + 1
    assert seen["path"] == path


@pytest.mark.parametrize(
    "accept", ["text/event-stream", "application/json, Application/JsonLines;q=0.1"]
)
def test_allow_more_time_for_requests_that_may_stream(impatient_edge: Edge, accept: str) -> None:
    response = impatient_edge.post("/invocations?1.5", headers={"Accept": accept})
    assert response.json()["path"] == "/invocations?1.5"


@pytest.mark.parametrize("kind", ["application/json", "text/csv"])
def test_compress_long_replies_in_one_piece(edge: Edge, kind: str) -> None:
    long = {"Accept": kind, "Via": "1.1 proxy", "X-Amzn-SageMaker-Custom-Attributes": "a" * 1024}
    encodings = []
    for headers in (long, {"Accept": kind}, long | {"Accept-Encoding": "identity"}):
        reply = edge.post(headers=headers)
        assert reply.json()["path"] == "/invocations"
        encodings.append(reply.headers.get("Content-Encoding"))
    assert encodings == ["gzip", None, None]


@pytest.mark.parametrize("kind", ["text/event-stream", "application/jsonlines"])
def test_never_compress_streams(edge: Edge, kind: str) -> None:
    headers = {"Accept": kind, "X-Amzn-SageMaker-Custom-Attributes": "a" * 1024}
    for path in ("/invocations", "/v2/models/m/generate_stream", "/models/m/invoke"):
        reply = edge.post(path, headers=headers)
        assert (reply.status_code, reply.headers["Content-Type"]) == (200, kind)
        assert len(reply.content) > 1024
        assert "Content-Encoding" not in reply.headers


@pytest.mark.parametrize("chunked", [False, True])
def test_answer_413_naming_the_setting_for_a_body_over_the_limit(edge: Edge, chunked: bool) -> None:
    headers = {"X-Amzn-SageMaker-Inference-Id": "big-1"}
    body = bytes(2 * 1024**2)
    data = iter([body, b"1"]) if chunked else body + b"1"
    response = edge.post(data=data, headers=headers)
    assert "SERVE_MAX_BODY_MB" in check_error(response, 413, "payload_too_large")
    assert response.headers["X-Request-Id"] == "big-1"
    assert edge.post(data=body).json()["bytes"] == len(body)


def test_answer_504_if_there_is_no_reply_in_time(impatient_edge: Edge) -> None:
    begin = time.monotonic()
    with held():
        error = check_error(impatient_edge.post("/slow?hold"), 504, "timeout")
    assert time.monotonic() - begin > 0.9
    assert "SERVE_REQUEST_TIMEOUT" in error
    wait_until_at_work(0)


def test_ask_for_the_metrics_once_for_many_callers(edge: Edge) -> None:
    before = Upstream.asked.count("/metrics")
    with ThreadPoolExecutor(100) as callers:
        replies = list(callers.map(lambda _: edge.get("/metrics"), range(100)))
    assert {reply.status_code for reply in replies} == {200}
    assert len({reply.headers["X-Request-Id"] for reply in replies}) == 100
    # nginx asks once a second, and on a busy machine the callers may be spread over several seconds
    assert 1 <= Upstream.asked.count("/metrics") - before <= 10


def test_log_each_request_as_json_without_its_query_and_no_pings(edge: Edge) -> None:
    for path, name in (
        ("/ping", ""),
        ("/metrics", ""),
        ("/ping:x/invocations", "not-hidden"),
        ("/a%22b?0", "log-me"),
    ):
        edge.get(path, headers={"X-Amzn-SageMaker-Inference-Id": name})
    by_id = {str(line["request_id"]): line for line in edge.lines(until="log-me")}
    line = by_id["log-me"]
    assert (line["method"], line["path"], line["status"], line["model"]) == (
        "GET",
        "/a%22b",
        200,
        "echo",
    )
    assert {"time", "bytes_in", "bytes_out", "seconds", "upstream_seconds"} < set(line)
    assert by_id["not-hidden"]["path"] == "/ping:x/invocations"
    assert not {"/ping", "/metrics"} & {each["path"] for each in by_id.values()}


def test_log_nginx_s_own_errors_but_no_failing_ping(edge_alone: Edge) -> None:
    edge_alone.get("/ping")
    name = edge_alone.get("/models").headers["X-Request-Id"]
    assert [(line["path"], line["status"]) for line in edge_alone.lines(until=name)] == [
        ("/models", 503)
    ]


def test_cut_off_slow_bodies(start: Start) -> None:
    edge = start({"client_body_timeout 10s": "client_body_timeout 1s"})
    with connected(edge) as connection:
        connection.sendall(HALF_A_BODY)
        assert connection.recv(1) == b""
    wait_until(lambda: '"status":408' in edge.log.read_text(), edge.log.read_text)


def test_refuse_requests_beyond_the_limit(start: Start) -> None:
    few = {f"limit_conn requests {FEWEST_REQUESTS};": "limit_conn requests 8;"}
    edge = start(few, SERVE_MAX_CONCURRENCY="2")
    with contextlib.ExitStack() as uploads:

        def is_full() -> bool:
            """Begin another upload, because a request may have taken the slot of the previous one.
            Return whether it is refused."""
            uploads.enter_context(connected(edge)).sendall(HALF_A_BODY)
            return edge.post().status_code == 503

        wait_until(is_full, "a request is refused")
        others = [edge.get(path) for path in ("/models", "/nothing")]
        for reply in (edge.post(), *others):
            check_error(reply, 503, "too_many_connections")
            assert reply.headers["Retry-After"] == "1"
        embedding = edge.post("/v1/embeddings", data=b"{}")
        assert embedding.headers["Retry-After"] == "1"
        assert embedding.json()["error"]["type"] == "server_error"
        assert edge.get("/metrics").status_code == 200
        assert edge.get("/ping").json()["path"] == "/ping"
    wait_until(lambda: edge.post().status_code == 200, "requests are answered again")


@pytest.mark.parametrize("length", ["Content-Length: 4000000", "Transfer-Encoding: chunked"])
def test_refuse_large_uploads_beyond_the_limit(start: Start, length: str) -> None:
    few = {f"limit_conn uploads {BODIES};": "limit_conn uploads 2;"}
    edge = start(few, SERVE_REQUEST_MEMORY_SHARE="0")
    head = f"POST /invocations HTTP/1.1\r\nHost: localhost\r\n{length}\r\n\r\n".encode()
    with contextlib.ExitStack() as uploads:

        def is_full() -> bool:
            """Begin another upload. Return whether it is refused."""
            upload = uploads.enter_context(connected(edge))
            upload.sendall(head)
            readable, _, _ = select.select([upload], [], [], 0.1)
            return bool(readable) and b" 503 " in upload.recv(100)

        wait_until(is_full, "a large upload is refused")
        assert edge.post().status_code == 200
        small = edge.post(data=b"a" * 3_999_999)
        assert small.status_code == 200


@pytest.mark.parametrize(
    ("size", "headers", "workers"),
    [
        (499_999, {}, "gunicorn.sock"),
        (499_999, {"Content-Encoding": "identity"}, "gunicorn.sock"),
        (1, {"Content-Encoding": "gzip"}, "gunicorn-large.sock"),
        (1, {"Transfer-Encoding": "chunked"}, "gunicorn-large.sock"),
        (500_000, {}, "gunicorn-large.sock"),
        (500_000, {"Accept": "text/event-stream"}, "gunicorn-large.sock"),
    ],
)
def test_give_large_bodies_to_workers_of_their_own(
    start: Start, size: int, headers: dict[str, str], workers: str
) -> None:
    edge = start()
    for name in {"gunicorn.sock", "gunicorn-large.sock"} - {workers}:
        (edge.settings.run_dir / name).unlink()
    body = iter([b"a" * size]) if "Transfer-Encoding" in headers else b"a" * size
    reply = edge.post(data=body, headers=headers)
    assert (reply.status_code, reply.json()["bytes"]) == (200, size)


def connected(edge: Edge) -> socket.socket:
    return socket.create_connection(("127.0.0.1", edge.settings.port), timeout=PATIENCE)


@pytest.mark.parametrize("kserve", ["trusted", "true"])
def test_forward_trusted_infer_calls_to_triton_unchanged(start: Start, kserve: str) -> None:
    edge = start(SERVE_KSERVE=kserve)
    edge.settings.triton_folder.mkdir()
    edge.settings.triton_http.symlink_to(edge.settings.gunicorn_socket)
    reached = {}
    for path in (
        "/v2/models/m/infer",
        "/v2/models/m/versions/2/infer?0",
        "/invocations",
        "/v2/models/a%2Fb/infer",
    ):
        headers = {"Inference-Header-Content-Length": "3", "Accept": "text/event-stream"}
        seen = edge.post(path, data=bytes(2_000_000), headers=headers).json()
        assert (seen["bytes"], seen["headers"]["Inference-Header-Content-Length"]) == (
            2_000_000,
            "3",
        )
        reached[seen["path"]] = "X-Request-Start" not in seen["headers"]
    direct = kserve == "trusted"
    infer = {
        "/v2/models/m/infer": direct,
        f"/v2/models/m/versions/2/infer{'' if direct else '?0'}": direct,
    }
    assert reached == infer | {"/invocations": False, "/v2/models/a%2Fb/infer": False}


@pytest.fixture(scope="module")
def named_edge(upstream: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """Return an Edge that allows calls from pages of another origin."""
    folder = behind(upstream, tmp_path_factory.mktemp("named"))
    running = Edge(folder, SERVE_ORIGINS="https://pages.example, http://tools.example:3000")
    yield running
    assert running.stop() == 0


OWN_ROUTES = ("/invocations", "/models", "/models/m/invoke", "/v2/models/m/infer", "/ping", "/")
STRANGE = ("https://evil.example", "null", "http://127.0.0.1", "http://localhost:1", "|", '"')


@pytest.mark.parametrize("path", OWN_ROUTES)
def test_let_pages_of_other_origins_only_read(edge: Edge, path: str) -> None:
    for origin in STRANGE:
        for method in ("POST", "DELETE", "OPTIONS", "PUT"):
            reply = edge.ask(method, path, headers={"Origin": origin})
            assert "SERVE_ORIGINS" in check_error(reply, 403, "origin_refused")
        reply = edge.get(path, headers={"Origin": origin})
        assert reply.status_code != 403
        assert not [name for name in reply.headers if name.startswith("Access-Control")]


def test_let_the_page_itself_and_programs_call(edge: Edge) -> None:
    for headers in ({}, {"Origin": edge.url}, {"Origin": edge.url.replace("http", "https")}):
        assert edge.post(headers=headers).status_code == 200


def test_let_pages_of_named_origins_call_and_read(named_edge: Edge) -> None:
    for origin in ("https://pages.example", "http://tools.example:3000"):
        asked = {
            "Origin": origin,
            "Access-Control-Request-Method": "POST",
            "Access-Control-Request-Headers": "content-type",
        }
        reply = named_edge.ask("OPTIONS", "/invocations", headers=asked)
        assert (reply.status_code, reply.content) == (204, b"")
        assert reply.headers["Access-Control-Allow-Origin"] == origin
        assert "POST" in reply.headers["Access-Control-Allow-Methods"]
        assert reply.headers["Access-Control-Allow-Headers"] == "content-type"
        for method in ("GET", "POST"):
            reply = named_edge.ask(method, "/invocations", headers={"Origin": origin})
            assert reply.status_code == 200
            assert reply.headers["Access-Control-Allow-Origin"] == origin
            assert reply.headers["Vary"] == "Origin"
    for origin in (*STRANGE, "https://pages.example.evil.example", "http://pages.example"):
        reply = named_edge.post(headers={"Origin": origin})
        check_error(reply, 403, "origin_refused")
        assert "Access-Control-Allow-Origin" not in reply.headers


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("evil.example", 403),
        ("evil.example:8080", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("localhost", 200),
        ("LOCALHOST:8080", 200),
        ("127.0.0.1:8080", 200),
        ("[::1]:8080", 200),
    ],
)
def test_take_only_localhost_on_a_loopback_address(edge: Edge, host: str, status: int) -> None:
    reply = edge.get("/invocations", headers={"Host": host})
    assert reply.status_code == status
    if status != 200:
        assert host in check_error(reply, status, "origin_refused")


def test_take_the_host_of_a_named_origin(named_edge: Edge) -> None:
    for host, status in (("pages.example", 200), ("tools.example:3000", 200), ("x.example", 403)):
        reply = named_edge.get("/invocations", headers={"Host": host})
        assert reply.status_code == status


def test_take_any_host_on_an_address_that_others_reach(start: Start) -> None:
    edge = start(SERVE_HOST="0.0.0.0")
    assert edge.get("/invocations", headers={"Host": "any.example"}).status_code == 200
