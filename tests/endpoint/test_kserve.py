"""KServe v2 on the port of /invocations: what is handed to Triton, and that nothing else ever
is."""

import json
import os
import signal
from urllib.parse import quote

import numpy as np
import pytest
import requests

from tests.conformance import wire
from tests.support.harness import (
    Server,
    expect_error,
    make_scale,
    module_server,
    tensor,
    wait_until,
)
from tests.support.streaming_models import make_teller

pytestmark = pytest.mark.stack

INFER = {"inputs": [tensor([1.0, 2.5])]}
server = module_server(make_scale, make_teller)


@pytest.mark.parametrize("path", ["/v2/health/live", "/v2/health/ready", "/v2/models/scale/ready"])
def test_return_the_empty_health_replies_of_triton(server: Server, path: str) -> None:
    reply = server.get(path)
    assert (reply.status_code, reply.content) == (200, b"")
    assert reply.headers["X-Request-Id"]


def test_return_metadata_configuration_and_statistics_of_a_model(server: Server) -> None:
    assert server.get("/v2").json()["name"] == "triton"
    for path in ("/v2/models/scale", "/v2/models/scale/versions/1"):
        assert server.get(path).json()["inputs"] == [
            {"name": "x", "datatype": "FP32", "shape": [-1, -1]}
        ]
    assert server.get("/v2/models/scale/config").json()["max_batch_size"] == 8
    assert (
        server.get("/v2/models/scale/versions/2/stats").json()["model_stats"][0]["version"] == "2"
    )
    assert server.get("/v2/models/scale/versions/2/ready").status_code == 200


@pytest.mark.parametrize("version", [" 1", "1 ", "1x", "01", "+1", "-1", "0", "1.0", "9" * 19])
def test_answer_404_for_a_version_that_is_not_a_name(server: Server, version: str) -> None:
    path = f"/v2/models/scale/versions/{quote(version, safe='')}/infer"
    body = {**INFER, "model_name": "scale", "model_version": version}
    for reply in (server.post(path, json=INFER), server.post(json=body)):
        assert (reply.status_code, reply.json()["code"]) == (404, "version_not_found"), reply.text


@pytest.mark.parametrize(
    ("version", "factor"), [("", 3.0), ("/versions/1", 2.0), ("/versions/2", 3.0)]
)
def test_answer_infer_as_triton_does(server: Server, version: str, factor: float) -> None:
    reply = server.post(f"/v2/models/scale{version}/infer", json=INFER)
    assert reply.json()["outputs"][0]["data"] == [factor, 2.5 * factor]


def test_pass_binary_tensors_both_ways(server: Server) -> None:
    values = np.arange(1000, dtype=np.float32)
    document = {
        "inputs": [
            {
                "name": "x",
                "shape": [1, 1000],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 4000},
            }
        ],
        "parameters": {"binary_data_output": True},
    }
    header = json.dumps(document).encode()
    headers = {"Inference-Header-Content-Length": str(len(header))}
    reply = server.post("/v2/models/scale/infer", data=header + values.tobytes(), headers=headers)
    start = int(reply.headers["Inference-Header-Content-Length"])
    assert np.array_equal(np.frombuffer(reply.content[start:], dtype=np.float32), 3 * values)


def test_return_the_caller_s_request_id_from_generate(server: Server) -> None:
    headers = {"X-Amzn-SageMaker-Inference-Id": "my-id"}
    reply = server.post("/v2/models/teller/generate", json={"text_input": "hello"}, headers=headers)
    assert (reply.json()["text_output"], reply.headers["X-Request-Id"]) == ("hello", "my-id")
    reply = server.post(
        "/v2/models/teller/generate_stream", json={"text_input": "one two"}, headers=headers
    )
    assert (reply.text.count("data: "), reply.headers["X-Request-Id"]) == (2, "my-id")
    assert reply.headers["Content-Type"].startswith("text/event-stream")


def test_use_the_error_codes_of_invocations(server: Server) -> None:
    for model, status, code in (
        ("nobody", 404, "model_not_found"),
        ("scale", 400, "invalid_request"),
    ):
        reply = server.post(f"/v2/models/{model}/infer", json={"inputs": []})
        expect_error(reply, status, code)


FORBIDDEN = """
/v2/repository/index /v2/repository/models/scale/load /v2/repository/models/scale/unload
/v2/systemsharedmemory/status /v2/systemsharedmemory/region/a/register
/v2/systemsharedmemory/unregister
/v2/cudasharedmemory/status /v2/cudasharedmemory/region/a/register
/v2/models/scale/systemsharedmemory/status
/v2/trace/setting /v2/models/scale/trace/setting /v2/logging /v2/models /v2/ /v2/models/
/v1/models/scale:predict
/v2x/health/live
""".split()  # noqa: SIM905
DISGUISES = """
/v2/%72epository/index /v2/repository%2Findex /v2%2Frepository/index /%762/repository/index
/v2/models/%2e%2e/repository/index /v2/models/../repository/index
/v2/models/scale/../../repository/index
/v2/models/scale/%2e%2e/%2e%2e/repository/index /v2/models/..%2frepository/ready
/v2/models/..%2frepository%2findex/ready /v2/health/live/../../repository/index
/v2/health/live/%2e%2e/%2e%2e/repository/index /v2/./repository/index /v2//repository/index
//v2/repository/index
/v2/repository;/index /v2/models/scale;x/trace/setting
/v2/models/scale/ready;/../../../repository/index
/v2/models/scale/infer/ /v2/models/scale/infer/../trace/setting /v2/models/scale/INFER
/V2/repository/index
/v2/Repository/index /v2/repository/index/ /v2/repository/index?x=/v2/models/scale/infer
/v2/repository/index#/v2/health/live /v2/health/live#/../../repository/index
/v2/models/scale/trace/setting?/infer
/v2/models/scale%00/trace/setting /v2/models/scale%3f/trace/setting /v2/models/scale%23/infer
/v2/models/scale%0d%0aX:%20y/ready /v2/models/scale%252e%252e/ready /v2/models/.../ready
/v2/models/-scale/ready
/v2/models/scale/versions/1/../../../../repository/index /v2/models/scale/versions/one/infer
/v2\\repository\\index
/ping/../v2/repository/index http://x/v2/repository/index
http://x/v2/models/scale/../../repository/index
http://x//v2/repository/index
""".split()  # noqa: SIM905


@pytest.mark.parametrize("method", ["GET", "POST", "PUT", "DELETE"])
def test_forward_only_the_listed_routes_to_triton(server: Server, method: str) -> None:
    for path in FORBIDDEN + DISGUISES:
        answer = wire.send(server.port, method, path, {"Connection": "close"}, b"{}")
        assert answer.status in (400, 404, 405), (path, answer)
        assert answer.content_type == "application/json", path
        assert set(json.loads(answer.body)) == {"error", "code", "request_id"}, (
            f"{path}: it must be ours, not Triton's"
        )


def test_use_names_in_attacks_that_are_real_to_triton(server: Server) -> None:
    """Otherwise the tests above would prove nothing."""
    direct = server.triton()
    assert direct.post("/v2/repository/index").status_code == 200
    for path in (
        "/v2/systemsharedmemory/status",
        "/v2/logging",
        "/v2/trace/setting",
        "/v2/models/scale/trace/setting",
    ):
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
def test_answer_405_to_another_method(server: Server, method: str, path: str) -> None:
    reply = server.ask(method, path)
    expect_error(reply, 405, "method_not_allowed")


def test_log_calls_but_not_health_checks(server: Server) -> None:
    server.get("/v2/health/live")
    server.post(
        "/v2/models/scale/infer",
        json=INFER,
        headers={"X-Amzn-SageMaker-Inference-Id": "to-be-logged"},
    )
    wait_until(lambda: "to-be-logged" in server.output(), "the call is in the log")
    assert server.entries(path="/v2/health/live", status=200) == []


def test_answer_503_on_every_route_while_a_process_is_down(server: Server) -> None:
    with server.unattended():
        os.kill(server.pid("tritonserver"), signal.SIGKILL)
        replies = [
            server.get("/v2/health/ready"),
            server.post("/v2/models/scale/infer", json=INFER),
        ]
        replies.append(server.post("/v2/models/teller/generate_stream", json={"text_input": "x"}))
        replies.append(ping_that_names(server, "tritonserver"))
        assert [(r.status_code, r.json()["code"]) for r in replies] == [
            (503, "triton_unavailable")
        ] * 4
        os.killpg(server.pid("gunicorn"), signal.SIGKILL)
        replies.append(ping_that_names(server, "gunicorn"))
        assert replies[-1].json()["code"] == "frontend_unavailable"
    assert all(reply.headers["Retry-After"] and reply.headers["X-Request-Id"] for reply in replies)
    server.wait_ready()
    assert server.post("/v2/models/scale/infer", json=INFER).status_code == 200


def ping_that_names(server: Server, process: str) -> requests.Response:
    replies: list[requests.Response] = []

    def names() -> bool:
        replies.append(server.get("/ping"))
        return replies[-1].status_code == 503 and process in replies[-1].json()["error"]

    wait_until(names, f"/ping names {process}")
    return replies[-1]
