"""Tests the policy of recovery. The Triton here only reports that it has loaded a model."""

import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from serving.budget import NEVER, Deadline
from serving.errors import InvalidRequest, ModelAlreadyLoaded, ServingError, TritonTimeout
from serving.host.files import ProcessStatus, write_status
from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.on_post import OnPost
from serving.model_lifecycle.recovery import CRASHES_ALLOWED, Recovery, Report
from serving.model_status.models import Entry
from serving.model_status.shared_files import ModelsFile
from serving.model_status.states import (
    READY,
    REFUSED,
    REFUSING,
    RELOADED,
    RELOADING,
    UNLOADING,
    Event,
)
from serving.settings.settings import Settings
from serving.triton.connection import IndexEntry
from serving.triton.gateway import TritonGateway
from serving.triton.quirks import MOST_RELOADS
from tests.repository.test_model_config import ONNX, X, Y, write
from tests.support.harness import PATIENCE, wait_until
from tests.support.started import kill

pytestmark = pytest.mark.unit

DIED = "Stub process 'm_0_0' is not healthy"
NOW = float("inf")  # a time later than every reload
NAMES = ["m", "other", "chain", "last", *(f"m{number}" for number in range(MOST_RELOADS))]


class FakeTriton(TritonGateway):
    """A Triton that only reports loads. It fails a load with `error`."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", 1)
        self.error: ServingError | None = None
        self.goes_on = threading.Event()
        self.goes_on.set()
        self.loads: list[str] = []
        self.unloads: list[str] = []

    def load(self, model: str, timeout: float) -> tuple[str, ...]:
        self.loads.append(model)
        self.goes_on.wait(PATIENCE)
        if self.error:
            raise self.error
        return ("1",)

    def unload(self, model: str) -> None:
        self.unloads.append(model)

    def is_live(self, deadline: Deadline = NEVER) -> bool:
        return True


class World:
    """The models NAMES, of which `chain` calls the first two, and a process that sleeps in place of
    tritonserver."""

    def __init__(self, folder: Path) -> None:
        self.settings, self.triton = replace(Settings(), run_dir=folder, workers=1), FakeTriton()
        self.server = subprocess.Popen(["sleep", "1000"], process_group=0)
        write_status(
            self.settings.status_file, "ready", {"tritonserver": ProcessStatus(self.server.pid, 1)}
        )
        self.manager = Manager(self.settings, self.triton)
        for column, name in enumerate(NAMES):
            self.manager.move(Entry(name, name, "", "load", column), Event.SERVE)
        self.recovery = Recovery(self.manager)
        self.recovery.watch(self.server.pid)
        self.recovery.step()

    def state(self, name: str = "m") -> str:
        return ModelsFile(self.settings.models_file).look().entries[name].state

    def deaths(self) -> dict[str, int]:
        return dict(ModelsFile(self.settings.models_file).look().deaths)

    def reason(self, name: str = "m") -> str:
        return str(ModelsFile(self.settings.models_file).look().entries[name].error())

    def die(self, name: str = "m", began: float = NOW) -> None:
        self.recovery.report(Report([name], DIED, began))
        self.recovery.step()
        self.step_until(
            lambda: not {RELOADING, RELOADED, REFUSING} & {self.state(each) for each in NAMES},
            "nothing is loaded",
        )

    def step_until(self, condition: Callable[[], object], what: str) -> None:
        def holds() -> object:
            self.recovery.step()
            return condition()

        wait_until(holds, what)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    new = World(tmp_path)
    yield new
    new.triton.goes_on.set()
    kill(new.server)


def test_reload_and_serve_a_model_that_died(world: World) -> None:
    world.die()
    assert (world.triton.unloads, world.triton.loads, world.deaths()) == (["m"], ["m"], {"m": 1})
    assert world.state() == READY


def test_hold_new_calls_during_a_reload(world: World) -> None:
    world.triton.goes_on.clear()
    world.recovery.report(Report(["m"], DIED, NOW))
    world.recovery.step()
    assert world.state() == RELOADING
    entry = world.manager.models().entries["m"]
    world.manager.move(entry, Event.UNLOAD)
    world.manager.move(entry, Event.RELOAD_ENDED)
    world.recovery.step()
    assert world.state() == UNLOADING


def test_ignore_a_crash_seen_by_a_call_older_than_the_last_reload(world: World) -> None:
    world.die()
    world.die(began=1.0)
    assert world.triton.loads == ["m"]


def test_ignore_a_crash_seen_by_a_call_to_an_earlier_tritonserver(world: World) -> None:
    called = time.monotonic()
    for pid in (1, 2):
        world.manager.record_server(pid)
    entry = world.manager.models().entries["m"]
    world.manager.move(entry, Event.LOADED)
    world.die(began=called)
    assert (world.state(), world.triton.loads) == (READY, [])


def test_only_count_a_death_during_an_unload(world: World) -> None:
    """This ends the streams that the unload waits for."""
    world.manager.move(world.manager.models().entries["m"], Event.UNLOAD)
    world.die()
    assert (world.triton.loads, world.state(), world.deaths()) == ([], UNLOADING, {"m": 1})


def test_refuse_only_the_model_that_dies_too_often(world: World) -> None:
    for _ in range(CRASHES_ALLOWED + 1):
        world.die()
    assert world.state() == REFUSED
    assert "'m'" in world.reason() and "'m_0_0'" in world.reason()
    assert (len(world.triton.unloads), len(world.triton.loads)) == (
        CRASHES_ALLOWED + 2,
        CRASHES_ALLOWED + 1,
    )
    assert world.state("other") == READY


def test_ignore_a_crash_from_before_the_refusal_after_the_next_load(world: World) -> None:
    for _ in range(CRASHES_ALLOWED):
        world.die()
    began = time.monotonic()
    world.die()
    entry = Entry("m", "m", "", "another load", 0, began=time.monotonic())
    world.manager.move(entry, Event.SERVE)
    world.die(began=began)
    assert world.state() == READY and world.deaths() == {"m": CRASHES_ALLOWED + 1}


def test_reload_only_the_ensemble_part_that_died(world: World) -> None:
    world.recovery.report(Report(["chain", "other", "m"], DIED, NOW))
    world.step_until(lambda: world.triton.loads, "something is loaded")
    assert world.triton.loads == ["m"]


def test_reload_no_living_model_on_a_report_without_a_process(world: World) -> None:
    world.recovery.report(Report(["chain", "other", "m"], "Failed to obtain the health mutex", NOW))
    world.recovery.step()
    assert (world.triton.loads, world.deaths(), world.state("chain")) == ([], {}, READY)


def test_refuse_a_model_that_cannot_be_reloaded_with_the_reason(world: World) -> None:
    world.triton.error = InvalidRequest("no such weights")
    world.die()
    assert world.state() == REFUSED
    assert "no such weights" in world.reason()


def test_kill_tritonserver_if_a_reload_is_too_late(world: World) -> None:
    world.triton.error = TritonTimeout("late")
    world.recovery.report(Report(["m"], DIED, NOW))
    world.recovery.step()
    assert world.server.wait(PATIENCE) == -signal.SIGKILL


def test_restart_tritonserver_after_many_reloads(world: World) -> None:
    for number in range(MOST_RELOADS):
        world.die(f"m{number}")
    assert world.server.poll() is None
    world.die("last")
    assert world.server.wait(PATIENCE) == -signal.SIGKILL


def test_end_a_refusal_in_time_also_with_a_new_manager(world: World) -> None:
    entry = Entry("m", "m", "", "load", 0)
    world.manager.update(entry, state=REFUSED, reason="it died", until=1.0)
    recovery = Recovery(Manager(world.settings, world.triton))
    world.recovery = recovery
    world.step_until(lambda: world.state() == READY, "it is served again")
    assert world.triton.loads == ["m"]


class Emptied(FakeTriton):
    """A Triton that has no model loaded."""

    def index(self) -> list[IndexEntry]:
        return []


def test_allow_a_load_after_an_unload_gave_up_but_no_second_load(tmp_path: Path) -> None:
    root = tmp_path / "archives"
    settings = replace(
        Settings(), run_dir=tmp_path, model_repositories=(root,), device="cpu", workers=1
    )
    write(root / "a/model/net", f"{ONNX} {X} {Y}")
    write_status(settings.status_file, "ready", {"tritonserver": ProcessStatus(2**22 + 1, 1)})
    triton = Emptied()
    manager = Manager(settings, triton)
    earlier = Entry("n", "n", "", "earlier", 0, target="n")
    manager.move(earlier, Event.ADD)
    manager.move(earlier, Event.UNLOAD)
    policy = OnPost(manager)
    policy.load("n", str(root / "a/model"), "n")
    assert (triton.unloads, triton.loads) == (["n"], ["n"])
    entry = manager.get("n")
    assert entry and (entry.state, entry.load_id != "earlier") == (READY, True)
    with pytest.raises(ModelAlreadyLoaded):
        policy.load("n", str(root / "a/model"), "n")
