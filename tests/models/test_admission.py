"""Requests are counted over all workers, in total and per model."""

from contextlib import ExitStack
from copy import copy

import pytest

from serving.errors import Overloaded
from serving.models.admission import Admission
from serving.models.table import Entry

pytestmark = pytest.mark.unit


def fork(shared: Admission, number: int) -> Admission:
    """A new worker. Like a fork it shares the counts and nothing else."""
    shared.add_worker(number)
    return copy(shared)


SLOTS = {"m": 0, "sound": 1, "hangs": 2, "another": 3, **{f"hangs {number}": 4 + number for number in range(4)}}


def entry(name: str) -> Entry:
    return Entry(name, name, "", "", SLOTS[name])


def fill(admission: Admission, model: str, held: ExitStack) -> int:
    """Take slots for the model until it is refused; return how many it got."""
    count = 0
    while True:
        try:
            held.enter_context(admission.model(entry(model)))
        except Overloaded:
            return count
        count += 1


@pytest.mark.parametrize(("hanging", "gets"), [(1, [60]), (2, [60, 30]), (4, [60, 30, 15, 8])])
def test_each_model_that_hangs_gets_half_of_the_free_columns(hanging: int, gets: list[int]) -> None:
    admission = Admission(120, several_models=True)
    with ExitStack() as held:
        assert [fill(admission, f"hangs {number}", held) for number in range(hanging)] == gets
        assert fill(admission, "sound", held) >= gets[-1] // 2


def test_a_single_model_gets_all_slots() -> None:
    with ExitStack() as held:
        assert fill(Admission(5, several_models=False), "m", held) == 5


def test_a_slot_is_free_again_after_an_error() -> None:
    admission = Admission(2, several_models=True)
    for _ in range(2):
        with pytest.raises(KeyError), admission.model(entry("m")):
            raise KeyError


def test_the_total_holds_for_all_workers_and_a_leaving_request_makes_room() -> None:
    shared = Admission(3, several_models=False, workers=3)
    first, second = fork(shared, 7), fork(shared, 8)
    assert [first.enter(), first.enter(), second.enter(), second.enter()] == [True, True, True, False]
    assert shared.total() == 3
    second.leave()
    assert first.enter()
    assert first.last_active > 0


def test_a_models_slots_hold_for_all_workers() -> None:
    shared = Admission(4, several_models=True, workers=2)
    with ExitStack() as held:
        for number in range(2):
            held.enter_context(fork(shared, number).model(entry("hangs")))
        with pytest.raises(Overloaded), shared.model(entry("hangs")):
            pass
        with shared.model(entry("another")):
            pass


def test_requests_of_an_ended_worker_no_longer_count() -> None:
    shared = Admission(2, several_models=True, workers=2)
    worker = fork(shared, 7)
    with ExitStack() as held:
        assert worker.enter()
        assert fill(worker, "m", held) == 1
        shared.remove_worker(7)
        assert shared.total() == 0
        assert fill(fork(shared, 8), "m", held) == 1
        held.pop_all()
