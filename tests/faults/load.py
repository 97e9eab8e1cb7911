"""Callers that never stop, and what each of their requests got.

A verdict is one of
- `right`: the answer that was known beforehand, under the request's id;
- `STATUS code`: an error with a reason, its code and the request's id; of a stream that had begun,
  its last line;
- `refused`: nobody listened, so the request was not taken;
- `cut`: the connection ended without an answer, or before its end: the caller knows that it got
  none;
- `wrong: …` and `late`: what must never be.
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
HONEST = range(500, 600)  # a request that is sound is never the caller's mistake
GRACE = 5.0  # seconds beyond the deadline, for a machine that is busy with other things


@dataclass(frozen=True)
class Answer:
    id: str
    kind: str
    began: float  # time.monotonic
    ended: float
    verdict: str


@dataclass
class Callers(Threads):
    """Threads that ask one kind after the other, with ids that begin with `name`, and rest for
    `pause` seconds between two requests, but while they are hurried."""

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
        """Inside the context each has a request in work, and the next one as soon as that is
        answered."""
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
        """Whether all that ended after that time was right, so often of each kind that began after
        it."""
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
                session.trust_env = False  # pytest changes the environment meanwhile
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
