"""Tests bodies at the limits of what a model accepts, and calls whose deadline has passed, over
real HTTP: each mistake is answered with an error that explains it. hostile_requests.py has hostile
requests."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.bodies.echo import BINARY, JSON_TYPE, LINES, NPY, npy_file
from tests.endpoint.test_classification import make_echo
from tests.support.harness import (
    ROOT,
    SLEEPER,
    SLEEPER_CLIENT,
    Server,
    expect_error,
    link_model,
    make_python_model,
    make_scale,
    make_sleeper,
    module_server,
    tensor,
    wait_until,
)

pytestmark = pytest.mark.stack

SECONDS = 7
CALLERS = 20
TRITON = "tritonserver"
QUEUED = (
    "max_batch_size: 1\ndynamic_batching { %s }\n"
    'input { name: "seconds" data_type: TYPE_FP32 dims: [1] }\n'
    'output { name: "slept" data_type: TYPE_FP32 dims: [1] }\n'
)


def make_models(repository: Path) -> None:
    """Make `numbers` and `texts`, which return their input; `chain`, without a batch dimension,
    which calls only `numbers`; and `queued` and `narrow`, which sleep and have a dynamic batcher.
    The queue of `narrow` has room for one request."""
    make_scale(repository)
    make_sleeper(repository)
    make_echo(repository, "numbers", "FP32")
    make_echo(repository, "texts", "STRING")
    (repository / "chain/1").mkdir(parents=True)
    (repository / "chain/config.pbtxt").write_text(
        'platform: "ensemble"\ninput { name: "x" data_type: TYPE_FP32 dims: [-1, -1] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [-1, -1] }\nensemble_scheduling { '
        'step { model_name: "numbers" model_version: -1 input_map { key: "x" value: "x" } '
        'output_map { key: "x" value: "y" } } }\n'
    )
    link_model(ROOT / "model_repository/bert", repository)
    code = SLEEPER.replace("np.array([seconds]", "np.array([[seconds]]")
    for name, policy in (("queued", ""), ("narrow", "default_queue_policy { max_queue_size: 1 }")):
        make_python_model(repository / name, QUEUED % policy, code, SLEEPER_CLIENT)


server = module_server(
    make_models, SERVE_REQUEST_TIMEOUT=str(SECONDS), SERVE_WORKERS="1", SERVE_MAX_BODY_MB="40"
)


@pytest.fixture(autouse=True)
def unharmed(server: Server) -> Iterator[None]:
    """Check after each test that the same tritonserver still answers correctly."""
    pid, worker = server.pid(TRITON), server.pid("gunicorn")
    yield
    assert server.ping() == 200
    assert scale(server) == [3.0]
    assert (server.pid(TRITON), server.pid("gunicorn")) == (pid, worker)


def scale(server: Server) -> Any:
    inputs = [tensor([1.0])]
    return server.post(params={"model_name": "scale"}, json={"inputs": inputs}).json()["outputs"][
        0
    ]["data"]


def send(
    server: Server, model: str, data: bytes, kind: str = JSON_TYPE, encoding: str = ""
) -> requests.Response:
    headers = {"Content-Type": kind} | ({"Content-Encoding": encoding} if encoding else {})
    return server.post(params={"model_name": model}, data=data, headers=headers)


def expect(reply: requests.Response, *statuses: int) -> str:
    """Assert that the reply is an error that says what was wrong with the request. Return its
    text."""
    assert reply.status_code in statuses, reply.text[:500]
    document = reply.json()
    assert set(document) == {"error", "code", "request_id"}
    assert len(document["error"]) < 500
    return str(document["error"])


def ask(server: Server, model: str, *inputs: dict[str, Any]) -> requests.Response:
    return send(server, model, json.dumps({"inputs": inputs}).encode())


@pytest.mark.parametrize(
    ("model", "datatype"),
    [("scale", "FP32"), ("numbers", "FP32"), ("texts", "BYTES"), ("chain", "FP32")],
)
def test_answer_400_for_no_rows_but_accept_empty_rows(
    server: Server, model: str, datatype: str
) -> None:
    for shape in ([0, 0], [0, 2]):
        expect(
            ask(server, model, {"name": "x", "shape": shape, "datatype": datatype, "data": []}), 400
        )
    for shape in ([1, 0], [2, 0]):
        reply = ask(server, model, {"name": "x", "shape": shape, "datatype": datatype, "data": []})
        (output,) = reply.json()["outputs"]
        assert (output["shape"], output["data"]) == (shape, [])


def test_refuse_an_npy_file_and_a_line_without_rows(server: Server) -> None:
    assert "no elements" in expect(send(server, "numbers", npy_file("<f4", (0, 3)), NPY), 400)
    line = b'{"inputs":[{"name":"x","shape":[0,3],"datatype":"FP32","data":[]}]}'
    assert send(server, "numbers", line, LINES).json()["code"] == "invalid_request"


def tokens(rows: int, length: int) -> list[dict[str, Any]]:
    names = ("input_ids", "attention_mask", "token_type_ids")
    data = {"datatype": "INT64", "shape": [rows, length], "data": [0] * (rows * length)}
    return [{"name": name, **data} for name in names]


def test_answer_400_for_more_tokens_than_positions(server: Server) -> None:
    assert ask(server, "bert", *tokens(1, 512)).status_code == 200
    expect(ask(server, "bert", *tokens(1, 513)), 400)
    expect(ask(server, "bert", *tokens(0, 0)), 400)


@pytest.mark.parametrize("value", [b"[[[1],[2]],{}]", b'[["a"]]', b"{}", b"[" * 500 + b"]" * 500])
def test_answer_400_for_wrongly_nested_data_in_a_stream_too(server: Server, value: bytes) -> None:
    for accept in ("text/event-stream", "application/jsonlines", "application/json"):
        for data in (
            b'{"x":%b}' % value,
            b'{"inputs":[{"name":"x","shape":[1],"datatype":"FP32","data":%b}]}' % value,
        ):
            reply = server.post(
                params={"model_name": "numbers"}, data=data, headers={"Accept": accept}
            )
            expect(reply, 400)


def test_refuse_raw_input_as_a_stream(server: Server) -> None:
    headers = {"Content-Type": f"{BINARY};json-header-size=0", "Accept": "text/event-stream"}
    expect(server.post(params={"model_name": "numbers"}, data=bytes(4), headers=headers), 400)


def sleep(server: Server, *seconds: float, model: str = "queued") -> requests.Response:
    return server.post(json={"model_name": model, "instances": seconds})


def executions(server: Server) -> int:
    """Wait until neither a worker nor Triton has anything left to do. Return how often Triton has
    executed `queued`."""
    wait_until(lambda: server.in_flight() == 0, "no request is in flight")
    wait_until(
        lambda: sleep(server, 0).status_code == 200, "Triton answers after all that it still had"
    )
    stats = server.get("/v2/models/queued/stats").json()
    return int(stats["model_stats"][0]["execution_count"])


def test_drop_requests_whose_deadline_passed_in_the_queue(server: Server) -> None:
    before = executions(server)
    with ThreadPoolExecutor(CALLERS) as pool:
        replies = list(pool.map(lambda _: sleep(server, 1), range(CALLERS)))
    answered = [reply for reply in replies if reply.status_code == 200]
    late = {(reply.status_code, reply.json()["code"]) for reply in replies if reply not in answered}
    assert 1 <= len(answered) <= CALLERS // 2
    assert late <= {(504, "triton_timeout"), (504, "timeout")}
    assert executions(server) - before <= CALLERS // 2


def test_answer_504_to_a_call_that_takes_too_long_on_either_path(server: Server) -> None:
    tensor = {"name": "seconds", "shape": [1], "datatype": "FP32", "data": [SECONDS + 1]}
    with ThreadPoolExecutor(1) as pool:
        by_path = pool.submit(server.post, "/v2/models/sleeper/infer", json={"inputs": [tensor]})
        for reply in (sleep(server, SECONDS + 1), by_path.result()):
            expect_error(reply, 504, "triton_timeout", "SERVE_REQUEST_TIMEOUT")


def test_send_no_instances_after_the_deadline(server: Server) -> None:
    before = executions(server)
    reply = sleep(server, *[1] * CALLERS)
    expect_error(reply, 504, "triton_timeout")
    assert executions(server) - before <= CALLERS // 2


def test_answer_503_if_the_queue_policy_refuses_a_request(server: Server) -> None:
    with ThreadPoolExecutor(CALLERS) as pool:
        replies = list(pool.map(lambda _: sleep(server, 0.2, model="narrow"), range(CALLERS)))
    refused = [reply for reply in replies if reply.status_code == 503]
    assert refused and len(refused) < CALLERS
    assert {(reply.json()["code"], reply.headers["Retry-After"]) for reply in refused} == {
        ("queue_full", "1")
    }
