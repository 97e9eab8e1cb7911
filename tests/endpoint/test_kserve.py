"""KServe v2 on the port of /invocations: what is handed to Triton, and that nothing else ever is."""

import gzip
import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import requests

from tests.support.harness import PATIENCE, Server, make_scale, make_sleeper, wait_until
from tests.support.streaming_models import make_teller

pytestmark = pytest.mark.stack

INFER = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.5]}]}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("repository")
    make_scale(folder)
    make_sleeper(folder)
    make_teller(folder)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    variables = {"SERVE_REQUEST_TIMEOUT": "6", "SERVE_MAX_BODY_MB": "2", "SERVE_MAX_CONCURRENCY": "4"}
    running = Server(tmp_path_factory.mktemp("serve"), repository, **variables).wait_ready()
    yield running
    assert running.stop() == 0


@pytest.fixture(scope="module")
def closed(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """As on SageMaker."""
    folder = tmp_path_factory.mktemp("closed")
    running = Server(folder, repository, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="scale").wait_ready()
    yield running
    assert running.stop() == 0


def get(server: Server, path: str) -> requests.Response:
    return server.get(path)


def raw(server: Server, line: str, body: bytes = b"") -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body of a request whose path goes out as it stands here."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=PATIENCE) as connection:
        head = f"{line} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode("latin-1") + body)
        reply = b"".join(iter(lambda: connection.recv(65536), b""))
    head_bytes, _, rest = reply.partition(b"\r\n\r\n")
    status, *fields = head_bytes.decode("latin-1").split("\r\n")
    return int(status.split()[1]), dict(f.lower().split(": ", 1) for f in fields), rest


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/scale/ready"])
def test_health_is_triton_s_and_empty(server: Server, path: str) -> None:
    reply = get(server, path)
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["X-Request-Id"]


def test_what_a_model_is_can_be_read(server: Server) -> None:
    assert get(server, "/v2").json()["name"] == "triton"
    for path in ("/v2/models/scale", "/v2/models/scale/versions/1"):
        assert get(server, path).json()["inputs"] == [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}]
    assert get(server, "/v2/models/scale/config").json()["max_batch_size"] == 8
    assert get(server, "/v2/models/scale/versions/2/stats").json()["model_stats"][0]["version"] == "2"
    assert get(server, "/v2/models/scale/versions/2/ready").status_code == 200


@pytest.mark.parametrize(("version", "factor"), [("", 3.0), ("/versions/1", 2.0), ("/versions/2", 3.0)])
def test_infer_answers_as_triton_does(server: Server, version: str, factor: float) -> None:
    reply = server.post(f"/v2/models/scale{version}/infer", json=INFER)
    assert reply.json()["outputs"][0]["data"] == [factor, 2.5 * factor]


def test_binary_tensors_pass_both_ways(server: Server) -> None:
    values = np.arange(1000, dtype=np.float32)
    document = {
        "inputs": [{"name": "x", "shape": [1, 1000], "datatype": "FP32", "parameters": {"binary_data_size": 4000}}],
        "parameters": {"binary_data_output": True},
    }
    header = json.dumps(document).encode()
    headers = {"Inference-Header-Content-Length": str(len(header))}
    reply = server.post("/v2/models/scale/infer", data=header + values.tobytes(), headers=headers)
    start = int(reply.headers["Inference-Header-Content-Length"])
    assert np.array_equal(np.frombuffer(reply.content[start:], dtype=np.float32), 3 * values)


def test_generate_and_the_caller_s_request_id(server: Server) -> None:
    headers = {"X-Amzn-SageMaker-Inference-Id": "my-id"}
    reply = server.post("/v2/models/teller/generate", json={"text_input": "hello"}, headers=headers)
    assert reply.json()["text_output"] == "hello"
    assert reply.headers["X-Request-Id"] == "my-id"


def test_generate_stream_leaves_event_by_event(server: Server, tmp_path: Path) -> None:
    awaited = tmp_path / "go-on"
    body = {"text_input": f"one {awaited} two"}
    with server.post("/v2/models/teller/generate_stream", json=body, stream=True) as reply:
        came = (json.loads(line.removeprefix(b"data: ")) for line in reply.iter_lines(chunk_size=1) if line)
        assert next(came)["text_output"] == "one"
        awaited.touch()
        assert [each["text_output"] for each in came] == [str(awaited), "two"]
    assert reply.headers["Content-Type"].startswith("text/event-stream")


def test_errors_say_what_is_wrong(server: Server) -> None:
    reply = server.post("/v2/models/nobody/infer", json=INFER)
    assert (reply.status_code, reply.json()["code"]) == (404, "model_not_found")
    wrong = server.post("/v2/models/scale/infer", json={"inputs": []})
    assert (wrong.status_code, wrong.json()["code"]) == (400, "invalid_request")


FORBIDDEN = """
/v2/repository/index /v2/repository/models/scale/load /v2/repository/models/scale/unload
/v2/systemsharedmemory/status /v2/systemsharedmemory/region/a/register /v2/systemsharedmemory/unregister
/v2/cudasharedmemory/status /v2/cudasharedmemory/region/a/register /v2/models/scale/systemsharedmemory/status
/v2/trace/setting /v2/models/scale/trace/setting /v2/logging /v2/models /v2/ /v2/models/ /v1/models/scale:predict
/v2x/health/live
""".split()  # noqa: SIM905
DISGUISES = """
/v2/%72epository/index /v2/repository%2Findex /v2%2Frepository/index /%762/repository/index
/v2/models/%2e%2e/repository/index /v2/models/../repository/index /v2/models/scale/../../repository/index
/v2/models/scale/%2e%2e/%2e%2e/repository/index /v2/models/..%2frepository/ready
/v2/models/..%2frepository%2findex/ready /v2/health/live/../../repository/index
/v2/health/live/%2e%2e/%2e%2e/repository/index /v2/./repository/index /v2//repository/index //v2/repository/index
/v2/repository;/index /v2/models/scale;x/trace/setting /v2/models/scale/ready;/../../../repository/index
/v2/models/scale/infer/ /v2/models/scale/infer/../trace/setting /v2/models/scale/INFER /V2/repository/index
/v2/Repository/index /v2/repository/index/ /v2/repository/index?x=/v2/models/scale/infer
/v2/repository/index#/v2/health/live /v2/health/live#/../../repository/index /v2/models/scale/trace/setting?/infer
/v2/models/scale%00/trace/setting /v2/models/scale%3f/trace/setting /v2/models/scale%23/infer
/v2/models/scale%0d%0aX:%20y/ready /v2/models/scale%252e%252e/ready /v2/models/.../ready /v2/models/-scale/ready
/v2/models/scale/versions/1/../../../../repository/index /v2/models/scale/versions/one/infer /v2\\repository\\index
/ping/../v2/repository/index http://x/v2/repository/index http://x/v2/models/scale/../../repository/index
http://x//v2/repository/index
""".split()  # noqa: SIM905


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_nothing_but_what_is_listed_reaches_triton(server: Server, method: str) -> None:
    for path in FORBIDDEN + DISGUISES:
        status, headers, body = raw(server, f"{method} {path}", b"{}")
        assert status in (400, 404, 405), (path, body)
        assert headers["content-type"] == "application/json", path
        assert set(json.loads(body)) == {"error", "code", "request_id"}, f"{path}: it must be ours, not Triton's"


def test_the_names_of_the_attacks_are_real_ones_to_triton(server: Server) -> None:
    """Else the tests above would prove nothing."""
    direct = server.triton()
    assert direct.post("/v2/repository/index").status_code == 200
    for path in ("/v2/systemsharedmemory/status", "/v2/logging", "/v2/trace/setting", "/v2/models/scale/trace/setting"):
        assert direct.get(path).status_code == 200


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/v2/health/live"),
        ("POST", "/v2/models/scale/config"),
        ("GET", "/v2/models/scale/infer"),
        ("DELETE", "/v2/models/scale"),
        ("PUT", "/v2/models/scale/generate_stream"),
    ],
)
def test_another_method_is_a_405(server: Server, method: str, path: str) -> None:
    reply = server.ask(method, path)
    assert (reply.status_code, reply.json()["code"]) == (405, "method_not_allowed")


def test_a_body_over_the_limit_is_a_413_and_one_below_it_passes(server: Server) -> None:
    reply = server.post("/v2/models/scale/infer", data=b" " * (2 * 2**20 + 1))
    assert (reply.status_code, reply.json()["code"]) == (413, "payload_too_large")
    chunked = server.post("/v2/models/scale/infer", data=iter([b" " * 2**20] * 3))
    assert (chunked.status_code, chunked.json()["code"]) == (413, "payload_too_large")
    below = json.dumps(INFER).encode().ljust(2 * 2**20)
    assert server.post("/v2/models/scale/infer", data=below).status_code == 200


def test_a_compressed_body_is_unpacked(server: Server) -> None:
    headers = {"Content-Encoding": "gzip"}
    reply = server.post("/v2/models/scale/infer", data=gzip.compress(json.dumps(INFER).encode()), headers=headers)
    assert reply.json()["outputs"][0]["data"] == [3.0, 7.5]
    damaged = server.post("/v2/models/scale/infer", data=b"\x1f\x8b", headers=headers)
    assert (damaged.status_code, damaged.json()["code"]) == (400, "invalid_request")


def sleep(server: Server, seconds: float) -> requests.Response:
    tensor = {"name": "seconds", "shape": [1], "datatype": "FP32", "data": [seconds]}
    return server.post("/v2/models/sleeper/infer", json={"inputs": [tensor]})


def test_a_call_that_takes_too_long_is_a_504(server: Server) -> None:
    reply = sleep(server, 7)
    assert (reply.status_code, reply.json()["code"]) == (504, "triton_timeout")


def test_health_is_not_logged_and_a_call_is(server: Server) -> None:
    get(server, "/v2/health/live")
    server.post("/v2/models/scale/infer", json=INFER, headers={"X-Amzn-SageMaker-Inference-Id": "to-be-logged"})
    wait_until(lambda: "to-be-logged" in server.output(), "the call is in the log")
    logged = [json.loads(line) for line in server.output().splitlines() if line.startswith('{"')]
    assert not [line for line in logged if line.get("path") == "/v2/health/live" and line["status"] == 200]


def test_without_triton_every_route_is_a_503_that_says_so_and_they_come_back(server: Server) -> None:
    with server.unattended():
        os.kill(server.pid("tritonserver"), signal.SIGKILL)
        replies = [get(server, "/v2/health/ready"), server.post("/v2/models/scale/infer", json=INFER)]
        replies.append(server.post("/v2/models/teller/generate_stream", json={"text_input": "x"}))
    assert [(r.status_code, r.json()["code"]) for r in replies] == [(503, "triton_unavailable")] * 3
    assert all(reply.headers["Retry-After"] and reply.headers["X-Request-Id"] for reply in replies)
    server.wait_ready()
    assert server.post("/v2/models/scale/infer", json=INFER).status_code == 200


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2", "/v2/models/scale", "/v2/models/scale/infer"])
def test_on_sagemaker_there_is_none_of_it(closed: Server, path: str) -> None:
    for reply in (get(closed, path), closed.post(path, json=INFER)):
        assert (reply.status_code, reply.json()["code"]) == (404, "not_found")
