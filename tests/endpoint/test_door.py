"""Tensors that nginx's door hands to Triton past Python: the values of numpy, the replies of Flask and of Triton's own
endpoint; and bodies that would end Triton, which it survives. tests/supervisor/test_door.py has which bodies it takes.
"""

import json
import os
import signal
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from tests.supervisor.test_door import DTYPES, NUMBERS
from tests.support.harness import Server, make_identity, make_scale, wait_until

ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"
BINARY = "application/vnd.sagemaker-triton.binary+json"
INFERENCE_ID = "X-Amzn-SageMaker-Inference-Id"
ONE = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}
BODY = {"inputs": [ONE]}
HEADER = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "parameters": {"binary_data_size": 8}}]}
JSON = {"Content-Type": "application/json"}


def binary(header: Any, data: bytes = struct.pack("<2f", 1, 2), attributes: str = "") -> dict[str, Any]:
    """A request with binary inputs."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    headers = {"Content-Type": f"{BINARY};json-header-size={len(text)}"} | (
        {ATTRIBUTES: attributes} if attributes else {}
    )
    return {"data": text + data, "headers": headers}


def shaped(*shape: Any, **more: Any) -> dict[str, Any]:
    return {"json": {"inputs": [{**ONE, "shape": list(shape)}], **more}}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("door")
    make_scale(folder / "repository")
    make_identity(folder / "repository", NUMBERS)
    running = Server(
        folder,
        folder / "repository",
        SERVE_KSERVE="true",
        SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="scale",
        SERVE_LOAD_MODELS="scale,identity",
    ).wait_ready()
    yield running
    assert running.stop() == 0


def counted(server: Server, code: int, version: str) -> float:
    text = server.get("/metrics").text
    name = f'serve_requests_total{{code="{code}",model="{"scale" if version else ""}",version="{version}"}} '
    return sum(float(line.removeprefix(name)) for line in text.splitlines() if line.startswith(name))


def workers(server: Server) -> list[int]:
    return [pid for pid in server.processes() if b"wsgi:app" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.fixture
def without_python(server: Server) -> Iterator[None]:
    """gunicorn is stopped: what is answered now, the door has let through."""
    stopped = workers(server)
    for pid in stopped:
        os.kill(pid, signal.SIGSTOP)
    yield
    for pid in stopped:
        os.kill(pid, signal.SIGCONT)


def test_requests_are_counted_by_model_and_version(server: Server) -> None:
    """The first test here: what others have sent may be counted at any time."""
    for _ in range(5):
        assert server.post(json=BODY).status_code == 200
    wait_until(lambda: counted(server, 200, "2") == 5, "five requests are counted")


def parts(reply: requests.Response) -> tuple[Any, bytes]:
    """The JSON of a reply and the data behind it."""
    kind, _, size = reply.headers["Content-Type"].partition(";json-header-size=")
    assert kind == (BINARY if size else "application/json")
    length = int(size or reply.headers.get("Inference-Header-Content-Length") or len(reply.content))
    return json.loads(reply.content[:length]), reply.content[length:]


@pytest.mark.usefixtures("without_python")
def test_every_datatype_comes_back_as_numpy_writes_it(server: Server) -> None:
    inputs = [
        {"name": f"in_{name}", "shape": [1, 3], "datatype": name, "data": [values]} for name, values in NUMBERS.items()
    ]
    outputs = [{"name": f"out_{name}", "parameters": {"binary_data": True}} for name in NUMBERS]
    target = {"X-Amzn-SageMaker-Target-Model": "identity"}
    document, data = parts(server.post(json={"inputs": inputs, "outputs": outputs}, headers=target))
    assert [output["datatype"] for output in document["outputs"]] == list(NUMBERS)
    assert data == b"".join(np.array(values, dtype=DTYPES[name]).tobytes() for name, values in NUMBERS.items())


@pytest.mark.usefixtures("without_python")
def test_no_python_runs_for_a_small_tensor(server: Server) -> None:
    assert server.post(json=BODY).json()["outputs"][0]["data"] == [3, 6]
    assert server.post(**binary(HEADER)).json()["outputs"][0]["data"] == [3, 6]
    assert server.post("/v2/models/scale/versions/1/infer", json=BODY).json()["outputs"][0]["data"] == [2, 4]


@pytest.mark.usefixtures("without_python")
@pytest.mark.parametrize("outputs", [{}, {"outputs": [{"name": "y"}]}, {"parameters": {"binary_data_output": True}}])
@pytest.mark.parametrize("is_binary", [False, True])
def test_kserve_answers_as_tritons_own_port(server: Server, outputs: dict[str, Any], is_binary: bool) -> None:
    head = json.dumps((HEADER if is_binary else BODY) | outputs).encode()
    data, size = (struct.pack("<2f", 1.5, 1e30), {"Inference-Header-Content-Length": str(len(head))})
    body, headers = (head + data, size) if is_binary else (head, {})
    ours = server.post("/v2/models/scale/infer", data=body, headers=headers)
    theirs = server.triton().post("/v2/models/scale/infer", content=body, headers=headers)
    assert (ours.status_code, ours.content) == (200, theirs.content)
    for name in ("Content-Type", "Inference-Header-Content-Length"):
        assert ours.headers.get(name) == theirs.headers.get(name), name


Y = {"outputs": [{"name": "y", "parameters": {"binary_data": True}}]}
SAME: dict[str, dict[str, Any]] = {
    "JSON": {"json": BODY},
    "JSON of the version in the query": {"json": BODY, "params": {"model_name": "scale", "model_version": "1"}},
    "JSON with a charset": {"data": json.dumps(BODY), "headers": {"Content-Type": "application/json; charset=utf-8"}},
    "JSON with a target": {"json": BODY, "headers": {"X-Amzn-SageMaker-Target-Model": "scale"}},
    "JSON with an id": {"json": {"id": "mine", **BODY}, "headers": {INFERENCE_ID: "a-1"}},
    "JSON in, binary out": {"json": BODY | Y},
    "binary in": binary(HEADER),
    "binary in and out": binary(HEADER | Y),
    "binary with attributes": binary(HEADER, attributes="model_name=scale;model_version=1"),
    "a wrong shape": shaped(1, 3),
    "another rank": shaped(1, 1, 2),
    "another datatype": {"json": {"inputs": [{**ONE, "datatype": "INT32"}]}},
    "an input that is not there": {"json": {"inputs": [{**ONE, "name": "z"}]}},
    "an input twice": {"json": {"inputs": [ONE, ONE]}},
    "an output that is not there": {"json": BODY | {"outputs": [{"name": "z"}]}},
    "a model of the body's": shaped(1, 2, model_name="scale"),
    "a version that is not there": {"json": BODY, "params": {"model_name": "scale", "model_version": "9"}},
}


@pytest.mark.parametrize("request_", SAME.values(), ids=SAME)
def test_the_reply_is_that_of_flask(server: Server, request_: dict[str, Any]) -> None:
    """A body of unknown length is Flask's."""
    prepared = requests.Request("POST", "http://x", **request_).prepare()
    assert isinstance(prepared.body, bytes | str)
    body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body
    headers = {name: value for name, value in prepared.headers.items() if name != "Content-Length"}
    ours = server.post(**request_)
    theirs = server.post(data=iter([body]), headers=headers, params=request_.get("params"))
    assert ours.status_code == theirs.status_code
    for name in (ATTRIBUTES, "X-Model-Name", "X-Model-Version"):
        assert ours.headers.get(name) == theirs.headers.get(name), name
    if ours.status_code == 200:
        assert parts(ours) == parts(theirs)
    else:
        assert ours.json() | {"request_id": ""} == theirs.json() | {"request_id": ""}


def replaced(old: str, new: str) -> dict[str, Any]:
    return {"data": json.dumps(BODY).replace(old, new, 1), "headers": JSON}


def sized(size: Any, data: bytes = struct.pack("<2f", 1, 2)) -> dict[str, Any]:
    return binary({"inputs": [{**HEADER["inputs"][0], "parameters": {"binary_data_size": size}}]}, data)


HUGE = "[1, 1099511627776]"
HOSTILE: dict[str, tuple[int, dict[str, Any]]] = {
    "an impossible shape": (400, shaped(1, 2**40)),
    "a product of two sizes": (400, shaped(99999, 99999)),
    "a product that overflows": (400, shaped(2**32, 2**32 + 1)),
    "a size that overflows": (400, shaped(2**63)),
    "a size of 1e308": (400, shaped(1e308)),
    "half a size": (400, shaped(1.5)),
    "a negative size": (400, shaped(-1, -2)),
    "an impossible shape before the true one": (200, replaced('"shape": ', f'"shape": {HUGE}, "shape": ')),
    "an impossible shape behind the true one": (400, replaced("[1, 2]", f'[1, 2], "shape": {HUGE}')),
    "inputs twice": (
        200,
        replaced('"inputs": ', f'"inputs": [{json.dumps({**ONE, "shape": [1, 2**40]})}], "inputs": '),
    ),
    "an escaped key": (400, replaced('"shape": [1, 2]', f'"sh\\u0061pe": {HUGE}')),
    "an escaped key behind the plain one": (400, replaced("[1, 2]", f'[1, 2], "sh\\u0061pe": {HUGE}')),
    "8,000 open brackets": (400, {"data": "[" * 8000, "headers": JSON}),
    "8,000 open brackets as data": (400, replaced('"data": [1, 2]', '"data": ' + "[" * 8000)),
    "8,000 open brackets in an unknown key": (400, replaced("{", '{"a":' + "[" * 8000)),
    "2,000 closed brackets as data": (400, replaced('"data": [1, 2]', '"data": ' + "[" * 2000 + "1" + "]" * 2000)),
    "300,000 open brackets": (400, {"data": "[" * 300_000, "headers": JSON}),
    "a negative size of the data": (400, sized(-8)),
    "a float as size of the data": (400, sized(8.5)),
    "text as size of the data": (400, sized("8")),
    "a size of more data than there is": (400, sized(2**40)),
    "a size of less data than there is": (400, sized(8, bytes(12))),
    "5,000 digits": (400, {"data": b"{}", "headers": {"Content-Type": f"{BINARY};json-header-size={'9' * 5000}"}}),
    "NaN": (400, replaced("[1, 2]}", "[NaN, 2]}")),
    "Infinity": (400, replaced("[1, 2]}", "[Infinity, 2]}")),
    "text where numbers belong": (400, {"json": {"inputs": [{**ONE, "data": ["1", "2"]}]}}),
    "no inputs": (400, {"json": {"inputs": []}}),
    "no data": (400, {"json": {"inputs": [{**ONE, "data": []}]}}),
}


@pytest.mark.parametrize(("status", "request_"), HOSTILE.values(), ids=HOSTILE)
def test_no_body_ends_triton(server: Server, status: int, request_: dict[str, Any]) -> None:
    """A key that stands twice counts the last time, so some of them are right."""
    before = server.pid("tritonserver")
    reply = server.post(**request_)
    kind = request_.get("headers", JSON)["Content-Type"]
    size = {"Inference-Header-Content-Length": kind.rpartition("=")[2]} if "=" in kind else {}
    kserve = server.post("/v2/models/scale/infer", **request_ | {"headers": size})
    assert reply.status_code == status, reply.text
    assert (kserve.status_code == 200) == (status == 200), kserve.text
    assert server.post(json=BODY).json()["outputs"][0]["data"] == [3, 6]
    assert server.pid("tritonserver") == before


@pytest.mark.parametrize(("status", "request_"), HOSTILE.values(), ids=HOSTILE)
def test_no_body_ends_triton_through_flask(server: Server, status: int, request_: dict[str, Any]) -> None:
    """The door leaves a body of unknown length to Flask."""
    before = server.pid("tritonserver")
    prepared = requests.Request("POST", "http://x", **request_).prepare()
    assert isinstance(prepared.body, bytes | str)
    body = prepared.body.encode() if isinstance(prepared.body, str) else prepared.body
    headers = {"Content-Type": str(prepared.headers["Content-Type"])}
    assert server.post(data=iter([body]), headers=headers).status_code == status
    assert server.post("/v2/models/scale/infer", data=iter([body])).status_code in (200, 400)
    assert server.post(json=BODY).json()["outputs"][0]["data"] == [3, 6]
    assert server.pid("tritonserver") == before


@pytest.mark.parametrize(("path", "name"), [("/invocations", "find-me"), ("/v2/models/scale/infer", "me-too")])
def test_the_log_has_a_line_with_id_model_and_time(server: Server, path: str, name: str) -> None:
    assert server.post(path, json=BODY, headers={INFERENCE_ID: name}).headers["X-Request-Id"] == name
    lines = wait_until(lambda: [line for line in server.output().splitlines() if name in line], "a line")
    [line] = map(json.loads, lines)
    assert (line["model"], line["version"], line["status"], line["path"]) == ("scale", "2", 200, path)
    assert line["triton_ms"] <= 1000 * line["seconds"] + 1


@pytest.mark.parametrize("to_nginx", [True, False])
def test_a_path_in_a_header_means_nothing(server: Server, to_nginx: bool) -> None:
    """gunicorn would put the two together, if it trusted the header as it does by default."""
    body, before = json.dumps(BODY).encode(), counted(server, 404, "")
    connection = socket.socket(socket.AF_INET if to_nginx else socket.AF_UNIX)
    connection.connect(("127.0.0.1", server.port) if to_nginx else str(server.run_dir / "gunicorn.sock"))
    with connection:
        head = "POST /ping:x/invocations HTTP/1.1\r\nHost: x\r\nConnection: close\r\nSCRIPT_NAME: /ping:x\r\n"
        head += f"{INFERENCE_ID}: hidden-one\r\nContent-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        connection.sendall(head.encode() + body)
        assert connection.makefile("rb").readline().split()[1] == b"404"
    wait_until(lambda: counted(server, 404, "") == before + 1, "it is counted")
    if to_nginx:
        wait_until(lambda: '"request_id":"hidden-one","method":"POST"' in server.output(), "it is logged")


def test_while_triton_is_down_the_answer_is_503_and_then_200_again(server: Server) -> None:
    os.kill(server.pid("tritonserver"), signal.SIGKILL)
    statuses = {server.post(json=BODY).status_code for _ in range(5)}
    assert statuses <= {200, 503}
    wait_until(lambda: server.post(json=BODY).status_code == 200, "Triton is back")
