"""Tests each fault separately under constant mixed load. Every request gets one answer in time: the
right one or an honest error."""

import os
from collections.abc import Iterator

import pytest

from tests.faults import trial
from tests.faults.calls import learn, make_models
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
def server(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Confined]:
    """Run a server. The parameter is its SERVE_MODELS."""
    folder = tmp_path_factory.mktemp("faults")
    (folder / "models").mkdir()
    make_models(folder / "models")
    variables = {
        "SERVE_HANG_TIMEOUT": "5",
        "SERVE_MODELS": request.param,
        "SERVE_WORKERS": "2",
        "SERVE_REQUEST_TIMEOUT": str(DEADLINE),
    }
    running = Confined(folder, folder / "models", **variables)
    running.wait_ready()
    yield running
    assert running.stop() == 0
    running.wait_gone()
    assert trial.logged_twice(running.log, "fault") == []


@pytest.fixture(scope="module")
def callers(server: Confined) -> Iterator[Callers]:
    with Callers(server.url, learn(server), callers=6, deadline=DEADLINE, pause=PAUSE) as running:
        yield running


@pytest.mark.parametrize(
    ("server", "fault"),
    [pytest.param(fault.models, fault, id=fault.name) for fault in FAULTS],
    indirect=["server"],
)
def test_answer_every_request_despite_a_fault(
    fault: Fault, server: Confined, callers: Callers
) -> None:
    outcome = trial.run(fault, server, callers)
    assert outcome.mistakes == ()
    assert outcome.verdicts[RIGHT] > 0
    assert outcome.verdicts[CUT] <= 2 * callers.callers, (
        "each caller had one in flight, and had begun another"
    )
