"""Tests the policy of on-demand mode: which models it loads, evicts and rejects. The Triton here
only reports loads."""

import math
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import (
    InvalidRequest,
    ModelFailed,
    ModelNotFound,
    ModelNotReady,
    OutOfMemory,
    ServingError,
)
from serving.host.files import ProcessStatus, write_status
from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.on_demand import LOADS_AT_ONCE, SLOW_SECONDS, LookUps, OnDemand
from serving.model_status.models import Entry, Models
from serving.model_status.shared_files import ModelsFile
from serving.model_status.states import READY
from serving.repository.cache import Cache
from serving.repository.source import FolderSource
from serving.repository.unpacking import BadArchive
from serving.settings.settings import Settings
from serving.triton.connection import IndexEntry
from tests.model_lifecycle.test_on_demand import pack
from tests.model_lifecycle.test_recovery import FakeTriton
from tests.repository.test_model_config import ONNX, X, Y, write
from tests.support.harness import wait_until

pytestmark = pytest.mark.unit

# seconds since the last use; negative, so that a model stays in use during the whole test
IN_FUTURE = -1000.0
SIZE, MEMORY = 100, 350  # bytes of each model, and of memory: room for three models


class Triton(FakeTriton):
    """A Triton that unloads a model immediately."""

    def index(self) -> list[IndexEntry]:
        return []


class Measured(OnDemand):
    """A policy that measures SIZE for each loaded model."""

    keeps_memory = False

    def _bytes_used(self, pid: int, name: str) -> int:
        entries = self.manager.models().entries
        staying = {e.name for e in entries.values() if e.load_id not in self._victims}
        return SIZE * len((staying | self._promised.keys()) - {name})

    def bytes_held(self, entry: Entry, sizes: Mapping[str, int]) -> int:
        is_held = self.keeps_memory or self.manager.is_current(entry)
        return SIZE if is_held else 0

    def _measure(self, entry: Entry) -> None:
        self.manager.update(entry, bytes=SIZE)
        self._measured[entry.target, entry.signature] = SIZE


class World:
    def __init__(self, folder: Path) -> None:
        self.repository = folder / "repository"
        settings = replace(
            Settings(),
            models="on-demand",
            run_dir=folder,
            workers=1,
            model_repositories=(self.repository,),
            load_models=("kept",),
            device="cpu",
        )
        write_status(settings.status_file, "ready", {"tritonserver": ProcessStatus(2**22 + 1, 1)})
        self.settings, self.triton = settings, Triton()
        for name in ("kept", "a", "b", "c", "d"):
            self.add(name)
        self.manager = Manager(settings, self.triton)
        self.policy = Measured(self.manager)
        self.policy.memory = MEMORY
        for name in ("kept", "a", "b", "c", "d"):
            self.measure(name, SIZE)

    def add(self, name: str) -> None:
        write(self.repository / name, f"{ONNX} {X} {Y}")

    def measure(self, name: str, size: int) -> None:
        """Pretend that the model was measured in an earlier load."""
        found = self.policy._source.find(name)
        assert found
        self.policy._measured[name, found.signature] = size

    def load(self, name: str) -> ServingError | None:
        """Load a model as a call would. Return the error with which the call is rejected."""
        self.policy.want(name)
        wait_until(lambda: name not in self.table().loading, f"the load of {name} has ended")
        table = self.table()
        rejected = [replace(each, until=math.inf) for each in table.rejected]
        return replace(table, rejected=tuple(rejected)).rejection(name)

    def table(self) -> Models:
        return ModelsFile(self.settings.models_file).look()

    def ready(self) -> set[str]:
        return {entry.name for entry in self.table().entries.values() if entry.state == READY}

    def age(self, *names: str, seconds: float = 60.0) -> None:
        """Move the last use of all models into the past, furthest for the first one."""
        for number, name in enumerate(names):
            entry = self.manager.get(name)
            assert entry
            past = time.monotonic() - seconds + number
            self.manager.leases._last_use[entry.column] = int(past * 1e9)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    new = World(tmp_path)
    yield new
    new.triton.goes_on.set()


def fill(world: World) -> None:
    for name in ("kept", "a", "b"):
        assert world.load(name) is None
    world.age("kept", "a", "b")


def test_evict_the_least_recently_used_model_only(world: World) -> None:
    fill(world)
    assert world.load("c") is None
    assert world.ready() == {"kept", "b", "c"}
    assert world.table().counts["evictions"] == 1


@pytest.mark.parametrize("reason", ["lease", "just used", "young session"])
def test_spare_a_model_that_is_in_use(world: World, reason: str) -> None:
    fill(world)
    entry = world.manager.get("a")
    assert entry
    if reason == "lease":
        world.manager.leases.add(0, entry.column, 1, 0)
    elif reason == "just used":
        world.age("a", seconds=IN_FUTURE)
    else:
        world.manager.update(entry, idle=1000.0)
    assert world.load("c") is None
    assert world.ready() == {"kept", "a", "c"}


def test_spare_a_chosen_model_that_is_called_before_its_unload(world: World) -> None:
    fill(world)
    victims = world.policy._choose_victims(world.manager.pid(), "c", SIZE)
    assert [victim.name for victim in victims] == ["a"]
    world.manager.leases.add(0, victims[0].column, 1, 0)
    world.policy._evict(victims)
    assert world.ready() == {"kept", "a", "b"}
    world.manager.leases.add(0, victims[0].column, -1, 0)
    assert world.load("c") is None
    assert world.ready() == {"kept", "b", "c"}


def test_evict_no_model_if_all_were_used_just_now(world: World) -> None:
    fill(world)
    world.age("a", "b", seconds=IN_FUTURE)
    assert isinstance(world.load("c"), ModelNotReady)
    assert world.ready() == {"kept", "a", "b"}
    assert world.triton.unloads == []


def test_answer_507_if_no_model_may_be_evicted(world: World) -> None:
    fill(world)
    world.policy._pinned = ["kept", "a", "b"]
    assert isinstance(world.load("c"), OutOfMemory)
    assert world.ready() == {"kept", "a", "b"}


def test_refuse_a_model_that_is_too_large_alone_without_evictions(world: World) -> None:
    fill(world)
    world.measure("c", MEMORY + 1)
    error = world.load("c")
    assert isinstance(error, OutOfMemory) and "never" in str(error)
    assert world.ready() == {"kept", "a", "b"}


def test_stop_evicting_models_that_keep_their_memory(world: World) -> None:
    fill(world)
    world.measure("c", 2 * SIZE)
    world.policy.keeps_memory = True
    error = world.load("c")
    assert isinstance(error, OutOfMemory) and "keeps memory" in str(error)
    assert world.ready() == {"kept"}
    with pytest.raises(OutOfMemory):
        world.policy.want("c")


def test_keep_memory_free_for_the_next_load_after_an_eviction(world: World) -> None:
    world.policy.memory = 4 * SIZE
    for name in ("kept", "a", "b", "c"):
        assert world.load(name) is None
    world.age("kept", "a", "b", "c")
    world.policy._keep_free()
    assert len(world.ready()) == 4
    assert world.load("d") is None
    world.policy._keep_free()
    assert world.ready() == {"kept", "c", "d"}


def test_look_up_a_missing_name_once_and_leave_the_table_as_it_is(world: World) -> None:
    fill(world)
    before = world.table()
    with pytest.raises(ModelNotFound):
        world.policy.want("absent")
    world.add("absent")
    with pytest.raises(ModelNotFound):
        world.policy.want("absent")
    assert world.table() == before


def test_limit_how_many_names_are_looked_up_per_second(world: World) -> None:
    look_ups = LookUps(world.policy._source, most=2, seconds=1000.0)
    for name in ("absent", "missing"):
        with pytest.raises(ModelNotFound):
            look_ups.find(name)
    with pytest.raises(ModelNotFound):
        look_ups.find("absent")
    with pytest.raises(ModelNotReady):
        look_ups.find("a")


def test_remember_a_bounded_number_of_missing_names(world: World) -> None:
    look_ups = LookUps(world.policy._source, most=10_000)
    for number in range(10_000):
        with pytest.raises(ModelNotFound):
            look_ups.find(f"absent{number}")
    assert len(look_ups._refused) == 4096


def test_remember_for_a_while_why_a_name_could_not_be_looked_up(world: World) -> None:
    look_ups = LookUps(world.policy._source, most=1, seconds=1000.0)
    world.repository.rename(world.repository.with_name("away"))
    for _ in range(2):
        with pytest.raises(ModelNotReady, match="cannot be read"):
            look_ups.find("a")


def test_try_a_failed_load_again_later_each_time_or_when_it_changed(world: World) -> None:
    world.triton.error = InvalidRequest("no such weights")
    for seconds in (30, 60, 120):
        error = world.load("a")
        assert isinstance(error, ModelFailed) and "no such weights" in str(error)
        (rejection,) = world.table().rejected
        assert rejection.seconds == seconds
        with pytest.raises(ModelFailed):
            world.policy.want("a")
        over = replace(rejection, until=time.monotonic())
        world.policy._replace_rejection("a", over)
        world.policy._look_ups._refused.clear()
    world.triton.error = InvalidRequest("still none")
    world.load("a")
    (world.repository / "a/1/model.onnx").touch()
    world.measure("a", SIZE)
    world.triton.error = None
    assert world.load("a") is None
    assert world.table().rejected == ()


def test_look_up_an_unchanged_rejected_model_only_once_in_a_while(world: World) -> None:
    world.policy._look_ups = LookUps(world.policy._source, most=2, seconds=1000.0)
    world.triton.error = InvalidRequest("no such weights")
    world.load("a")
    for _ in range(10):
        with pytest.raises(ModelFailed, match="no such weights"):
            world.policy.want("a")
    with pytest.raises(ModelNotReady, match="too many models are looked up"):
        world.policy.want("b")


def test_begin_one_load_for_all_callers(world: World) -> None:
    world.triton.goes_on.clear()
    callers = [threading.Thread(target=world.policy.want, args=("a",)) for _ in range(20)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    wait_until(lambda: world.triton.loads, "it is being loaded")
    world.triton.goes_on.set()
    wait_until(lambda: world.ready() == {"a"}, "it is loaded")
    assert world.triton.loads == ["a"]
    wait_until(lambda: world.table().loading == (), "no load is in progress")


def test_begin_another_load_beside_a_slow_one(world: World) -> None:
    world.policy.memory = 5 * SIZE
    world.triton.goes_on.clear()
    for name in ("kept", "a", "b", "c", "d"):
        world.policy.want(name)
    wait_until(lambda: len(world.triton.loads) == LOADS_AT_ONCE, "as many loads as may begin")
    assert "d" not in world.triton.loads
    assert set(world.table().loading) == {"kept", "a", "b", "c", "d"}
    world.policy._loading["a"] -= SLOW_SECONDS
    world.policy._begin_loads()
    wait_until(lambda: "d" in world.triton.loads, "another load begins")


def test_forget_the_measured_size_of_a_model_that_has_changed(world: World) -> None:
    assert world.load("a") is None
    (world.repository / "b/1/model.onnx").touch()
    error = world.load("b")  # the estimate of its size is larger than MEMORY
    assert isinstance(error, OutOfMemory) and "never" in str(error)


def test_keep_no_more_unpacked_bytes_than_allowed(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        pack(tmp_path / "models", number, **{"multiply/weights": "x" * 10_000})
    served: list[Path] = []
    cache = Cache(tmp_path / "unpacked", 25_000, lambda: served)
    source = FolderSource(tmp_path / "models", cache)
    folders = {}
    for number in (1, 2, 1, 3):
        found = source.find(f"m{number}")
        assert found
        with source.archive(found) as archive:
            folders[number] = archive.root
    assert [number for number, folder in folders.items() if folder.is_dir()] == [1, 3]


def test_remove_nothing_for_a_model_that_exceeds_the_limit_alone(tmp_path: Path) -> None:
    for number, size in ((1, 10_000), (2, 30_000)):
        pack(tmp_path / "models", number, **{"multiply/weights": "x" * size})
    source = FolderSource(tmp_path / "models", Cache(tmp_path / "unpacked", 25_000, list))
    first, large = source.find("m1"), source.find("m2")
    assert first and large
    with source.archive(first) as archive:
        pass
    with pytest.raises(BadArchive, match="SERVE_UNPACKED_MB"), source.archive(large):
        pass
    assert archive.root.is_dir()
