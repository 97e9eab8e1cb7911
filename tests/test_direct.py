"""Tensors that nginx hands to Triton past Python: the same answers, ids and counts as through Flask."""

import json
import os
import signal
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import Server, make_scale, wait_until

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
BINARY = "application/vnd.sagemaker-triton.binary+json"
BODY = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
HEADER = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}]}


def binary(outputs: dict[str, Any], **changes: str) -> dict[str, Any]:
    """A request whose input is binary."""
    header = json.dumps(HEADER | outputs).encode()
    kind = {"Content-Type": f"{BINARY};json-header-size={len(header)}"}
    return {"data": header + struct.pack("<2f", 1, 2), "headers": kind | changes}


def shaped(*shape: int, **more: Any) -> dict[str, Any]:
    return {"json": {"inputs": [{**BODY["inputs"][0], "shape": list(shape)}], **more}}


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server]]:
    """One that hands tensors on past Python, and one that does not."""
    folder = tmp_path_factory.mktemp("direct")
    make_scale(folder / "repository")
    (folder / "python").mkdir()
    direct = Server(folder, folder / "repository")
    flask = Server(folder / "python", folder / "repository", SAGEMAKER_TRITON_INFERENCE_TYPE="generate")
    yield direct.wait_ready(), flask.wait_ready()
    assert [direct.stop(), flask.stop()] == [0, 0]


@pytest.fixture
def direct(servers: tuple[Server, Server]) -> Server:
    return servers[0]


def counted(server: Server, version: str) -> float:
    text = server.get("/metrics").text
    name = f'serve_requests_total{{code="200",model="scale",version="{version}"}} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


SAME: dict[str, dict[str, Any]] = {
    "JSON": {"json": BODY},
    "JSON of the version in the query": {"json": BODY, "params": {"model_name": "scale", "model_version": "1"}},
    "JSON with a charset": {"data": json.dumps(BODY), "headers": {"Content-Type": "application/json; charset=utf-8"}},
    "JSON with a target": {"json": BODY, "headers": {"X-Amzn-SageMaker-Target-Model": "scale"}},
    "JSON with an id": {"json": {"id": "mine", **BODY}, "headers": {"X-Amzn-SageMaker-Inference-Id": "a-1"}},
    "binary in": binary({}),
    "binary in and out": binary({"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}),
    "binary with attributes": binary({}, **{ATTRIBUTES: "model_name=scale;model_version=1"}),
    "binary without a header": {
        "data": struct.pack("<2f", 1, 2),
        "headers": {"Content-Type": f"{BINARY};json-header-size=0"},
    },
    "a wrong shape": shaped(1, 3),
    "a shape of no body": shaped(1, 2**40),
    "sizes that only multiply to one of no body": shaped(9999, 9999),
    "a model of the body's": shaped(1, 2, model_name="scale"),
    "another model of the body's": shaped(1, 2, model_name="other"),
    "a version of the body's": shaped(1, 2, model_version=1),
    "a version that is not there": {"json": BODY, "params": {"model_name": "scale", "model_version": "9"}},
    "a model that is not there": {"json": BODY, "params": {"model_name": "nothing"}},
    "instances": {"json": {"instances": [1]}},
    "no JSON": {"data": b"{", "headers": {"Content-Type": "application/json"}},
    "a header longer than the body": {"data": b"{}", "headers": {"Content-Type": f"{BINARY};json-header-size=99"}},
    "an escaped key": {
        "data": json.dumps(BODY).replace("shape", "\\u0073hape").replace("[1, 2]", "[1, 1099511627776]", 1),
        "headers": {"Content-Type": "application/json"},
    },
}


def test_requests_are_counted_by_model_version_and_code(direct: Server) -> None:
    """The first test here: what others have sent may be counted at any time."""
    for _ in range(5):
        assert direct.post(json=BODY).status_code == 200
    wait_until(lambda: counted(direct, "2") == 5, "five requests are counted")


@pytest.mark.parametrize("request_", SAME.values(), ids=SAME)
def test_the_reply_is_that_of_flask(servers: tuple[Server, Server], request_: dict[str, Any]) -> None:
    ours, theirs = (server.post(**request_) for server in servers)
    assert ours.status_code == theirs.status_code
    for name in ("Content-Type", ATTRIBUTES, "X-Model-Name", "X-Model-Version"):
        assert ours.headers.get(name) == theirs.headers.get(name), name
    if ours.status_code == 200:
        assert ours.content == theirs.content
    else:
        assert ours.json() | {"request_id": ""} == theirs.json() | {"request_id": ""}
    assert len(ours.headers["X-Request-Id"]) == len(theirs.headers["X-Request-Id"])


def test_no_python_runs_for_a_tensor(direct: Server) -> None:
    workers = [pid for pid in direct.processes() if b"wsgi:app" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    for pid in workers:
        os.kill(pid, signal.SIGSTOP)
    try:
        assert direct.post(json=BODY).json()["outputs"][0]["data"] == [3, 6]
        assert direct.post(**binary({})).status_code == 200
    finally:
        for pid in workers:
            os.kill(pid, signal.SIGCONT)


def test_the_log_has_a_line_with_id_model_and_time(direct: Server) -> None:
    reply = direct.post(json=BODY, headers={"X-Amzn-SageMaker-Inference-Id": "find-me"})
    assert reply.headers["X-Request-Id"] == "find-me"
    lines = wait_until(lambda: [line for line in direct.output().splitlines() if "find-me" in line], "a line")
    [line] = map(json.loads, lines)
    assert (line["model"], line["status"], line["path"]) == ("scale", 200, "/invocations")
    assert line["triton_ms"] <= 1000 * line["seconds"] + 1


def test_shapes_that_would_end_triton_do_not_get_there(direct: Server) -> None:
    before = direct.pid("tritonserver")
    for shape in ([1, 2**40], [2**40], [99999, 99999], [1, 1, 1, 10**9], [10**5, 10**5, 10**5]):
        assert direct.post(**shaped(*shape)).status_code == 400
        far = json.dumps(shaped(*shape)["json"]).replace("{", "{" + " " * 5000, 1)
        assert direct.post(data=far, headers={"Content-Type": "application/json"}).status_code == 400
    assert direct.pid("tritonserver") == before
    assert direct.post(json=BODY).status_code == 200


def test_while_triton_is_down_the_answer_is_503_and_then_200_again(direct: Server) -> None:
    os.kill(direct.pid("tritonserver"), signal.SIGKILL)
    statuses = {direct.post(json=BODY).status_code for _ in range(5)}
    assert statuses <= {200, 503}
    wait_until(lambda: direct.post(json=BODY).status_code == 200, "Triton is back")
