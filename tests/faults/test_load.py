"""Tests which answers the load generator judges as right, honest and wrong."""

import json
from collections import Counter

import pytest
import requests

from bench.faults import row
from serving.model_status.states import Event
from tests.faults.calls import Call
from tests.faults.faults import FAULTS, Fault
from tests.faults.load import CUT, LATE, REFUSED, RIGHT, Answer, judge
from tests.faults.trial import Trial, mistakes_in

pytestmark = pytest.mark.unit

CALL = Call("number", "/", {}, b"", right=lambda reply: reply.json()["y"] == 3)
FAULT = Fault("nobody", lambda _: lambda: True)


def reply(status: int, body: object, request_id: str = "load-1") -> requests.Response:
    response = requests.Response()
    response.status_code, response._content = status, json.dumps(body).encode()
    response.headers["X-Request-Id"] = request_id
    return response


@pytest.mark.parametrize(
    ("response", "verdict"),
    [
        (reply(200, {"y": 3}), "right"),
        (reply(200, {"y": 4}), "wrong: 200"),
        (reply(200, {"y": 3}, "load-2"), "wrong: the reply of load-2"),
        (
            reply(503, {"error": "busy", "code": "overloaded", "request_id": "load-1"}),
            "503 overloaded",
        ),
        (
            reply(
                200, {"error": "Triton died", "code": "triton_unavailable", "request_id": "load-1"}
            ),
            "200 triton_",
        ),
        (reply(503, {"error": "busy", "code": "overloaded", "request_id": "load-2"}), "wrong: 503"),
        (
            reply(400, {"error": "yours", "code": "invalid_request", "request_id": "load-1"}),
            "wrong: 400",
        ),
        (reply(502, "<html>"), "wrong: 502"),
    ],
)
def test_tell_right_replies_and_honest_errors_from_wrong_replies(
    response: requests.Response, verdict: str
) -> None:
    assert judge(CALL, response, "load-1").startswith(verdict)


def answers(*verdicts: str) -> list[Answer]:
    """Return answers with these verdicts, one per second."""
    return [
        Answer(f"load-{when}", "number", when, when + 1, verdict)
        for when, verdict in enumerate(verdicts)
    ]


def test_name_wrong_late_and_cut_answers() -> None:
    mistakes = [
        *mistakes_in(FAULT, answers(RIGHT, "503 overloaded", LATE, CUT, REFUSED, "wrong: 200"))
    ]
    assert [line.partition(" ")[0] for line in mistakes] == ["load-2", "load-3", "load-4", "load-5"]
    ends = Fault("nginx", FAULT.strike, cuts=True)
    assert [line.partition(" ")[0] for line in mistakes_in(ends, answers(CUT, REFUSED))] == [
        "load-1"
    ]


def test_show_errors_mistakes_and_the_seconds_to_recovery() -> None:
    outcome = Trial(FAULT, Counter({RIGHT: 9, "503 overloaded": 2}), 1.25, ("load-2: late",))
    cells = [cell.strip() for cell in row(outcome).split("|")]
    assert cells[1:-1] == [FAULT.name, "9", "2 503 overloaded; WRONG: load-2: late", "1.2"]


def test_cause_every_event_of_a_model_with_a_fault() -> None:
    caused = {event for fault in FAULTS for event in fault.events}
    assert caused == set(Event)
