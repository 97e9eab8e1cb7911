"""Tests the table that the manager writes and the workers read, and that no call uses a model that
has been unloaded."""

import math
import os
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest

from serving.errors import ModelFailed, ModelNotReady, ModelRefused, ModelRestarting
from serving.model_status.models import Entry, Models, Rejection
from serving.model_status.shared_files import Leases, ModelsFile
from serving.model_status.states import (
    ABSENT,
    FAILED,
    LOADING,
    READY,
    REFUSED,
    RESTARTING,
    STATES,
    UNLOADING,
    Event,
)

pytestmark = pytest.mark.unit

PART = Entry("part", "part", "/m/part", "a1", 0, READY)
WHOLE = Entry("whole", "whole", "/m/whole", "a1", 1, READY, parts=("part", "whole"))
ARCHIVE = Entry("n/1", "t.tar.gz", "/m/n", "b2", 2, READY, target="t.tar.gz", url="/u")


def models(*entries: Entry) -> Models:
    return Models({entry.name: entry for entry in entries})


def in_state(state: str) -> Models:
    return Models() if state == ABSENT else models(replace(PART, state=state))


def state_in(table: Models) -> str:
    entry = table.latest(PART)
    return entry.state if entry else ABSENT


def test_read_a_consistent_table_while_the_manager_writes(tmp_path: Path) -> None:
    writer, reader = ModelsFile(tmp_path / "table"), ModelsFile(tmp_path / "table")
    assert reader.look() == Models()
    for number in range(50):
        rejected = (Rejection({"x": str(number)}, ["no"]),)
        written = replace(models(PART, ARCHIVE), rejected=rejected, deaths={"part": number})
        writer.write(written)
        assert reader.look() == written
    assert reader.look() is reader.look(), "it is parsed once"


def test_read_names_that_are_not_utf_8_and_infinite_times(tmp_path: Path) -> None:
    table = ModelsFile(tmp_path / "table")
    name = os.fsdecode(b"\xff")
    entry = replace(PART, name=name, folder=f"/m/{name}")
    written = replace(models(entry), rejected=(Rejection({name: "1"}, ["no"], until=math.inf),))
    table.write(written)
    assert table.look() == written


def test_find_a_loaded_archive_by_its_target_and_by_its_name() -> None:
    table = models(PART, ARCHIVE)
    assert (
        table.by_target["t.tar.gz"]
        == table.by_target["n/1"]
        == table.by_triton_name["t.tar.gz"]
        == ARCHIVE
    )
    leaving = models(PART, replace(ARCHIVE, state=UNLOADING))
    assert leaving.by_target.keys() == leaving.current.keys() == {"part"}


@pytest.mark.parametrize(
    ("state", "error"),
    [
        (LOADING, ModelNotReady),
        (RESTARTING, ModelRestarting),
        (REFUSED, ModelRefused),
        (FAILED, ModelFailed),
    ],
)
def test_report_an_ensemble_as_not_ready_while_a_part_is_not(
    state: str, error: type[Exception]
) -> None:
    broken = replace(PART, state=state, reason="its reason", until=time.monotonic() + 60)
    table = models(broken, WHOLE, ARCHIVE)
    unready = table.error(WHOLE)
    assert isinstance(unready, error) and "'part'" in str(unready)
    assert state == LOADING or "its reason" in str(unready)
    assert table.error(ARCHIVE) is None


def call(
    table: ModelsFile, leases: Leases, row: int, used: list[int]
) -> Generator[None, None, None]:
    """Call a model in the steps of Registry.use: look it up, count the call, look it up again, use
    it, end."""
    entry = table.look().ready.get("part")
    yield
    if entry is None:
        return
    leases.add(row, entry.column, 1, 9)
    yield
    again = table.look().ready.get("part")
    yield
    if again is not None and again.load_id == entry.load_id:
        used.append(row)
        yield
        used.remove(row)
    leases.add(row, entry.column, -1, -9)


def unload(table: ModelsFile, leases: Leases, used: list[int]) -> Generator[None, None, None]:
    """Take the manager's steps to unload a model: mark it, wait for the calls, unload it."""
    if table.look().latest(PART) is None:
        return
    table.write(table.look().moved(PART, Event.UNLOAD))
    yield
    while leases.requests(PART.column):
        yield
    assert not used, "a call uses a model that is being unloaded"
    assert table.look().entries["part"].state == UNLOADING
    table.write(table.look().moved(PART, Event.REMOVE))


def evict(table: ModelsFile, leases: Leases, used: list[int]) -> Generator[None, None, None]:
    """Take the manager's steps to evict a model: choose it, look for calls, unload it."""
    for _ in ("choose", "unload"):
        if leases.requests(PART.column):
            return
        yield
    yield from unload(table, leases, used)


def want(
    table: ModelsFile, leases: Leases, row: int, used: list[int], answered: list[int]
) -> Generator[None, None, None]:
    """Call a model on demand until it answers. If it is gone, the manager loads it again."""
    while row not in answered:
        if "part" not in table.look().entries:
            table.write(models(replace(PART, load_id="another")))
            yield
        for _ in call(table, leases, row, used):
            if row in used:
                answered.append(row)
            yield
        yield


def happen(table: ModelsFile, event: Event) -> Generator[None, None, None]:
    """Apply an event to the model. If it adds or removes the model, wait until no unload is in
    progress, because the manager holds the model's lock then."""
    if event in (Event.ADD, Event.SERVE, Event.REMOVE):
        while UNLOADING in [entry.state for entry in table.look().entries.values()]:
            yield
    table.write(table.look().moved(PART, event))
    yield


def loaded(folder: Path, state: str = READY) -> tuple[ModelsFile, Leases, list[int]]:
    """Return a table in which the model has this state, the leases of its calls, and an empty list,
    in which callers record what they use."""
    table = ModelsFile(folder / "table")
    table.write(in_state(state))
    return table, Leases(None, 2), []


def play(order: tuple[int, ...], actors: list[Generator[None, None, None]], leases: Leases) -> None:
    """Let the actors take their steps in the given order, then finish them all. Assert that no
    lease is left."""
    for number in (*order, *[0, 1, 2] * 12):
        next(actors[number], None)
    assert all(next(actor, "ended") == "ended" for actor in actors)
    assert leases.requests(PART.column) == leases.bytes(PART.column) == 0


def test_never_unload_a_model_in_use_in_any_order_of_steps(tmp_path: Path) -> None:
    steps = (0, 0, 0, 0, 1, 1, 1, 1, 2, 2)
    # both callers do the same, so the other half of the orders would only swap them
    orders = [order for order in _distinct(steps) if order.index(0) < order.index(1)]
    assert len(orders) == 1575
    for order in orders:
        table, leases, used = loaded(tmp_path)
        calls = [call(table, leases, row, used) for row in (0, 1)]
        play(order, [*calls, unload(table, leases, used)], leases)


def test_evict_no_model_in_use_and_answer_all_that_want_it(tmp_path: Path) -> None:
    for order in _distinct((0, 0, 0, 0, 1, 2, 2, 2, 2)):
        table, leases, used = loaded(tmp_path)
        answered: list[int] = []
        callers = [want(table, leases, row, used, answered) for row in (0, 1)]
        play(order, [*callers, evict(table, leases, used)], leases)
        assert set(answered) == {0, 1}
        assert table.look().entries["part"].state == READY


# tests/faults causes each event in a running server, but not in each state: some states last only
# milliseconds, and a refused model is reloaded only after five minutes.
TRANSITIONS: list[tuple[Event, str, str]] = []
for each_event in Event:
    TRANSITIONS += [(each_event, *states) for states in each_event.value.items()]


@pytest.mark.parametrize(("event", "before", "after"), TRANSITIONS)
def test_never_unload_a_model_in_use_whatever_happens_to_it(
    event: Event, before: str, after: str, tmp_path: Path
) -> None:
    assert state_in(in_state(before).moved(PART, event)) == after
    for order in _distinct((0, 0, 0, 0, 1, 2, 2)):
        table, leases, used = loaded(tmp_path, before)
        actors = [call(table, leases, 0, used), happen(table, event), unload(table, leases, used)]
        play(order, actors, leases)
        # a load may begin or end after the unload
        assert state_in(table.look()) in (ABSENT, after)


@pytest.mark.parametrize("event", Event)
def test_ignore_an_event_that_the_state_of_a_model_does_not_allow(event: Event) -> None:
    for state in {ABSENT, *STATES} - event.value.keys():
        table = in_state(state)
        assert table.moved(PART, event, reason="another") is table


@pytest.mark.parametrize("event", Event)
def test_keep_a_later_load_unless_the_event_begins_another(event: Event) -> None:
    replaced = models(replace(PART, load_id="another"))
    if ABSENT in event.value:
        assert state_in(replaced.moved(PART, event)) == event.value[ABSENT]
    else:
        assert replaced.moved(PART, event) is replaced


def test_answer_only_while_ready_and_serve_again_after_each_trouble() -> None:
    states = (ABSENT, *STATES)
    leads_to = {
        state: {after for _, before, after in TRANSITIONS if before == state} for state in states
    }
    assert leads_to[UNLOADING] == {UNLOADING, ABSENT}
    for state in states:
        assert ("part" in in_state(state).ready) == (state == READY)
        reached = {state}
        while more := set().union(*(leads_to[each] for each in reached)) - reached:
            reached |= more
        assert {ABSENT, READY} <= reached


def _distinct(steps: tuple[int, ...]) -> Generator[tuple[int, ...], None, None]:
    """Yield each different order of the steps once."""
    if not steps:
        yield ()
    for first in sorted(set(steps)):
        left = list(steps)
        left.remove(first)
        yield from ((first, *rest) for rest in _distinct(tuple(left)))


def test_count_requests_of_all_workers_but_not_of_dead_ones(tmp_path: Path) -> None:
    worker, manager = Leases(tmp_path / "leases", 3), Leases(tmp_path / "leases", 3)
    worker.add(1, 7, 1, 10)
    worker.add(2, 7, 2, 200)
    assert (manager.requests(7), manager.bytes(7), manager.last_use(7)) == (3, 210, 0)
    before = time.monotonic()
    worker.touch(7)
    worker.clear(2)
    assert (manager.requests(7), manager.bytes(7), manager.requests(6)) == (1, 10, 0)
    assert before <= manager.last_use(7) <= time.monotonic()
