"""Tests the log: one JSON line per request with its model, code and stages, filtered by level, and
without any part of a body."""

import json
import logging
import re
import select
import socket
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from serving.front.logs import JsonFormatter
from tests.endpoint.test_metrics import path_with_agent
from tests.support.harness import (
    Server,
    make_both_scales,
    make_identity,
    make_python_model,
    make_sleeper,
    module_server,
    tensor,
    wait_until,
)

pytestmark = pytest.mark.stack

STAGES = ("decode_ms", "preprocess_ms", "triton_ms", "postprocess_ms")
NO_STAGES = dict.fromkeys(["load_ms", *STAGES])
TENSORS = {"inputs": [tensor([7])]}
MARK = "payload-4711-mark"
DYING_AGENT = "#!/bin/sh\necho 'no credentials'\nexit 3\n"
PRINTER = """
import sys
import traceback

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        try:
            raise ValueError("printed")
        except ValueError:
            traceback.print_exc()
        print('{"is": json, "not": this}', file=sys.stderr)
        print("it goes on", file=sys.stderr, flush=True)
        tensors = [pb_utils.Tensor("y", self.x(request)) for request in requests]
        return [pb_utils.InferenceResponse([tensor]) for tensor in tensors]

    def x(self, request):
        return pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
"""


def make_printer(repository: Path) -> None:
    ports = (("input", "x"), ("output", "y"))
    tensors = [
        f'{side} {{ name: "{name}" data_type: TYPE_FP32 dims: [1, 1] }}\n' for side, name in ports
    ]
    make_python_model(repository / "printer", "".join(tensors), PRINTER)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server whose CloudWatch agent dies."""
    folder = tmp_path_factory.mktemp("info")
    for make in (make_both_scales, make_sleeper, make_identity, make_printer):
        make(folder / "models")
    agent = PUBLISH | {"PATH": path_with_agent(folder, DYING_AGENT)}
    running = Server(folder, folder / "models", SERVE_MAX_BODY_MB="1", **agent).wait_ready()
    yield running
    running.stop_later()


PUBLISH = {"SAGEMAKER_TRITON_PUBLISH_METRICS_TO_CLOUDWATCH": "true"}
quiet = module_server(make_both_scales, make_sleeper, SERVE_LOG_LEVEL="error", **PUBLISH)


def send(
    server: Server, path: str = "/invocations", /, **request: Any
) -> tuple[requests.Response, str]:
    """Send a request. Return the reply and the id that the request got."""
    request_id = uuid.uuid4().hex
    headers = {"X-Amzn-SageMaker-Inference-Id": request_id} | request.pop("headers", {})
    reply = server.post(path, headers=headers, **request)
    assert reply.headers["X-Request-Id"] == request_id
    return reply, request_id


def lines_of(server: Server, request_id: str, process: str = "nginx") -> list[dict[str, Any]]:
    """Return the log lines of a request. Wait for those of nginx, which come after the reply, and
    of `process`."""

    def lines() -> list[dict[str, Any]]:
        return [line for line in server.entries() if line.get("request_id") == request_id]

    wait_until(
        lambda: {"nginx", process} <= {line["process"] for line in lines()},
        f"the lines of {request_id}",
    )
    return [line for line in lines() if line["process"] == process]


def test_log_everything_about_a_request_in_one_line(server: Server) -> None:
    reply, request_id = send(server, json={"instances": [0.2], "model_name": "sleeper"})
    [line] = lines_of(server, request_id)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d[+-]\d\d:\d\d", line.pop("time"))
    assert line.pop("load_ms") is None
    stages = {name: line.pop(name) for name in STAGES}
    seconds, upstream = line.pop("seconds"), float(line.pop("upstream_seconds"))
    assert stages["triton_ms"] >= 200
    assert min(stages.values()) >= 0
    assert 0.2 <= sum(stages.values()) / 1000 <= upstream + 0.001 <= seconds + 0.002, (
        "each holds the one before"
    )
    assert line.pop("bytes_in") > len(reply.request.body or "")
    assert line.pop("bytes_out") > len(reply.content)
    assert line == {
        "process": "nginx",
        "level": "info",
        "request_id": request_id,
        "method": "POST",
        "path": "/invocations",
        "status": 200,
        "code": "",
        "model": "sleeper",
        "version": "1",
    }


def test_log_triton_s_stage_and_the_version_for_forwarded_tensors(server: Server) -> None:
    for version in ("1", "2"):
        _, request_id = send(
            server, json=TENSORS | {"model_name": "scale", "model_version": version}
        )
        [line] = lines_of(server, request_id)
        assert (line["model"], line["version"], line["status"]) == ("scale", version, 200)
        assert line["triton_ms"] > 0
        assert [name for name in NO_STAGES if line[name] is None] == [
            "load_ms",
            "decode_ms",
            "preprocess_ms",
            "postprocess_ms",
        ]


@pytest.mark.parametrize(
    ("path", "request_", "expected"),
    [
        (
            "/invocations",
            {"json": TENSORS | {"model_name": "nope"}},
            ("warning", 404, "model_not_found", ""),
        ),
        ("/invocations", {"json": {"neither": "nor"}}, ("warning", 400, "invalid_request", "")),
        ("/nowhere", {"json": {}}, ("warning", 404, "not_found", "")),
        ("/invocations", {"data": b"x" * 2_000_000}, ("warning", 413, "payload_too_large", "")),
        (
            "/invocations",
            {"json": {"model_name": "sleeper", "instances": [-1]}},
            ("error", 500, "inference_failed", "sleeper"),
        ),
    ],
    ids=["model", "body", "route", "size", "failure"],
)
def test_log_refusals(
    server: Server, path: str, request_: Any, expected: tuple[str, int, str, str]
) -> None:
    reply, request_id = send(server, path, **request_)
    [line] = lines_of(server, request_id)
    assert (line["level"], line["status"], line["code"], line["model"]) == expected
    assert (reply.status_code, reply.json()["code"]) == expected[1:3]
    assert "X-Error-Code" not in reply.headers


def test_log_an_internal_error_under_its_request_id(server: Server) -> None:
    body = {"model_name": "sleeper", "instances": [0], "parameters": {"mistake": "raise"}}
    _, request_id = send(server, json=body)
    [line] = lines_of(server, request_id, "gunicorn")
    assert (line["level"], line["logger"], line["exception"]) == (
        "error",
        "serving.front.replies",
        "InferenceFailed",
    )
    assert "KeyError" in line["message"]
    assert re.search(r"KeyError\n(.*\n)*  .*/sleeper/client.py:\d+ in postprocess$", line["trace"])


def test_log_objects_whichever_process_writes(server: Server) -> None:
    send(server, json=TENSORS | {"model_name": "printer"})
    wait_until(lambda: server.says("it goes on", process="tritonserver"), "what the model printed")
    assert all(line.startswith('{"') for line in server.output().splitlines())
    processes = {"serve", "tritonserver", "gunicorn", "nginx", "cloudwatch-agent"}
    wait_until(
        lambda: {entry["process"] for entry in server.entries()} == processes, "each has written"
    )
    assert all({"time", "process", "level"} <= entry.keys() for entry in server.entries())
    server.expect_message('{"is": json, "not": this}', process="tritonserver")
    assert [
        entry
        for entry in server.entries("tritonserver", level="error")
        if "printed" in entry["message"]
    ]


def test_log_why_a_start_failed_as_objects(tmp_path: Path) -> None:
    server = Server(tmp_path, tmp_path, SERVE_WORKERS="-1", SERVE_DEVICE="tpu")
    assert server.wait_ended() == 2
    lines = server.entries("serve", level="critical")
    assert [line["message"].partition("=")[0] for line in lines] == [
        "SERVE_DEVICE",
        "SERVE_WORKERS",
    ]


def marked_requests() -> list[dict[str, Any]]:
    """Yield bodies that contain MARK wherever a body can contain something, both valid bodies and
    all kinds of invalid ones."""
    text = {"name": "in_BYTES", "shape": [1, 1], "datatype": "BYTES", "data": [MARK]}
    sleeper = {"model_name": "sleeper"}
    return [
        {"json": {"inputs": [text], "model_name": "identity"}},
        {"json": {"inputs": [text | {"datatype": "FP32"}], "model_name": "scale"}},
        {"json": {"inputs": [text | {"name": MARK}], "model_name": "scale"}},
        {"json": {"inputs": [MARK], "model_name": "scale"}},
        {"json": sleeper | {"instances": [MARK]}},
        {"json": sleeper | {"instances": [{"b64": MARK}]}},
        {"json": sleeper | {"instances": [0], "parameters": {MARK: MARK}}},
        {"json": sleeper | {"instances": [0], "parameters": {"mistake": MARK}}},
        {"json": sleeper | {"payload": {"text": MARK}}},
        {"json": {MARK: MARK}},
        {"json": {"instances": [MARK], "model_name": MARK}},
        {"json": {"instances": [0], "model_name": [MARK]}},
        {"data": f'{{"instances": [{MARK}'},
        {"data": MARK},
        {"data": MARK.encode() * 100_000, "params": {"text": MARK}},
        {"data": b"\x93NUMPY" + MARK.encode(), "params": {"model_name": "scale"}},
        {
            "data": MARK,
            "headers": {
                "Content-Type": "application/vnd.sagemaker-triton.binary+json;json-header-size=9"
            },
        },
        {
            "data": MARK,
            "params": {"model_name": "sleeper"},
            "headers": {"Content-Type": "image/jpeg"},
        },
        {"files": {MARK: (MARK, MARK)}, "data": {"model_name": "sleeper", MARK: MARK}},
        {
            "json": sleeper | {"instances": [0]},
            "headers": {"X-Amzn-SageMaker-Custom-Attributes": f"trace={MARK}"},
        },
        {"json": sleeper | {"instances": [0]}, "params": {"mistake": MARK}},
    ]


def test_log_no_part_of_a_body(server: Server) -> None:
    ids = [send(server, **request)[1] for request in marked_requests()]
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            b"POST /invocations HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Length: 99\r\n\r\n" + MARK.encode()
        )
    for request_id in ids:
        assert lines_of(server, request_id)
    statuses = {line["status"] for request_id in ids for line in lines_of(server, request_id)}
    assert {200, 400, 404, 413, 415, 500} <= statuses
    assert MARK not in server.output()


def test_log_only_failures_at_the_level_error(quiet: Server) -> None:
    good, good_id = send(quiet, json=TENSORS | {"model_name": "scale"})
    wrong, wrong_id = send(quiet, json=TENSORS | {"model_name": "nope"})
    failed, failed_id = send(quiet, json={"model_name": "sleeper", "instances": [-1]})
    assert (good.status_code, wrong.status_code, failed.status_code) == (200, 404, 500)
    assert len(lines_of(quiet, failed_id)) == 1
    assert not {good_id, wrong_id} & {line.get("request_id") for line in quiet.entries()}
    levels = {
        line["level"]
        for line in quiet.entries()
        if "status" in line or line["process"] == "gunicorn"
    }
    assert not levels & {"debug", "info", "warning"}


def test_serve_without_the_cloudwatch_agent_and_log_it(quiet: Server) -> None:
    quiet.expect_message("amazon-cloudwatch-agent")
    assert not (quiet.run_dir / "cloudwatch.json").exists()


def test_give_up_an_agent_that_keeps_dying_and_serve_on(server: Server) -> None:
    wait_until(
        lambda: server.says("cloudwatch-agent", "6", "no credentials"), "the agent is given up"
    )
    assert server.post(json=TENSORS | {"model_name": "scale"}).status_code == 200


def record(error: Exception) -> logging.LogRecord:
    try:
        try:
            raise error
        except type(error) as caught:
            raise RuntimeError("it failed") from caught
    except RuntimeError:
        return logging.LogRecord(
            "serving.x", logging.ERROR, "x.py", 1, "%s of %d", ("one", 2), sys.exc_info()
        )


@pytest.mark.parametrize("messages", [False, True])
def test_log_an_exception_in_one_line_and_its_text_only_at_debug(messages: bool) -> None:
    text = JsonFormatter(messages).format(record(ValueError(f"not a number: {MARK}\nsecond line")))
    assert "\n" not in text
    line = json.loads(text)
    assert line["message"] == "one of 2"
    assert line["exception"] == "RuntimeError"
    assert line["trace"].index("RuntimeError") < line["trace"].index("ValueError")
    assert (MARK in text) == ("it failed" in text) == messages


def test_fit_a_line_with_a_long_message_into_a_pipe() -> None:
    record_ = record(ValueError("x"))
    record_.msg, record_.args = "\u00e9" * 100_000, ()
    text = JsonFormatter(True).format(record_)
    assert len(text) < select.PIPE_BUF
    assert json.loads(text)["message"].startswith("\u00e9")
