"""Causes one fault under load, and collects what the callers saw."""

import json
import math
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.faults.calls import learn, make_models
from tests.faults.faults import MODES, Confined, Fault
from tests.faults.load import CUT, LATE, REFUSED, RIGHT, WRONG, Answer, Callers
from tests.support.harness import wait_until

SETTLED = 1.5  # after this many seconds of right answers, the fault is over for the callers


@dataclass(frozen=True)
class Trial:
    """What callers saw from the moment of the fault. The last answer that was not right ended
    `seconds` after it; 0 if all were right."""

    fault: Fault
    verdicts: Counter[str]
    seconds: float
    mistakes: tuple[str, ...]


@contextmanager
def under_load(
    folder: Path, mode: str, deadline: float, pause: float, **variables: str
) -> Iterator[tuple[Confined, Callers]]:
    """Run a server in one of MODES, and callers that pause for `pause` seconds between two
    requests. Assert that the server stops in the end, and that it answered no request twice."""
    (folder / "models").mkdir()
    make_models(folder / "models")
    variables |= {**MODES[mode], "SERVE_WORKERS": "2", "SERVE_REQUEST_TIMEOUT": str(deadline)}
    server = Confined(folder, folder / "models", **variables)
    try:
        calls = learn(server.wait_ready())
        with Callers(server.url, calls, callers=6, deadline=deadline, pause=pause) as callers:
            yield server, callers
    finally:
        code = server.stop()
    assert code == 0
    server.wait_gone()
    assert logged_twice(server.log, "fault") == []


def run(fault: Fault, server: Confined, callers: Callers) -> Trial:
    """Wait until all answers are right, cause the fault, and wait until they are right again."""
    wait_until(
        lambda: is_well(callers), lambda: f"right answers before the fault; {_last(callers)}"
    )
    before = _said_to_hang(server)
    with callers.hurried():
        struck = time.monotonic()
        over = fault.strike(server)
    wait_until(over, f"{fault.name}: it is over")
    server.wait_ready()
    wait_until(
        lambda: is_well(callers, struck), lambda: f"{fault.name}: right answers; {_last(callers)}"
    )
    answers = callers.since(struck)
    mistakes = [*mistakes_in(fault, answers)]
    if fault.works and before != _said_to_hang(server):
        mistakes.append("a process was said to hang")
    verdicts = Counter(answer.verdict for answer in answers)
    errors = [answer.ended for answer in answers if answer.verdict != RIGHT]
    seconds = max(errors, default=struck) - struck
    return Trial(fault, verdicts, seconds, tuple(mistakes))


def _said_to_hang(server: Confined) -> int:
    return server.output().count("did not answer for")


def is_well(callers: Callers, since: float = 0.0) -> bool:
    """Return whether each kind of call has had only right answers for a while, since `since` or
    since the last wrong answer."""
    others = [answer.ended for answer in callers.since(since) if answer.verdict != RIGHT]
    begin = math.nextafter(max([since, *others]), math.inf)
    return time.monotonic() > begin + SETTLED and callers.all_right_since(begin)


def _last(callers: Callers) -> str:
    return "; ".join(f"{answer.kind}: {answer.verdict}" for answer in callers.answers[-20:])


def mistakes_in(fault: Fault, answers: Iterable[Answer]) -> Iterator[str]:
    never = {LATE, REFUSED} if fault.cuts else {LATE, CUT, REFUSED}
    for answer in answers:
        if answer.verdict.startswith(WRONG) or answer.verdict in never:
            yield (
                f"{answer.id} ({answer.kind}): {answer.verdict} after "
                f"{answer.ended - answer.began:.1f} s"
            )


def logged_twice(log: Path, name: str) -> list[str]:
    """Return the ids of the requests that nginx's log contains more than once."""
    lines = [
        line for line in log.read_text(errors="replace").splitlines() if line.startswith('{"time"')
    ]
    requests = (
        document.get("request_id")
        for document in map(_json, lines)
        if document.get("process") == "nginx"
    )
    ids = Counter(filter(None, requests))
    return [each for each, count in ids.items() if each.startswith(f"{name}-") and count > 1]


def _json(line: str) -> dict[str, str]:
    try:
        entry: dict[str, str] = json.loads(line)
    except ValueError:  # the process was killed while it wrote the line
        return {}
    return entry
