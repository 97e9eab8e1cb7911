"""Tests how long /ping waits for tritonserver, and which models make it return 503."""

import itertools
from collections.abc import Sequence
from pathlib import Path

import pytest

from serving.budget import Deadline
from serving.errors import (
    ModelFailed,
    ModelNotReady,
    ModelRefused,
    ServingError,
    TooLate,
    TritonUnavailable,
)
from serving.front.monitoring import Monitoring
from serving.model_status.models import Entry, Models
from serving.model_status.states import ADDING, FAILED, LOADING, READY, REFUSED
from serving.settings.settings import AT_START, ON_POST, LoadPolicy
from serving.triton.connection import PROBE_SECONDS

pytestmark = pytest.mark.unit

NGINX_WAITS = 2.0


class Served:
    """A registry with these entries. Its tritonserver takes `seconds` to answer."""

    def __init__(self, *entries: Entry, seconds: float = 0.0) -> None:
        self.gateway, self.table, self.seconds, self.entries = self, self, seconds, entries

    def look(self) -> Models:
        return Models({entry.name: entry for entry in self.entries})

    def is_live(self, deadline: Deadline) -> bool:
        left = deadline.left()
        assert left < NGINX_WAITS
        if self.seconds > left:
            raise TooLate("it took too long")
        return True


def monitoring(registry: Served) -> Monitoring:
    return Monitoring(registry, Path("status.json"))  # type: ignore[arg-type]


def test_answer_slow_pings_before_nginx_gives_up() -> None:
    monitoring(Served(WELL, seconds=PROBE_SECONDS)).check_ready()


def test_report_that_tritonserver_hangs_if_its_answer_is_late() -> None:
    with pytest.raises(TritonUnavailable):
        monitoring(Served(seconds=NGINX_WAITS)).check_ready()


@pytest.mark.parametrize("names", list(itertools.permutations(["above", "ensemble", "part"])))
def test_name_the_refused_part_in_ping_and_not_its_ensembles(names: Sequence[str]) -> None:
    calls = {"above": ("ensemble",), "ensemble": ("part",), "part": ()}
    entries = (
        Entry(name, name, "", "", 0, FAILED, parts=calls[name], reason=f"{name} failed")
        for name in names
    )
    with pytest.raises(ModelFailed, match="'part'"):
        monitoring(Served(*entries)).check_ready()


WELL = Entry("well", "well", "", "", 0, READY, answered=True)
SILENT = Entry("silent", "silent", "", "", 0, READY)
ENDED = Entry("ended", "ended", "", "", 0, REFUSED)
LOADS = Entry("loads", "loads", "", "", 0, LOADING)
ADDED = Entry("added", "added", "", "", 0, ADDING)


@pytest.mark.parametrize(
    ("entries", "was_ready", "policy", "error"),
    [
        ([WELL], False, AT_START, None),
        ([], False, AT_START, ModelNotReady),
        ([], False, ON_POST, None),
        ([WELL, ADDED], False, ON_POST, None),
        ([WELL, SILENT], True, AT_START, ModelNotReady),
        ([WELL, LOADS], True, AT_START, ModelNotReady),
        ([WELL, ENDED], False, AT_START, ModelRefused),
        ([WELL, ENDED], True, AT_START, None),
        ([ENDED], True, AT_START, ModelRefused),
    ],
)
def test_keep_ping_at_200_if_a_model_is_refused_and_others_serve(
    entries: Sequence[Entry], was_ready: bool, policy: LoadPolicy, error: type[ServingError] | None
) -> None:
    unready = Models(
        {each.name: each for each in entries}, was_ready=was_ready, policy=policy.name
    ).unready()
    assert (type(unready) if unready else None) is error
