"""Calls a server continuously, and judges the answer to each request.

A verdict is one of
- `right`: the expected answer, with the request's id;
- `STATUS code`: an error with a reason, its code and the request's id. For a stream that had begun,
  its last line;
- `refused`: nothing listened, so the request was not accepted;
- `cut`: the connection ended before a complete answer, so the caller knows that it has none;
- `wrong: …` and `late`: must never occur.
"""

import contextlib
import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import requests

from tests.faults.calls import ID, Call
from tests.support.harness import wait_until
from tests.support.load import Threads

RIGHT, REFUSED, CUT, LATE, WRONG = "right", "refused", "cut", "late", "wrong: "
# the requests are valid, so a status below 500 would blame the caller wrongly
HONEST = range(500, 600)
GRACE = 5.0  # seconds of tolerance beyond the deadline, for a busy machine


@dataclass(frozen=True)
class Answer:
    id: str
    kind: str
    began: float  # time.monotonic
    ended: float
    verdict: str


@dataclass
class Callers(Threads):
    """Threads that send all kinds of calls in turn, with ids that begin with `name`. They pause for
    `pause` seconds between two requests unless they are hurried."""

    url: str
    makers: Sequence[Callable[[int], Call]]
    callers: int
    deadline: float
    pause: float = 0.0
    name: str = "fault"
    answers: list[Answer] = field(default_factory=list)
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)
    _hurry: threading.Event = field(default_factory=threading.Event)

    @contextlib.contextmanager
    def hurried(self) -> Iterator[None]:
        """Keep a request of each caller in flight in this context, without pauses."""
        before = len(self.answers)
        self._hurry.set()
        wait_until(
            lambda: len(self.answers) >= before + 2 * self.callers, "two answers for each caller"
        )
        try:
            yield
        finally:
            self._hurry.clear()

    def since(self, when: float) -> list[Answer]:
        return [answer for answer in tuple(self.answers) if answer.ended >= when]

    def all_right_since(self, when: float, times: int = 2) -> bool:
        """Return whether all answers since `when` were right, and each kind of call has at least
        `times` answers to calls that began after it."""
        answers = self.since(when)
        counts = Counter(answer.kind for answer in answers if answer.began >= when)
        enough = len(counts) == len(self.makers) and min(counts.values()) >= times
        return enough and all(answer.verdict == RIGHT for answer in answers)

    def _call(self, _: int) -> None:
        while not self._stop.is_set():
            number = next(self._numbers)
            call = self.makers[number % len(self.makers)](number)
            self.answers.append(self._ask(call, f"{self.name}-{number}"))
            if self.answers[-1].verdict != RIGHT:
                time.sleep(0.05)
            elif self.pause:
                self._hurry.wait(self.pause)

    def _ask(self, call: Call, request_id: str) -> Answer:
        began = time.monotonic()
        try:
            with requests.Session() as session:
                session.trust_env = False  # pytest changes the environment during the request
                reply = session.post(
                    self.url + call.path,
                    data=call.body,
                    headers={**call.headers, ID: request_id},
                    timeout=self.deadline + GRACE,
                )
            verdict = judge(call, reply, request_id)
        except requests.Timeout:
            verdict = LATE
        except requests.RequestException as err:
            verdict = REFUSED if "Connection refused" in str(err) else CUT
        ended = time.monotonic()
        return Answer(
            request_id,
            call.kind,
            began,
            ended,
            LATE if ended - began > self.deadline + GRACE else verdict,
        )


def judge(call: Call, reply: requests.Response, request_id: str) -> str:
    if reply.headers.get("X-Request-Id") != request_id:
        return f"{WRONG}the reply of {reply.headers.get('X-Request-Id')}"
    if reply.status_code == 200 and _is_right(call, reply):
        return RIGHT
    with contextlib.suppress(ValueError, KeyError, IndexError, TypeError):
        error = json.loads(reply.text.splitlines()[-1])
        if (
            error["request_id"] == request_id
            and error["error"]
            and reply.status_code in (200, *HONEST)
        ):
            return f"{reply.status_code} {error['code']}"
    return f"{WRONG}{reply.status_code} {reply.text[-300:]}"


def _is_right(call: Call, reply: requests.Response) -> bool:
    try:
        return call.right(reply)
    except (ValueError, KeyError, IndexError, TypeError):
        return False
