"""When a model whose process died is loaded again, with models that only say that they are loaded.

tests/endpoint/test_crashes has the rest, over HTTP.
"""

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from serving.errors import (
    BackendDied,
    InvalidRequest,
    ModelNotReady,
    ModelRefused,
    ModelRestarting,
    ServingError,
    TritonTimeout,
)
from serving.host.processes import Stub
from serving.host.status import ProcessStatus, write_status
from serving.inference.crashes import Crashes, Trouble
from serving.inference.keeper import CRASHES_ALLOWED, MOST_RELOADS, Keeper, Tritonserver
from tests.support.harness import wait_until

pytestmark = pytest.mark.unit

DIED = BackendDied("Stub process 'm_0_0' is not healthy")
NOW = float("inf")  # after every reload


class FakeModels:
    """Fails a reload with `error`."""

    def __init__(self) -> None:
        self.error: ServingError | None = None
        self.reloads: list[str] = []
        self.dropped: list[str] = []

    def owner(self, stub: Stub, seen: float) -> str | None:
        return None

    def reload(self, name: str) -> None:
        self.reloads.append(name)
        if self.error:
            raise self.error

    def drop(self, name: str) -> None:
        self.dropped.append(name)


class World:
    """A keeper whose tritonserver is this process."""

    def __init__(self, folder: Path) -> None:
        self.status, self.request = folder / "status.json", folder / "restart"
        self.crashes, self.models, self.counted = Crashes(folder / "crashes"), FakeModels(), list[str]()
        self.runs_as(1)
        server = Tritonserver(self.status, self.request)
        self.keeper = Keeper(self.crashes, self.models, folder, server, self.counted.append)
        self.keeper.step()

    def runs_as(self, start: int, pid: int | None = None) -> None:
        write_status(self.status, "ready", {"tritonserver": ProcessStatus(pid or os.getpid(), start)})

    def die(self, name: str = "m", began: float = NOW) -> None:
        self.crashes.report([name], DIED, began)
        self.step_until(lambda: not list(self.crashes.reports()) and self.rests(name), "the report is answered")

    def rests(self, name: str) -> bool:
        """Return whether no reload of the model is in progress."""
        return not self.keeper._history(name).busy

    def step_until(self, condition: Callable[[], object], what: str) -> None:
        def holds() -> object:
            self.keeper.step()
            return condition()

        wait_until(holds, what)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_call_that_began_before_the_last_reload_says_nothing_new(world: World) -> None:
    world.die()
    world.die(began=1.0)
    assert world.models.reloads == ["m"]


def test_a_call_that_began_before_it_was_refused_says_nothing_of_its_next_load(world: World) -> None:
    for _ in range(CRASHES_ALLOWED):
        world.die()
    began = time.monotonic()
    world.die()
    world.crashes.clear("m")
    world.die(began=began)
    assert (world.models.dropped, world.crashes.error(["m"])) == (["m"], None)


def test_a_reported_model_takes_no_call_before_its_reload_begins(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading.Thread, "start", lambda thread: None)
    world.crashes.report(["m"], DIED, NOW)
    world.keeper.step()
    assert not list(world.crashes.reports())
    assert isinstance(world.crashes.error(["m"]), ModelRestarting)


def test_a_call_that_meets_a_reload_is_told_to_repeat(world: World) -> None:
    with pytest.raises(ModelRestarting), world.crashes.watch(lambda: ["m"]):
        world.crashes.set(Trouble("m", "it died"))
        raise ModelNotReady("Request for unknown model: 'm' is not ready")


def test_a_report_that_names_no_process_reloads_no_model_that_lives(world: World) -> None:
    world.crashes.report(["chain", "other", "m"], BackendDied("Failed to obtain the health mutex"), NOW)
    world.step_until(lambda: not list(world.crashes.reports()), "the report is answered")
    assert (world.models.reloads, world.counted) == ([], [])
    assert world.crashes.error(["chain", "other", "m"]) is None


def test_a_model_that_cannot_be_loaded_again_is_refused_with_the_reason(world: World) -> None:
    world.models.error = InvalidRequest("no such weights")
    world.die()
    assert isinstance(world.crashes.error(["m"]), ModelRefused)
    assert "no such weights" in str(world.crashes.error(["m"]))


def test_a_reload_that_times_out_requests_a_restart_of_this_tritonserver(world: World) -> None:
    world.runs_as(7)
    world.models.error = TritonTimeout("late")
    world.crashes.report(["m"], DIED, NOW)
    world.step_until(world.request.exists, "it is asked for")
    assert world.request.read_text().startswith("7 model 'm' cannot be started again")


def test_after_many_reloads_tritonserver_is_restarted(world: World) -> None:
    for number in range(MOST_RELOADS):
        world.die(f"m{number}")
    assert not world.request.exists()
    world.die("last")
    assert f"{MOST_RELOADS} times" in world.request.read_text()


def test_a_new_tritonserver_lifts_every_refusal(world: World) -> None:
    for _ in range(CRASHES_ALLOWED + 1):
        world.die()
    world.runs_as(2, pid=os.getppid())
    world.keeper.step()
    assert world.crashes.error(["m"]) is None
