"""Tests streams of responses in the whole container: their formats, their timing, their errors and
their end."""

import http.client
import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from flask import Flask

from predictor import create_app
from serving.settings.settings import Settings
from tests.faults.faults import stubs
from tests.support.harness import Server, expect_error, module_server, wait_until
from tests.support.streaming_models import make_echo, make_reader, make_summer, make_teller

pytestmark = pytest.mark.stack

EVENTS = {"Accept": "text/event-stream"}
LINES = {"Accept": "application/jsonlines"}
GENERATE = "/v2/models/teller/generate_stream"
started = module_server(
    *(make_teller, make_reader, make_echo, make_summer),
    SERVE_MAX_CONCURRENCY="16",
    SERVE_REQUEST_TIMEOUT="3",
    # after a call of generate on its own port, Triton waits for connections to end, which never
    # happens
    SERVE_STOP_TIMEOUT="2",
)


@pytest.fixture(scope="module")
def server(started: Server) -> Iterator[Server]:
    yield started
    assert "Signal (11)" not in started.output()


def app(server: Server, **variables: str) -> Flask:
    """Return a worker in this process, with other settings, that calls the server's Triton."""
    repository = str(server.run_dir.parent / "models")
    settings = {
        "SERVE_RUN_DIR": str(server.run_dir),
        "SERVE_MODEL_REPOSITORY": repository,
        **variables,
    }
    return create_app(Settings.from_env(settings))


def ask(server: Server, model: str, body: Any, **headers: str) -> requests.Response:
    return server.post(params={"model_name": model}, json=body, headers=headers, stream=True)


def tensors(text: str, delay: float = 0.0) -> dict[str, Any]:
    return {
        "inputs": [
            {"name": "text_input", "datatype": "BYTES", "shape": [1], "data": [text]},
            {"name": "delay", "datatype": "FP32", "shape": [1], "data": [delay]},
        ]
    }


def events(reply: requests.Response) -> list[tuple[str, Any]]:
    return parsed(reply.content.decode())


def parsed(text: str) -> list[tuple[str, Any]]:
    pairs = []
    for part in text.split("\n\n")[:-1]:
        fields = dict(line.split(": ", 1) for line in part.splitlines())
        pairs.append((fields.get("event", "message"), json.loads(fields["data"])))
    return pairs


def cancelled(server: Server) -> int:
    reply = ask(server, "teller", {"text_input": "cancelled?"}, **LINES)
    return int(reply.json()["text_output"])


def wait_cancelled(server: Server, count: int) -> None:
    wait_until(lambda: cancelled(server) == count, f"the model has seen {count} cancellations")


def seconds(server: Server) -> float:
    """Return the total duration of all requests so far in seconds, from /metrics."""
    durations = re.findall(
        r"^serve_request_seconds_sum.* (\S+)$", server.scrape().text, re.MULTILINE
    )
    return sum(map(float, durations))


def test_send_an_event_per_response_to_a_flat_body(server: Server) -> None:
    before = seconds(server)
    reply = ask(
        server,
        "teller",
        {"text_input": "one two", "delay": 0.5, "id": "mine", "unused": 1},
        **EVENTS,
    )
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["X-Model-Name"] == "teller"
    assert reply.headers["X-Model-Version"] == "1"
    fields = {"id": "mine", "model_name": "teller", "model_version": "1", "about": [3.0, 0.5]}
    assert events(reply) == [("message", fields | {"text_output": word}) for word in ("one", "two")]
    wait_until(lambda: seconds(server) - before >= 1, "the whole stream is counted")


def test_send_a_kserve_reply_per_response_to_tensors(server: Server) -> None:
    body = tensors("one two") | {"outputs": [{"name": "text_output"}], "id": "mine"}
    reply = ask(server, "teller", body, **LINES)
    assert reply.headers["Content-Type"] == "application/jsonlines"
    lines = [json.loads(line) for line in reply.iter_lines()]
    assert [line["outputs"] for line in lines] == [
        [{"name": "text_output", "datatype": "BYTES", "shape": [1], "data": [word]}]
        for word in ("one", "two")
    ]
    assert {(line["id"], line["model_name"], line["model_version"]) for line in lines} == {
        ("mine", "teller", "1")
    }


def test_postprocess_instances_per_response(server: Server) -> None:
    body = {"instances": ["one two"], "parameters": {"upper": True}}
    lines = [json.loads(line) for line in ask(server, "reader", body, **LINES).iter_lines()]
    common = {"model_name": "reader", "model_version": "1", "offset": 0}
    assert lines == [common | {"predictions": ["ONE"]}, common | {"predictions": ["TWO"]}]


def test_stream_one_response_of_an_ordinary_model(server: Server) -> None:
    reply = ask(server, "echo", {"text_input": ["a", "b"]}, **EVENTS)
    assert events(reply) == [
        ("message", {"model_name": "echo", "model_version": "1", "text_output": ["a", "b"]})
    ]


def test_stream_a_numbered_part_per_instance_of_a_stateful_model(server: Server) -> None:
    lines = ask(server, "summer", {"instances": [1, 2, 3]}, **LINES).iter_lines()
    totals = [(each["offset"], each["predictions"][0]["total"]) for each in map(json.loads, lines)]
    assert totals == [(0, 1.0), (1, 3.0), (2, 6.0)]


@pytest.mark.parametrize("accept", [EVENTS, LINES], ids=["events", "lines"])
def test_send_each_response_as_soon_as_it_arrives(
    server: Server, accept: dict[str, str], tmp_path: Path
) -> None:
    """The model waits for a file, which the test creates when the previous response has arrived."""
    files = [tmp_path / "second", tmp_path / "third"]
    reply = ask(server, "teller", {"text_input": " ".join(["first", *map(str, files)])}, **accept)
    lines = (line for line in reply.iter_lines(chunk_size=1) if line)
    assert b"first" in next(lines)
    for file in files:
        file.touch()
        assert str(file).encode() in next(lines)
    assert list(lines) == []


def test_let_a_stream_last_longer_than_a_request(server: Server) -> None:
    """SERVE_REQUEST_TIMEOUT is 3 s here. It limits neither a whole stream nor the time between two
    responses."""
    reply = ask(server, "teller", {"text_input": "a", "delay": 3.5}, **EVENTS)
    assert len(events(reply)) == 1


def test_end_a_stream_at_its_deadline_with_an_event(server: Server, tmp_path: Path) -> None:
    patient = app(server)
    patient.extensions["serving"].gateway.stream_timeout = 2.0
    body = {"text_input": f"a b {tmp_path / 'never'}"}
    reply = patient.test_client().post("/invocations?model_name=teller", json=body, headers=EVENTS)
    *messages, (name, last) = parsed(reply.text)
    assert [each["text_output"] for _, each in messages] == ["a", "b"]
    assert (name, last["code"]) == ("error", "triton_timeout")


def test_send_an_error_within_a_stream_as_event_or_line(server: Server) -> None:
    reply = ask(server, "teller", {"text_input": "one fail"}, **EVENTS)
    (first, _), (last, error) = events(reply)
    assert (first, last) == ("message", "error")
    assert error.keys() == {"error", "code", "request_id"}
    request_id = reply.headers["X-Request-Id"]
    assert (error["code"], error["request_id"]) == ("inference_failed", request_id)
    wait_until(lambda: server.entries("gunicorn", request_id=request_id), "the log explains it")
    line = ask(server, "teller", {"text_input": "one fail"}, **LINES).text.splitlines()[1]
    assert json.loads(line)["code"] == "inference_failed"


@pytest.mark.parametrize("path", ["/invocations?model_name=teller", GENERATE])
def test_send_an_event_if_the_model_fails_before_its_first_response(
    server: Server, path: str
) -> None:
    reply = server.post(path, json={"text_input": "fail"}, headers=EVENTS)
    assert reply.status_code == 500
    assert reply.headers["Content-Type"] == "text/event-stream; charset=utf-8"
    ((kind, fields),) = events(reply)
    request_id = reply.headers["X-Request-Id"]
    about = {"code": "inference_failed", "request_id": request_id}
    assert (kind, fields) == ("error", {"error": "it was told to fail", **about})
    reply = ask(server, "teller", {"text_input": "fail"}, **LINES)
    assert (reply.status_code, reply.headers["Content-Type"]) == (500, LINES["Accept"])
    assert reply.json()["error"] == "it was told to fail"


WRONG: dict[str, tuple[Any, int, str]] = {
    "no such input": ({"txt": "a"}, 400, "text_input"),
    "not of the datatype": ({"text_input": "a", "delay": "soon"}, 400, "delay"),
    "a list as a parameter": ({"text_input": "a", "unused": [1]}, 400, "unused"),
    "a wrong shape": ({"text_input": "a", "delay": [1, 2]}, 400, "delay"),
}


@pytest.mark.parametrize(("body", "status", "words"), WRONG.values(), ids=WRONG)
def test_answer_a_mistake_before_the_first_response_normally(
    server: Server, body: Any, status: int, words: str
) -> None:
    reply = ask(server, "teller", body, **EVENTS)
    assert reply.status_code == status
    assert reply.headers["Content-Type"] == "application/json"
    assert words in reply.json()["error"]


def test_refuse_a_parameter_that_triton_does_not_accept(server: Server) -> None:
    wrong = {"timeout": -1}
    for more in (wrong, {"parameters": wrong}):
        reply = ask(server, "teller", {"text_input": "one", **more}, **EVENTS)
        expect_error(reply, 400, "invalid_request", "timeout")


def test_say_how_to_call_a_decoupled_model(server: Server) -> None:
    for model, body in (("teller", tensors("a")), ("reader", {"instances": ["a"]})):
        reply = ask(server, model, body)
        expect_error(reply, 406, "not_acceptable", "text/event-stream")


def test_cancel_the_request_if_the_caller_leaves(server: Server, tmp_path: Path) -> None:
    before, begun = cancelled(server), tmp_path / "begun"
    connection = http.client.HTTPConnection("127.0.0.1", server.port)
    body = json.dumps({"text_input": f">{begun} {tmp_path / 'never'}"})
    connection.request("POST", "/invocations?model_name=teller", body, EVENTS)
    wait_until(begun.exists, "the model works on it")
    connection.close()
    wait_cancelled(server, before + 1)


def test_survive_callers_who_leave_fast_streams(server: Server) -> None:
    """Cancelled at once, one of about 80 such streams crashed tritonserver."""
    body = {"text_input": "word " * 200}
    for _ in range(300):
        with ask(server, "teller", body, **LINES) as reply:
            next(reply.iter_lines(chunk_size=1))
        reply = server.post("/v2/models/teller/generate", json=body)
        expect_error(reply, 406, "not_acceptable", "text/event-stream")
    wait_until(lambda: server.in_flight() == 0, "all places are free")
    reply = ask(server, "teller", {"text_input": "a b"}, **LINES)
    assert len(reply.text.splitlines()) == 2


def endless(server: Server, folder: Path) -> requests.Response:
    """Return a stream whose first response has arrived and whose second never comes."""
    reply = ask(server, "teller", {"text_input": f"a {folder / 'never'}"}, **LINES)
    assert reply.status_code == 200
    return reply


def test_free_the_slots_of_callers_who_leave(server: Server, tmp_path: Path) -> None:
    """The callers are more than there are threads and slots."""
    before = cancelled(server)
    for left in (5, 10, 15, 20):
        replies = [
            ask(server, "teller", {"text_input": "a b", "delay": [0.2]}, **LINES) for _ in range(2)
        ]
        for reply in [endless(server, tmp_path) for _ in range(5)]:
            reply.close()
        assert [len(reply.text.splitlines()) for reply in replies] == [2, 2]
        wait_cancelled(server, before + left)
        wait_until(lambda: server.in_flight() == 0, "all places are free")


def test_count_streams_among_the_requests_in_flight(server: Server, tmp_path: Path) -> None:
    wait_until(lambda: server.in_flight() == 0, "all places are free")
    # the half of the slots that one model may use
    running = [endless(server, tmp_path) for _ in range(8)]
    reply = ask(server, "teller", {"text_input": "a"}, **LINES)
    expect_error(reply, 503, "overloaded")
    assert server.ping() == 200
    for each in running:
        each.close()
    wait_until(
        lambda: ask(server, "teller", {"text_input": "a"}, **LINES).status_code == 200,
        "there is room again",
    )


def test_end_a_stream_whose_process_died(server: Server, tmp_path: Path) -> None:
    waiting = endless(server, tmp_path)
    (process,) = stubs(server, "teller/1")
    os.kill(process, signal.SIGKILL)
    wait_until(
        lambda: ask(server, "teller", {"text_input": "a"}, **LINES).status_code == 200,
        "the model answers again",
    )
    first, last = map(json.loads, waiting.text.splitlines())
    assert (first["text_output"], last["code"]) == ("a", "model_restarting")


def test_leave_other_bodies_of_generate_stream_unchanged(server: Server) -> None:
    generating = app(server, SAGEMAKER_TRITON_INFERENCE_TYPE="generate_stream").test_client()

    def text(model: str, body: Any, **headers: str) -> str:
        return str(
            generating.post(f"/invocations?model_name={model}", json=body, headers=headers).text
        )

    assert json.loads(text("summer", {"instances": [1, 2]}))["predictions"][1]["total"] == 3.0
    assert text("reader", {"instances": ["a b"]}, **LINES).count("\n") == 2
    assert text("teller", tensors("a b"), **EVENTS).count("data: ") == 2
