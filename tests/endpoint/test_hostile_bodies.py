"""Hostile bodies over real HTTP: each is answered by an error that says why, and the server is none the worse."""

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests

from tests.bodies.hostile import BINARY, CASES, JSON_TYPE, LINES, MEGABYTE, many
from tests.support.harness import ONE_INSTANCE, ROOT, Server, link_model, make_scale, make_sleeper

pytestmark = pytest.mark.stack

ECHO = '''
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Gives its input back."""

    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("x", tensor.as_numpy())]) for tensor in tensors]
'''
SECONDS = 4
TRITON = "tritonserver"


def make_ensemble(repository: Path) -> None:
    """`chain`: without a batch dimension, but its only part, `numbers`, has one."""
    (repository / "chain/1").mkdir(parents=True)
    (repository / "chain/config.pbtxt").write_text(
        'platform: "ensemble"\ninput { name: "x" data_type: TYPE_FP32 dims: [-1, -1] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [-1, -1] }\nensemble_scheduling { step { model_name: "numbers" '
        'model_version: -1 input_map { key: "x" value: "x" } output_map { key: "x" value: "y" } } }\n'
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    make_scale(repository)
    make_sleeper(repository)
    for name, datatype in (("numbers", "FP32"), ("texts", "STRING")):
        folder = repository / name
        (folder / "1").mkdir(parents=True)
        (folder / "1/model.py").write_text(ECHO)
        (folder / "config.pbtxt").write_text(
            f'backend: "python"\nmax_batch_size: 8\ninput {{ name: "x" data_type: TYPE_{datatype} dims: [-1] }}\n'
            f'output {{ name: "x" data_type: TYPE_{datatype} dims: [-1] }}\n{ONE_INSTANCE}'
        )
    make_ensemble(repository)
    link_model(ROOT / "model_repository/bert", repository)
    variables = {"SERVE_REQUEST_TIMEOUT": str(SECONDS), "SERVE_WORKERS": "1", "SERVE_MAX_BODY_MB": "40"}
    running = Server(tmp_path_factory.mktemp("serve"), repository, **variables).wait_ready()
    yield running
    assert running.stop() == 0


@pytest.fixture(autouse=True)
def unharmed(server: Server) -> Iterator[None]:
    """After each: the same tritonserver, which answers rightly."""
    pid, worker = server.pid(TRITON), server.pid("gunicorn")
    yield
    assert server.ping() == 200
    assert scale(server) == [3.0]
    assert (server.pid(TRITON), server.pid("gunicorn")) == (pid, worker)


def scale(server: Server) -> Any:
    inputs = [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1.0]}]
    return server.post(params={"model_name": "scale"}, json={"inputs": inputs}).json()["outputs"][0]["data"]


def send(server: Server, model: str, data: bytes, kind: str = JSON_TYPE, encoding: str = "") -> requests.Response:
    headers = {"Content-Type": kind} | ({"Content-Encoding": encoding} if encoding else {})
    return server.post(params={"model_name": model}, data=data, headers=headers)


def expect(reply: requests.Response, *statuses: int) -> str:
    """The text of an error that says what was wrong, not that we failed."""
    assert reply.status_code in statuses, reply.text[:500]
    found = reply.json()
    assert set(found) == {"error", "code", "request_id"}
    assert len(found["error"]) < 500
    return str(found["error"])


@pytest.mark.parametrize("case", CASES)
def test_a_hostile_body_is_refused(server: Server, case: str) -> None:
    hostile = CASES[case]()
    model = {"BYTES": "texts", "FP32": "numbers"}.get(hostile.model.model.inputs[0].datatype, "numbers")
    name = "sleeper" if hostile.model.client else model
    expect(send(server, name, hostile.data, hostile.content_type, hostile.encoding), 400, 413, 504)


def ask(server: Server, model: str, *inputs: dict[str, Any]) -> requests.Response:
    return send(server, model, json.dumps({"inputs": inputs}).encode())


@pytest.mark.parametrize(
    ("model", "datatype"), [("scale", "FP32"), ("numbers", "FP32"), ("texts", "BYTES"), ("chain", "FP32")]
)
def test_a_batch_of_no_rows_is_400_and_rows_of_nothing_are_answered(server: Server, model: str, datatype: str) -> None:
    for shape in ([0, 0], [0, 2]):
        expect(ask(server, model, {"name": "x", "shape": shape, "datatype": datatype, "data": []}), 400)
    for shape in ([1, 0], [2, 0]):
        reply = ask(server, model, {"name": "x", "shape": shape, "datatype": datatype, "data": []})
        (output,) = reply.json()["outputs"]
        assert (output["shape"], output["data"]) == (shape, [])


def tokens(rows: int, length: int) -> list[dict[str, Any]]:
    names = ("input_ids", "attention_mask", "token_type_ids")
    data = {"datatype": "INT64", "shape": [rows, length], "data": [0] * (rows * length)}
    return [{"name": name, **data} for name in names]


def test_more_tokens_than_the_model_has_positions_are_400(server: Server) -> None:
    assert ask(server, "bert", *tokens(1, 512)).status_code == 200
    expect(ask(server, "bert", *tokens(1, 513)), 400)
    expect(ask(server, "bert", *tokens(0, 0)), 400)


@pytest.mark.parametrize(("model", "line"), [("scale", b"{}\n"), ("sleeper", b"0\n"), ("scale", b"\n")])
def test_millions_of_lines_are_400_413_or_504_by_the_deadline(server: Server, model: str, line: bytes) -> None:
    reply = send(server, model, gzip.compress(line * 2_000_000), LINES, "gzip")
    expect(reply, 400, 413, 504)
    assert reply.elapsed.total_seconds() < 3 * SECONDS


def test_more_instances_than_are_answered_in_time_are_504(server: Server) -> None:
    instances = b'{"instances":[%b]}' % many(b"0.001", 90_000)
    assert "SERVE_REQUEST_TIMEOUT" in expect(send(server, "sleeper", instances), 504)


def test_a_long_text_is_cut_and_said_to_be_truncated(server: Server) -> None:
    reply = send(server, "bert", b"a " * (5 * MEGABYTE // 2), "text/plain")
    assert reply.status_code == 200, reply.text[:500]
    (prediction,) = reply.json()["predictions"]
    assert prediction["truncated"] is True


def test_a_form_of_many_parts_is_413(server: Server) -> None:
    files = [("image", (None, b"x"))] * 1001
    expect(server.post(params={"model_name": "sleeper"}, files=files), 413)


@pytest.mark.parametrize("header", [f"{BINARY};json-header-size={'9' * 5000}", f"{BINARY};json-header-size=-1"])
def test_a_header_size_of_very_many_digits_is_400(server: Server, header: str) -> None:
    expect(send(server, "numbers", b"{}", header), 400)


@pytest.mark.parametrize("value", [b"[[[1],[2]],{}]", b'[["a"]]', b"{}", b"[" * 500 + b"]" * 500])
def test_data_that_are_nested_wrong_are_400_in_a_stream_too(server: Server, value: bytes) -> None:
    for accept in ("text/event-stream", "application/jsonlines", "application/json"):
        for data in (b'{"x":%b}' % value, b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":%b}]}' % value):
            reply = server.post(params={"model_name": "numbers"}, data=data, headers={"Accept": accept})
            expect(reply, 400)


def test_raw_input_is_refused_as_a_stream(server: Server) -> None:
    headers = {"Content-Type": f"{BINARY};json-header-size=0", "Accept": "text/event-stream"}
    reply = server.post(params={"model_name": "numbers"}, data=bytes(4), headers=headers)
    expect(reply, 400)


@pytest.mark.parametrize("size", [3, 10_000], ids=["small", "large"])
def test_nan_and_infinity_are_null_in_json_and_themselves_in_binary(server: Server, size: int) -> None:
    numbers = np.array([np.nan, np.inf, -np.inf] + [1.0] * (size - 3), np.float32)
    tensor = {"name": "x", "shape": [1, size], "datatype": "FP32", "parameters": {"binary_data_size": numbers.nbytes}}
    for outputs in ({}, {"parameters": {"binary_data_output": True}}):
        head = json.dumps({"inputs": [tensor], **outputs}).encode()
        reply = send(server, "numbers", head + numbers.tobytes(), f"{BINARY};json-header-size={len(head)}")
        assert reply.status_code == 200
        if outputs:
            assert reply.content.endswith(numbers.tobytes())
        else:
            assert reply.json()["outputs"][0]["data"][:3] == [None, None, None]
