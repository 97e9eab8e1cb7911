"""Tests sticky sessions in the whole container: Triton's sequences with SageMaker's headers."""

import json
import re
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
import requests

from tests.support.harness import Server, expect_error, make_scale, module_server, npy, tensor
from tests.support.streaming_models import (
    make_brief_summer,
    make_direct_summer,
    make_echo,
    make_named_summer,
    make_summer,
)

pytestmark = pytest.mark.stack

SESSION = "X-Amzn-SageMaker-Session-Id"
CLOSED = "X-Amzn-SageMaker-Closed-Session-Id"
ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"


server = module_server(  # open sequences delay the stop of Triton
    make_summer,
    make_direct_summer,
    make_brief_summer,
    make_named_summer,
    make_echo,
    make_scale,
    SERVE_STOP_TIMEOUT="2",
)


def tensors(number: float, **parameters: Any) -> dict[str, Any]:
    inputs = [{"name": "number", "datatype": "FP32", "shape": [1, 1], "data": [number]}]
    return {"inputs": inputs, "parameters": parameters}


def call(server: Server, model: str, session: str, body: Any, **headers: str) -> requests.Response:
    return server.post(
        params={"model_name": model}, json=body, headers={SESSION: session} | headers
    )


def opened(reply: requests.Response) -> str:
    assert reply.status_code == 200, reply.text
    return reply.headers[SESSION].partition(";")[0]


def total(reply: requests.Response) -> float:
    assert reply.status_code == 200, reply.text
    (value,) = (
        output["data"][0] for output in reply.json()["outputs"] if output["name"] == "total"
    )
    return float(value)


STATEFUL = ["summer", "direct_summer", "brief_summer", "named_summer", "chained_summer"]


@pytest.mark.parametrize("model", STATEFUL)
def test_keep_a_session_until_the_request_that_ends_it(server: Server, model: str) -> None:
    first = call(server, model, "NEW_SESSION", tensors(1))
    session = opened(first)
    assert total(first) == 1
    assert CLOSED not in first.headers
    second = call(server, model, session, tensors(10))
    assert total(second) == 11
    assert SESSION not in second.headers
    assert CLOSED not in second.headers
    last = call(server, model, session, tensors(100, sequence_end=True))
    assert total(last) == 111
    assert last.headers[CLOSED] == session
    assert_is_gone(call(server, model, session, tensors(1)), session)


def assert_is_gone(reply: requests.Response, session: str) -> None:
    expect_error(reply, 410, "session_not_found", session)


@pytest.mark.parametrize("model", STATEFUL)
@pytest.mark.parametrize(
    "session", ["12345", "0", "-1", "99999999999999999999999", "nobody", "new_session"]
)
def test_refuse_an_unknown_session_and_open_none(server: Server, model: str, session: str) -> None:
    for _ in range(2):
        assert_is_gone(call(server, model, session, tensors(1)), session)


def test_return_both_headers_if_a_session_opens_and_ends_at_once(server: Server) -> None:
    before = datetime.now(UTC)
    reply = call(server, "summer", "NEW_SESSION", tensors(1, sequence_end=True))
    match = re.fullmatch(r"\d+; Expires=(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)", reply.headers[SESSION])
    assert match
    expires = datetime.strptime(match[1], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
    assert before + timedelta(seconds=29) <= expires <= datetime.now(UTC) + timedelta(seconds=30)
    assert reply.headers[CLOSED] == opened(reply)


def test_end_an_idle_session_but_not_a_used_one(server: Server) -> None:
    idle, used = (opened(call(server, "brief_summer", "NEW_SESSION", tensors(1))) for _ in range(2))
    for number in range(2, 8):
        # of the four seconds that the model allows; the rest is a margin for a busy machine
        time.sleep(1)
        assert total(call(server, "brief_summer", used, tensors(1))) == number
    assert_is_gone(call(server, "brief_summer", idle, tensors(1)), idle)


def test_accept_the_session_header_of_the_reply_unchanged(server: Server) -> None:
    reply = call(server, "summer", "NEW_SESSION", tensors(1))
    assert total(call(server, "summer", reply.headers[SESSION], tensors(1))) == 2


ENDS: dict[str, dict[str, Any]] = {
    "custom attribute": {"headers": {ATTRIBUTES: "sequence_end=true"}, "json": {"instances": [2]}},
    "query string": {"params": {"sequence_end": "true"}, "json": {"instances": [2]}},
    "parameters": {"json": {"instances": [2], "parameters": {"sequence_end": True}}},
    "tensors": {"json": tensors(2, sequence_end=True)},
}


@pytest.mark.parametrize("request_", ENDS.values(), ids=ENDS)
def test_end_a_session_wherever_sequence_end_is_sent(
    server: Server, request_: dict[str, Any]
) -> None:
    session = opened(call(server, "summer", "NEW_SESSION", {"instances": [1]}))
    arguments = dict(request_)
    arguments["headers"] = {SESSION: session, **arguments.get("headers", {})}
    arguments["params"] = {"model_name": "summer", **arguments.get("params", {})}
    reply = server.post(**arguments)
    assert reply.status_code == 200, reply.text
    assert reply.headers[CLOSED] == session
    assert_is_gone(call(server, "summer", session, tensors(1)), session)


def test_take_instances_as_the_steps_of_a_sequence_in_order(server: Server) -> None:
    first = call(server, "summer", "NEW_SESSION", {"instances": [1, 2, 3]})
    assert first.json()["predictions"] == [
        {"total": t, "count": c} for t, c in ((1, 1), (3, 2), (6, 3))
    ]
    second = call(
        server, "summer", opened(first), {"instances": [4, 5], "parameters": {"sequence_end": True}}
    )
    assert second.json()["predictions"] == [{"total": 10, "count": 4}, {"total": 15, "count": 5}]
    assert second.headers[CLOSED] == opened(first)


def test_take_instances_without_a_session_as_their_own_sequence(server: Server) -> None:
    for _ in range(2):
        reply = server.post(params={"model_name": "summer"}, json={"instances": [1, 2]})
        assert reply.json()["predictions"][-1] == {"total": 3, "count": 2}
        assert SESSION not in reply.headers
        assert CLOSED not in reply.headers


def test_accept_binary_tensors_and_npy_files_in_sessions(server: Server) -> None:
    document, params = tensors(0), {"model_name": "summer"}
    del document["inputs"][0]["data"]
    document["inputs"][0]["parameters"] = {"binary_data_size": 4}
    header = json.dumps(document).encode()
    binary = f"application/vnd.sagemaker-triton.binary+json;json-header-size={len(header)}"
    first = server.post(
        params=params,
        data=header + np.float32(1).tobytes(),
        headers={SESSION: "NEW_SESSION", "Content-Type": binary},
    )
    session = opened(first)
    headers = {
        SESSION: session,
        "Content-Type": "application/x-npy",
        ATTRIBUTES: "sequence_end=true",
    }
    reply = server.post(params=params, data=npy(np.array([[100]], np.float32)), headers=headers)
    assert (total(reply), reply.headers[CLOSED]) == (101, session)


def test_accept_a_stream_in_a_session(server: Server) -> None:
    lines = {"Accept": "application/jsonlines"}
    first = call(server, "summer", "NEW_SESSION", tensors(1), **lines)
    assert total(first) == 1
    second = call(server, "summer", opened(first), {"number": 10, "sequence_end": True}, **lines)
    assert (second.json()["total"], second.headers[CLOSED]) == (11, opened(first))
    assert_is_gone(call(server, "summer", opened(first), {"number": 1}, **lines), opened(first))


def test_prefer_the_header_to_an_id_in_the_body(server: Server) -> None:
    session = opened(call(server, "summer", "NEW_SESSION", tensors(1)))
    assert (
        total(call(server, "summer", session, tensors(1, sequence_id=7, sequence_start=True))) == 2
    )


def test_pass_sequences_without_the_header_to_triton(server: Server) -> None:
    params = {"model_name": "summer"}
    assert (
        total(server.post(params=params, json=tensors(1, sequence_id=7, sequence_start=True))) == 1
    )
    assert total(server.post(params=params, json=tensors(1, sequence_id=7, sequence_end=True))) == 2
    reply = server.post(params=params, json=tensors(1, sequence_id=7))
    expect_error(reply, 400, "invalid_request")


BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size=%d"


def ways(model: str, parameters: dict[str, Any]) -> dict[str, requests.Request]:
    """Return requests with these parameters, one for each way in which a body can contain them."""
    json_body, flat = tensors(1, **parameters), {"number": 1, **parameters}
    binary = tensors(1, **parameters)
    del binary["inputs"][0]["data"]
    binary["inputs"][0]["parameters"] = {"binary_data_size": 4}
    header = json.dumps(binary).encode()
    named, stream = {"model_name": model}, {"Accept": "application/jsonlines"}
    route = f"/v2/models/{model}"

    def post(path: str, **request: Any) -> requests.Request:
        return requests.Request("POST", path, **request)

    return {
        "tensors": post("/invocations", params=named, json=json_body),
        "a stream of tensors": post("/invocations", params=named, json=json_body, headers=stream),
        "binary": post(
            "/invocations",
            params=named,
            data=header + np.float32(1).tobytes(),
            headers={"Content-Type": BINARY % len(header)},
        ),
        "flat": post("/invocations", params=named, json=flat, headers=stream),
        "flat, in parameters": post(
            "/invocations",
            params=named,
            json={"number": 1, "parameters": parameters},
            headers=stream,
        ),
        "infer": post(f"{route}/infer", json=json_body),
        "generate": post(f"{route}/generate", json=flat),
        "generate_stream": post(f"{route}/generate_stream", json=flat),
    }


def send(server: Server, way: requests.Request) -> requests.Response:
    more = {
        name: getattr(way, name) for name in ("params", "headers", "json") if getattr(way, name)
    }
    return server.post(way.url, data=way.data or None, **more)


NUMERIC = ["summer", "direct_summer", "chained_summer"]


@pytest.mark.parametrize("way", ways("", {}))
@pytest.mark.parametrize("model", NUMERIC)
def test_refuse_a_string_as_id_if_the_model_s_ids_are_numbers(
    server: Server, model: str, way: str
) -> None:
    pid = server.pid("tritonserver")
    for own_id in ("x" * 128, "x" * 24, "x", "7"):
        for _ in range(2):
            parameters = {"sequence_id": own_id, "sequence_start": True}
            reply = send(server, ways(model, parameters)[way])
            expect_error(reply, 400, "invalid_request", own_id[:20])
    assert server.pid("tritonserver") == pid


def test_give_ids_in_lines_of_tensors_the_model_s_datatype_too(server: Server) -> None:
    pid = server.pid("tritonserver")
    lines = [tensors(1, sequence_id="x" * 128, sequence_start=True)] * 4
    reply = server.post(
        params={"model_name": "direct_summer"},
        data="\n".join(map(json.dumps, lines)),
        headers={"Content-Type": "application/jsonlines"},
    )
    codes = [json.loads(line)["code"] for line in reply.text.splitlines()]
    assert codes == ["invalid_request"] * 4
    assert server.pid("tritonserver") == pid


@pytest.mark.parametrize("way", [way for way in ways("", {}) if "stream" not in way])
@pytest.mark.parametrize(
    ("model", "own_id"),
    [
        ("summer", 2**63 - 1),
        ("direct_summer", -5),
        ("chained_summer", 9),
        ("named_summer", "x" * 128),
        ("brief_summer", "7"),
        ("brief_summer", 8),
    ],
)
def test_give_kserve_sequence_ids_the_model_s_datatype(
    server: Server, model: str, own_id: int | str, way: str
) -> None:
    steps: list[dict[str, Any]] = [{"sequence_start": True}, {}, {"sequence_end": "true"}]
    for number, flags in enumerate(steps, 1):
        reply = send(server, ways(model, {"sequence_id": own_id, **flags})[way])
        assert reply.status_code == 200, reply.text
        document = reply.json()
        outputs = {output["name"]: output["data"][0] for output in document.get("outputs", [])}
        assert (outputs or document)["total"] == number


def test_keep_the_sessions_of_many_callers_separate(server: Server) -> None:
    """All callers send at once, through all workers. Each caller adds its own number."""

    def caller(number: int) -> list[float]:
        reply = call(server, "summer", "NEW_SESSION", tensors(number))
        session, totals = opened(reply), [total(reply)]
        for step in range(2, 11):
            totals.append(
                total(call(server, "summer", session, tensors(number, sequence_end=step == 10)))
            )
        return totals

    with ThreadPoolExecutor(24) as pool:
        by_caller = list(pool.map(caller, range(1, 25)))
    assert by_caller == [[number * step for step in range(1, 11)] for number in range(1, 25)]


@pytest.mark.parametrize("session", ["NEW_SESSION", "1234"])
def test_return_no_session_header_from_a_model_without_sequences(
    server: Server, session: str
) -> None:
    body = {"inputs": [tensor([2])]}
    reply = call(server, "scale", session, body)
    assert reply.json()["outputs"][0]["data"] == [6.0]
    assert SESSION not in reply.headers
    assert CLOSED not in reply.headers


@pytest.mark.parametrize("body", [{"instances": ["no number"]}, tensors(1, sequence_end="maybe")])
def test_open_no_session_with_an_error(server: Server, body: Any) -> None:
    reply = call(server, "summer", "NEW_SESSION", body)
    assert reply.status_code == (400 if "inputs" in body else 500)
    assert SESSION not in reply.headers


def test_forget_sessions_when_triton_restarts(server: Server) -> None:
    session = opened(call(server, "summer", "NEW_SESSION", tensors(1)))
    server.replace("tritonserver")
    server.wait_ready()
    assert_is_gone(call(server, "summer", session, tensors(1)), session)
