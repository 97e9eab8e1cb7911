"""Tests KServe v2 on the port of /invocations: health, the index of the models, the routes that are
passed on to Triton, and that no other routes are."""

import io
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pytest
import requests

from serving.front.kserve import INDEX
from tests.conformance import wire
from tests.support.harness import (
    Server,
    expect_error,
    make_both_scales,
    make_python_model,
    module_server,
    npy,
    tensor,
    wait_until,
)
from tests.support.streaming_models import make_teller

pytestmark = pytest.mark.stack

INFER = {"inputs": [tensor([1.0, 2.5])]}
SEVEN = """
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(request)]) for request in requests]

    def answer(self, request):
        sent = pb_utils.get_input_tensor_by_name(request, "x")
        seven = np.array([7], np.int32)
        return pb_utils.Tensor("y", sent.as_numpy() if sent else seven)
"""


def make_seven(repository: Path) -> None:
    """Make `seven`, which returns its only input, or 7 if it is left out, and `sevens`, which does
    the same with a batch dimension."""
    config = (
        'input { name: "x" data_type: TYPE_INT32 dims: [1] optional: true }\n'
        'output { name: "y" data_type: TYPE_INT32 dims: [1] }\n'
    )
    make_python_model(repository / "seven", config, SEVEN)
    make_python_model(repository / "sevens", f"max_batch_size: 4\n{config}", SEVEN)


server = module_server(make_both_scales, make_teller, make_seven)


@pytest.mark.parametrize("path", ["/v2/models/seven/infer", "/invocations?model_name=seven"])
def test_call_a_model_without_its_optional_inputs(server: Server, path: str) -> None:
    reply = server.post(path, json={"inputs": []})
    assert (reply.status_code, reply.json()["outputs"][0]["data"]) == (200, [7]), reply.text
    for model in ("scale", "sevens"):
        reply = server.post(path.replace("seven", model), json={"inputs": []})
        expect_error(reply, 400, "invalid_request", "'inputs' is empty")


@pytest.mark.parametrize("body", [{}, {"id": "a"}, {"parameters": {"p": 1}}])
def test_generate_without_optional_inputs(server: Server, body: dict[str, Any]) -> None:
    reply = server.post("/v2/models/seven/generate", json=body)
    assert (reply.status_code, reply.json()["y"]) == (200, 7), reply.text
    events = server.post("/v2/models/seven/generate_stream", json=body).text
    assert json.loads(events.removeprefix("data: "))["y"] == 7
    for model in ("scale", "sevens"):
        reply = server.post(f"/v2/models/{model}/generate", json=body)
        expect_error(reply, 400, "invalid_request", "input of model")


def test_begin_the_error_of_an_unknown_model_as_triton_does(server: Server) -> None:
    for call in ("infer", "generate"):
        reply = server.post(f"/v2/models/nothing/{call}", json=INFER)
        expect_error(reply, 404, "model_not_found", "scale, seven, sevens, teller")
        native = server.get("/v2/models/nothing").json()["error"]
        assert native == "Request for unknown model: 'nothing' is not found"
        assert reply.json()["error"].startswith(native)


def test_list_the_routes_if_there_is_no_such_route(server: Server) -> None:
    paths = server.get("/openapi.json").json()["paths"]
    for path in ("/v3/models/scale", "/v2/nothing", "/embeddings"):
        reply = server.post(path, data=b"{}")
        expect_error(reply, 404, "not_found", path, *paths)
    expect_error(
        server.post("/embeddings", data=bytes(2000)), 404, "not_found", "/v2/models/MODEL/infer"
    )


def test_return_the_only_output_as_csv_or_npy_if_asked(server: Server) -> None:
    rows = [[1.0, 2.5], [3.0, 0.1]]
    values = np.array(rows, np.float32)
    bodies: list[dict[str, Any]] = [
        {"json": {"inputs": [tensor(rows, [2, 2])]}},
        {"data": npy(values), "headers": {"Content-Type": "application/x-npy"}},
    ]
    for body in bodies:
        headers = body.get("headers", {})
        request = body | {"headers": headers | {"Accept": "text/csv"}}
        reply = server.post("/invocations?model_name=scale&model_version=1", **request)
        assert reply.headers["Content-Type"] == "text/csv"
        assert reply.text == "2.0,5.0\n6.0,0.2\n"
        request = body | {"headers": headers | {"Accept": "application/x-npy"}}
        reply = server.post("/invocations?model_name=scale&model_version=1", **request)
        assert reply.headers["Content-Type"] == "application/x-npy"
        np.testing.assert_array_equal(np.load(io.BytesIO(reply.content)), values * 2)


def test_read_json_behind_a_byte_order_mark(server: Server) -> None:
    marked = b"\xef\xbb\xbf" + json.dumps(INFER).encode()
    paths = ("/v2/models/scale/infer", "/invocations?model_name=scale")
    for path in paths:
        for kind in ("application/json", "application/jsonlines", "", "text/plain"):
            reply = server.post(path, data=marked, headers={"Content-Type": kind})
            assert reply.status_code == 200, reply.text
            assert reply.json()["outputs"][0]["data"] == [3.0, 7.5]


SCALE_IS_READY = {"name": "scale", "ready": True}
HEALTH = {
    "/v2/health/live": {"live": True},
    "/v2/health/ready": {"ready": True},
    "/v2/models/scale/ready": SCALE_IS_READY,
    "/v2/models/scale/versions/2/ready": SCALE_IS_READY,
}


@pytest.mark.parametrize("path", HEALTH)
def test_answer_health_as_the_open_inference_protocol_says(server: Server, path: str) -> None:
    """Triton's own clients read only the status, and Triton's own replies are empty."""
    assert server.triton().get(path).content == b""
    reply = server.get(path)
    assert (reply.status_code, reply.json()) == (200, HEALTH[path])
    assert reply.headers["X-Request-Id"]


def test_say_why_a_model_is_not_ready(server: Server) -> None:
    reply = server.get("/v2/models/nobody/ready")
    expect_error(reply, 404, "model_not_found", "nobody", "scale")
    reply = server.get("/v2/models/scale/versions/3/ready")
    expect_error(reply, 404, "version_not_found", "'3'", "1, 2")


@pytest.mark.parametrize("body", [b"", b"{}", b'{"ready": true}', b'{"ready": false}'])
def test_index_the_models_as_triton_does(server: Server, body: bytes) -> None:
    reply = server.post(INDEX, data=body)
    assert reply.status_code == 200, reply.text
    native = server.triton().post(INDEX, content=body).json()
    served = ("scale", "seven", "sevens", "teller")
    wanted = [entry for entry in native if entry["name"] in served]
    assert reply.json() == sorted(wanted, key=lambda entry: (entry["name"], entry["version"]))
    assert {"name": "scale", "version": "2", "state": "READY"} in reply.json()


TRITON_CLIENT = """
import json, sys
from tritonclient.http import InferenceServerClient

client = InferenceServerClient(sys.argv[1])
ready = [client.is_model_ready(*names) for names in (["scale"], ["scale", "2"], ["nobody"])]
whole = [client.is_server_live(), client.is_server_ready()]
print(json.dumps([whole, ready, client.get_model_repository_index()]))
"""


def test_answer_the_http_client_of_triton(server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-c", TRITON_CLIENT, server.url.removeprefix("http://")],
        env=os.environ | {"PYTHONPATH": str(Path(sys.prefix) / "sdks")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    whole, ready, index = json.loads(done.stdout)
    assert whole == [True, True]
    assert ready == [True, True, False]
    assert index == server.post(INDEX).json()


def test_refuse_a_wrong_body_of_the_index(server: Server) -> None:
    reply = server.post(INDEX, json={"redy": True})
    expect_error(reply, 400, "invalid_request", "'redy'", "'ready'")
    expect_error(server.post(INDEX, json={"ready": 1}), 400, "invalid_request", "ready")
    expect_error(server.post(INDEX, data=b" " * 1025), 413, "payload_too_large")
    expect_error(server.get(INDEX), 405, "method_not_allowed", "POST")


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


# Triton ignores an unknown key; this project refuses it
BODY = b'{"redy": true}'
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
/v2/repository/index#/v2/models/scale /v2/models/scale#/../../repository/index
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
        answer = wire.send(server.port, method, path, {"Connection": "close"}, BODY)
        assert answer.status in (400, 404, 405), (path, answer)
        assert answer.content_type == "application/json", path
        assert "code" in json.loads(answer.body), f"{path}: it must be ours, not Triton's"


def test_use_names_in_attacks_that_are_real_to_triton(server: Server) -> None:
    """Otherwise the tests above would not prove anything."""
    direct = server.triton()
    assert direct.post(INDEX, content=BODY).status_code == 200
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
