"""How long /ping waits for tritonserver."""

import pytest

import serving.budget
from serving.budget import Deadline
from serving.errors import TritonUnavailable
from serving.front.health import Health
from serving.triton.gateway import PROBE_SECONDS, IndexEntry

pytestmark = pytest.mark.unit

NGINX_WAITS = 2.0


class Slow:
    """A registry and its gateway that take so many seconds for the first of /ping's two questions."""

    def __init__(self, seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
        self.gateway, self.seconds, self.now = self, seconds, 100.0
        self.left: list[float] = []
        monkeypatch.setattr(serving.budget, "monotonic", lambda: self.now)

    def index(self) -> dict[str, dict[str, IndexEntry]]:
        self.now += self.seconds
        return {"m": {"1": IndexEntry("m", "1", "READY", "")}}

    def trouble(self, name: str) -> None:
        return None

    def is_ready(self, deadline: Deadline) -> bool:
        self.left.append(deadline.left(PROBE_SECONDS))
        return True


def health(registry: Slow) -> Health:
    made = Health(registry, None)  # type: ignore[arg-type]
    made._passed = 0
    return made


def test_a_slow_answer_leaves_the_second_question_what_nginx_still_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    slow = Slow(PROBE_SECONDS, monkeypatch)
    health(slow).check()
    assert 0.3 < slow.left[0] < NGINX_WAITS - PROBE_SECONDS


def test_an_answer_that_comes_too_late_says_that_tritonserver_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TritonUnavailable, match="hangs or is overloaded"):
        health(Slow(NGINX_WAITS, monkeypatch)).check()
