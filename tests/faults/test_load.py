"""What the load calls right, honest and wrong."""

import json
import time
from collections import Counter

import pytest
import requests

from tests.faults.calls import Call, same
from tests.faults.faults import Fault
from tests.faults.load import CUT, LATE, REFUSED, RIGHT, Answer, Callers, judge
from tests.faults.page import table
from tests.faults.trial import Trial, is_well, mistakes_in, outage

pytestmark = pytest.mark.unit

CALL = Call("number", "/", {}, b"", right=lambda reply: reply.json()["y"] == 3)
FAULT = Fault("nobody", lambda _: lambda: True)


def reply(status: int, body: object, request_id: str = "load-1") -> requests.Response:
    made = requests.Response()
    made.status_code, made._content = status, json.dumps(body).encode()
    made.headers["X-Request-Id"] = request_id
    return made


@pytest.mark.parametrize(
    ("given", "verdict"),
    [
        (reply(200, {"y": 3}), "right"),
        (reply(200, {"y": 4}), "wrong: 200"),
        (reply(200, {"y": 3}, "load-2"), "wrong: the reply of load-2"),
        (reply(503, {"error": "busy", "code": "overloaded", "request_id": "load-1"}), "503 overloaded"),
        (reply(200, {"error": "Triton died", "code": "triton_unavailable", "request_id": "load-1"}), "200 triton_"),
        (reply(503, {"error": "busy", "code": "overloaded", "request_id": "load-2"}), "wrong: 503"),
        (reply(400, {"error": "yours", "code": "invalid_request", "request_id": "load-1"}), "wrong: 400"),
        (reply(502, "<html>"), "wrong: 502"),
    ],
)
def test_a_reply_is_right_or_an_honest_error_or_wrong(given: requests.Response, verdict: str) -> None:
    assert judge(CALL, given, "load-1").startswith(verdict)


def test_numbers_of_a_learnt_answer_may_differ_in_their_last_digits() -> None:
    assert same({"a": [1.0, "x"]}, {"a": [1.0001, "x"]})
    assert not same({"a": [1.0]}, {"a": [1.1]})
    assert not same({"a": 1.0}, {"b": 1.0})
    assert not same([1.0], [1.0, 2.0])


def answers(*verdicts: str) -> list[Answer]:
    """One a second."""
    return [Answer(f"load-{when}", "number", when, when + 1, verdict) for when, verdict in enumerate(verdicts)]


def test_what_must_not_be_is_named() -> None:
    found = [*mistakes_in(FAULT, answers(RIGHT, "503 overloaded", LATE, CUT, REFUSED, "wrong: 200"))]
    assert [line.partition(" ")[0] for line in found] == ["load-2", "load-3", "load-4", "load-5"]
    ends = Fault("nginx", FAULT.strike, cuts=True)
    assert [line.partition(" ")[0] for line in mistakes_in(ends, answers(CUT, REFUSED))] == ["load-1"]


def test_anoutage_lasts_until_the_first_right_answer_after_the_last_other_one() -> None:
    assert outage(answers(RIGHT, "503 x", RIGHT, CUT, RIGHT, RIGHT), struck=0.5) == 4.5
    assert outage(answers(RIGHT, RIGHT), struck=0.5) == 0.0


def test_a_load_is_well_when_each_kind_was_answered_rightly_and_nothing_else_has_ended() -> None:
    callers = Callers("", [lambda _: CALL], callers=0, deadline=1)
    callers.answers = answers("503 x", RIGHT, RIGHT)
    assert callers.all_right_since(1.0) is False, "the 503 ended then"
    assert callers.all_right_since(1.5, times=1) is True
    assert callers.all_right_since(1.5, times=2) is False


def test_on_a_slow_machine_too_a_load_is_well_that_was_right_for_a_while() -> None:
    callers = Callers("", [lambda _: CALL], callers=0, deadline=1)
    now = time.monotonic()
    callers.answers = [Answer("load-1", "number", now - ago - 2, now - ago, RIGHT) for ago in (4, 2, 0)]
    assert is_well(callers)
    assert not is_well(callers, since=now - 1)
    callers.answers.append(Answer("load-2", "number", now - 3, now, "503 x"))
    assert not is_well(callers)


def test_a_row_says_what_callers_saw() -> None:
    seen = Counter({RIGHT: 7, "503 overloaded": 2, CUT: 1})
    row = table([Trial(FAULT, seen, 1.26, ())]).splitlines()[-1]
    assert row == "| nobody | 7 right, 2 × 503 overloaded | 1.3 | 1 cut | 0 |"
