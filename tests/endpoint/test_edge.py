"""Tests malformed HTTP, and how the server behaves on a machine with too few resources."""

import contextlib
import json
import os
import re
import socket
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.support.harness import PATIENCE, Server, expect_error, make_sleeper, wait_until

pytestmark = pytest.mark.stack

SLEEPER = b'{"instances":[0],"model_name":"sleeper"}'
LENGTH = b"Content-Length: %d" % len(SLEEPER)
CLOSE = b"Connection: close"
CHUNKED = b"Transfer-Encoding: chunked"
CHUNKS = b"%x\r\n%s\r\n0\r\n\r\n" % (len(SLEEPER), SLEEPER)


def post(
    *headers: bytes, body: bytes = SLEEPER, line: bytes = b"POST /invocations HTTP/1.1"
) -> bytes:
    return (
        b"\r\n".join([line, b"Host: localhost", b"Content-Type: application/json", *headers])
        + b"\r\n\r\n"
        + body
    )


def get(path: bytes, *headers: bytes) -> bytes:
    return (
        b"\r\n".join([b"GET " + path + b" HTTP/1.1", b"Host: localhost", CLOSE, *headers])
        + b"\r\n\r\n"
    )


def answers(server: Server, request: bytes) -> tuple[list[int], bytes]:
    """Send the request. Return the statuses of all replies until nginx closes the connection, and
    the last body."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        connection.sendall(request)
        data = connection.makefile("rb").read()
    statuses = [int(status) for status in re.findall(rb"HTTP/1\.1 (\d+)", data)]
    return statuses, data.rpartition(b"\r\n\r\n")[2]


# other statuses have the code invalid_request
CODES = {404: "not_found", 405: "method_not_allowed", 413: "payload_too_large"}
REFUSED = {
    "no HTTP": (400, b"rubbish\r\n\r\n"),
    "no host": (400, b"GET / HTTP/1.1\r\n\r\n"),
    "HTTP/3.0": (400, b"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n"),
    "TRACE": (405, b"TRACE / HTTP/1.1\r\nHost: localhost\r\n" + CLOSE + b"\r\n\r\n"),
    "a negative length": (400, post(b"Content-Length: -1")),
    "two lengths that differ": (400, post(LENGTH, b"Content-Length: 3")),
    "two equal lengths": (400, post(LENGTH, LENGTH)),
    "a list of lengths": (400, post(b"Content-Length: 40, 40")),
    "a length and chunks": (400, post(LENGTH, CHUNKED, body=CHUNKS)),
    "chunks and no chunks": (400, post(CHUNKED, b"Transfer-Encoding: identity", body=CHUNKS)),
    "no known encoding": (400, post(b"Transfer-Encoding: xchunked", body=CHUNKS)),
    "a tab before chunked": (400, post(b"Transfer-Encoding:\tchunked", body=CHUNKS)),
    "a space after the name": (400, post(LENGTH, b"Transfer-Encoding : chunked")),
    "a chunk without a size": (400, post(CHUNKED, body=b"zz\r\nabc\r\n")),
    "a chunk of 2^68 bytes": (400, post(CHUNKED, body=b"fffffffffffffffff\r\nabc\r\n")),
    "a chunk of 2 GB": (413, post(CHUNKED, body=b"7fffffff\r\nabc\r\n")),
    "a folded header": (400, post(LENGTH, b"X-A: b\r\n c", CLOSE)),
    "two hosts": (400, post(LENGTH, b"Host: y", CLOSE)),
    "NUL in a header": (400, post(LENGTH, b"X-A: a\0b", CLOSE)),
    "HTTP/2": (400, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
    "CONNECT": (400, b"CONNECT a:1 HTTP/1.1\r\nHost: localhost\r\n\r\n"),
    "a method of one letter": (404, b"A / HTTP/1.1\r\nHost: localhost\r\n" + CLOSE + b"\r\n\r\n"),
    "a method of 26 letters": (
        404,
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZ / HTTP/1.1\r\nHost: localhost\r\n" + CLOSE + b"\r\n\r\n",
    ),
    "NUL in the path": (400, get(b"/a%00b")),
    "NUL as it is": (400, get(b"/a\0b")),
    "out of the root": (400, get(b"/../../etc/passwd")),
    "out of the root, encoded": (400, get(b"/models/%2e%2e/%2e%2e/%2e%2e/ping")),
    "an error page": (404, get(b"/.error/nginx")),
    "an error page behind dots": (404, get(b"/v2/../.error/nginx")),
    "an open bracket": (404, get(b"//[")),
    "a path of 8 kB": (404, get(b"/" + b"a" * 8170)),
    "a path of 9 kB": (414, get(b"/" + b"a" * 9000)),
    "a header of 9 kB": (431, post(LENGTH, b"X-A: " + b"a" * 9000, CLOSE)),
    "8,000 headers": (431, post(LENGTH, *(b"A: b" for _ in range(11_000)), CLOSE)),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refuse_an_ambiguous_request_and_close_the_connection(server: Server, name: str) -> None:
    status, request = REFUSED[name]
    statuses, body = answers(server, request)
    assert statuses == [status]
    document = json.loads(body)
    assert (set(document), document["code"]) == (
        {"error", "code", "request_id"},
        CODES.get(status, "invalid_request"),
    )
    assert server.ping() == 200


@pytest.mark.parametrize(
    "headers",
    [
        (b"X-Forwarded-Proto: https", b"X-Forwarded-Ssl: off"),
        (b"Content-Type: text/plain", b"Content-Type: text/csv"),
    ],
    ids=["schemes", "types"],
)
def test_answer_json_despite_headers_that_gunicorn_refuses(
    server: Server, headers: tuple[bytes, bytes]
) -> None:
    statuses, body = answers(server, get(b"/nowhere", *headers))
    assert (statuses, json.loads(body)["code"]) == ([404], "not_found")


@pytest.mark.parametrize(
    "request_bytes", [post(LENGTH, b"X-A: \x01\x1b", CLOSE), get(b"/\xff\xfe")]
)
def test_answer_400_to_bytes_that_only_gunicorn_refuses(
    server: Server, request_bytes: bytes
) -> None:
    assert (answers(server, request_bytes)[0], server.ping()) == ([400], 200)


def test_deliver_the_reply_to_a_large_body_that_flask_does_not_read(server: Server) -> None:
    for _ in range(10):
        reply = requests.put(f"{server.url}/invocations", data=bytes(20_000_000), timeout=PATIENCE)
        expect_error(reply, 405, "method_not_allowed")


SERVED = {
    "chunks with an extension": (
        [200],
        post(CHUNKED, CLOSE, body=CHUNKS.replace(b"\r\n", b";a=b\r\n", 1)),
    ),
    "a trailer": ([200], post(CHUNKED, CLOSE, body=CHUNKS[:-2] + b"Content-Length: 3\r\n\r\n")),
    "an absolute URI": ([200], post(LENGTH, CLOSE, line=b"POST http://other/invocations HTTP/1.1")),
    "two after each other": ([200, 200], post(LENGTH) + post(LENGTH, CLOSE)),
    "an upgrade to HTTP/2": (
        [200],
        post(
            LENGTH,
            b"Connection: Upgrade, HTTP2-Settings, close",
            b"Upgrade: h2c",
            b"HTTP2-Settings: AAMAAABk",
        ),
    ),
    "a header with an underscore": ([200], post(LENGTH, b"Transfer_Encoding: chunked", CLOSE)),
    "200 headers": ([200], post(LENGTH, *(b"A%d: b" % number for number in range(200)), CLOSE)),
    "a page for nginx": ([200], post(LENGTH, b"X-Accel-Redirect: /.error/nginx", CLOSE)),
}


@pytest.mark.parametrize("name", SERVED)
def test_answer_unusual_but_valid_requests_once_each(server: Server, name: str) -> None:
    expected, request = SERVED[name]
    statuses, body = answers(server, request)
    assert (statuses, json.loads(body)["predictions"]) == (expected, [0.0])


def test_answer_http_0_9_with_a_body_only(server: Server) -> None:
    assert answers(server, b"GET /ping\r\n") == ([], b"")


def test_escape_a_caller_s_control_characters_in_the_log(server: Server) -> None:
    escapes = b"\x1b[31mred\xc2\x9bX"
    answers(server, get(b"/" + escapes))
    answers(
        server, get(b"/nowhere", b"Referer: " + escapes, b"X-Amzn-SageMaker-Inference-Id: escaped")
    )
    wait_until(lambda: "escaped" in server.output(), "its line")
    assert not re.findall(rb"[\x00-\x08\x0b-\x1f\x7f]|\xc2[\x80-\x9f]", server.log.read_bytes())


def test_log_a_post_that_nginx_answers_as_a_post(server: Server) -> None:
    headers = {"X-Amzn-SageMaker-Inference-Id": "is-a-post"}
    # not logged, because its path is /ping
    assert server.post("/ping", data=bytes(5000)).status_code == 413
    assert server.post("/nowhere", data=bytes(5000), headers=headers).status_code == 404
    wait_until(lambda: "is-a-post" in server.output(), "its line")
    assert (
        len(
            server.entries(
                "nginx", request_id="is-a-post", method="POST", status=404, path="/nowhere"
            )
        )
        == 1
    )


def invoke(server: Server, padding: int = 0) -> requests.Response:
    return server.post(data=SLEEPER.ljust(padding), headers={"Content-Type": "application/json"})


@pytest.fixture(scope="module")
def sleeper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    make_sleeper(folder)
    return folder


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[Path]:
    """Mount a file system of 8 MB that is held in memory."""
    folder.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=8m", "tmpfs", folder], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip(f"no file system can be mounted here: {done.stderr.decode()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def fill(folder: Path) -> Path:
    file = folder / "fill"
    with contextlib.suppress(OSError), file.open("wb", buffering=0) as filled:
        while True:
            filled.write(bytes(4096))
    return file


def test_answer_small_requests_with_a_full_disk_and_500_to_large_ones(
    sleeper: Path, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        server = Server(tmp_path, sleeper, SERVE_RUN_DIR=str(disk / "run"), SERVE_WORKERS="2")
        server.run_dir = disk / "run"
        server.wait_ready()
        # The second worker may start later. A worker that starts on a full disk ends at its first
        # request.
        counts = server.run_dir / "metrics"
        # two files for each worker and for gunicorn's master
        wait_until(
            lambda: [file.stat().st_size > 0 for file in counts.glob("*.db")] == [True] * 10,
            "two workers for small bodies and two for large ones",
        )
        pids = {name: server.pid(name) for name in ("tritonserver", "gunicorn", "nginx")}
        filled = fill(disk)
        assert {invoke(server).status_code for _ in range(50)} == {200}
        reply = invoke(server, padding=3_000_000)
        expect_error(reply, 500, "internal_error")
        assert {invoke(server).status_code for _ in range(20)} == {200}
        filled.unlink()
        assert invoke(server, padding=3_000_000).status_code == 200
        assert {name: server.pid(name) for name in pids} == pids
        assert server.stop() == 0
        assert "SIGBUS" not in server.output()


FILES = 256
LIMITED = f"""
import os, resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({FILES}, {FILES}))
os.execvp(sys.argv[1], sys.argv[1:])
"""


class Limited(Server):
    """Runs a server whose processes, even those of root, may open at most 256 files."""

    _drop = (
        ("setpriv", "--inh-caps=-sys_resource", "--bounding-set=-sys_resource")
        if os.geteuid() == 0
        else ()
    )
    prefix = (*_drop, sys.executable, "-c", LIMITED)


def test_lose_no_request_with_few_open_files(sleeper: Path, tmp_path: Path) -> None:
    limited = Limited(tmp_path, sleeper, SERVE_MAX_CONCURRENCY="64").wait_ready()
    statuses = Counter[object]()

    def call() -> None:
        for padding in (0, 0, 0, 1_500_000):
            try:
                statuses[invoke(limited, padding).status_code] += 1
            except requests.RequestException as err:
                statuses[type(err).__name__] += 1

    with ThreadPoolExecutor(120) as pool:
        for _ in range(120):
            pool.submit(call)
    assert limited.stop() == 0
    assert set(statuses) <= {200, 503} and statuses[200] > 0
    assert limited.entries(code="frontend_unavailable") == []
    assert "worker_connections" not in limited.output()


def test_close_the_model_manager_s_own_route_to_callers(server: Server) -> None:
    assert server.post("/examples/sleeper/answer").status_code == 404
