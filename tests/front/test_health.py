"""How long /ping waits for tritonserver, and which of several failed models it names."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

import serving.budget
from serving.budget import Deadline
from serving.errors import ModelFailed, TritonUnavailable
from serving.front.health import Health
from serving.inference.registry import Registry
from serving.triton.gateway import PROBE_SECONDS, IndexEntry, TritonGateway

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
    with pytest.raises(TritonUnavailable):
        health(Slow(NGINX_WAITS, monkeypatch)).check()


class Refusing(TritonGateway):
    """A Triton that has refused the models called `names`, and lists them in this order."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__("127.0.0.1:1", 1)
        self.names = names

    def index(self) -> list[IndexEntry]:
        return [IndexEntry(name, "1", "", "") for name in self.names]


@pytest.mark.parametrize("names", itertools.permutations(["above", "ensemble", "part"]))
def test_ping_names_the_refused_part_and_not_the_ensembles_that_call_it(tmp_path: Path, names: Sequence[str]) -> None:
    for name, called in (("above", "ensemble"), ("ensemble", "part")):
        (tmp_path / name).mkdir()
        step = f'ensemble_scheduling {{ step {{ model_name: "{called}" model_version: -1 }} }}'
        (tmp_path / name / "config.pbtxt").write_text(f'platform: "ensemble"\n{step}\n')
    with pytest.raises(ModelFailed, match="'part'"):
        Health(Registry(Refusing(names), [tmp_path]), None).check()  # type: ignore[arg-type]
