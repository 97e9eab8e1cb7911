"""How long /ping waits for tritonserver, and which of several failed models it names."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

import serving.budget
from serving.budget import Deadline
from serving.errors import ModelFailed, TritonUnavailable
from serving.front.health import Health
from serving.models.table import FAILED, READY, Entry, Models
from serving.triton.connection import PROBE_SECONDS

pytestmark = pytest.mark.unit

NGINX_WAITS = 2.0


class Served:
    """A registry of these entries, whose tritonserver takes so many seconds to answer."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *entries: Entry, seconds: float = 0.0) -> None:
        self.gateway, self.seconds, self.now = self, seconds, 100.0
        self.entries = entries
        monkeypatch.setattr(serving.budget, "monotonic", lambda: self.now)

    def models(self) -> Models:
        return Models({entry.name: entry for entry in self.entries})

    def is_live(self, deadline: Deadline) -> bool:
        assert deadline.left() < NGINX_WAITS
        self.now += self.seconds
        deadline.left()
        return True


def health(registry: Served) -> Health:
    made = Health(registry, None, None, Path("status.json"))  # type: ignore[arg-type]
    made._passed = 0
    return made


def test_a_slow_answer_comes_before_nginx_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    health(Served(monkeypatch, Entry("m", "m", "", "", 0, READY), seconds=PROBE_SECONDS)).check()


def test_an_answer_that_comes_too_late_says_that_tritonserver_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TritonUnavailable):
        health(Served(monkeypatch, seconds=NGINX_WAITS)).check()


@pytest.mark.parametrize("names", list(itertools.permutations(["above", "ensemble", "part"])))
def test_ping_names_the_refused_part_and_not_the_ensembles_that_call_it(
    monkeypatch: pytest.MonkeyPatch, names: Sequence[str]
) -> None:
    calls = {"above": ("ensemble",), "ensemble": ("part",), "part": ()}
    entries = (Entry(name, name, "", "", 0, FAILED, parts=calls[name], reason=f"{name} failed") for name in names)
    with pytest.raises(ModelFailed, match="'part'"):
        health(Served(monkeypatch, *entries)).check()
