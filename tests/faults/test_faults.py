"""Tests each fault separately under constant mixed load. Every request gets one answer in time: the
right one or an honest error."""

import os
from collections.abc import Iterator

import pytest

from tests.faults import trial
from tests.faults.faults import FAULTS, Confined, Fault
from tests.faults.load import CUT, RIGHT, Callers

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(os.geteuid() != 0, reason="a small /dev/shm of its own takes root"),
]
DEADLINE = 30.0
# seconds; before and after a fault, 13 requests a second show as much as a full load would
PAUSE = 0.4


@pytest.fixture(scope="module")
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Confined, Callers]]:
    """Run a server under load. The parameter is one of MODES."""
    folder = tmp_path_factory.mktemp("faults")
    hang = {"SERVE_HANG_TIMEOUT": "5"}
    with trial.under_load(folder, request.param, DEADLINE, PAUSE, **hang) as running:
        yield running


@pytest.mark.parametrize(
    ("loaded", "fault"),
    [pytest.param(fault.mode, fault, id=fault.name) for fault in FAULTS],
    indirect=["loaded"],
)
def test_answer_every_request_despite_a_fault(
    fault: Fault, loaded: tuple[Confined, Callers]
) -> None:
    server, callers = loaded
    outcome = trial.run(fault, server, callers)
    assert outcome.mistakes == ()
    assert outcome.verdicts[RIGHT] > 0
    assert outcome.verdicts[CUT] <= 2 * callers.callers, (
        "each caller had one in flight, and had begun another"
    )
