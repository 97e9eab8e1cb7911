"""Models that hang leave places for the others."""

from contextlib import ExitStack

import pytest

from serving.errors import Overloaded
from serving.front.bulkhead import Bulkhead


def most(bulkhead: Bulkhead, model: str, held: ExitStack) -> int:
    """How many places the model gets now; it keeps them."""
    count = 0
    while True:
        try:
            held.enter_context(bulkhead.place(model))
        except Overloaded as err:
            assert f"'{model}'" in str(err)
            return count
        count += 1


@pytest.mark.parametrize(("hanging", "gets"), [(1, [60]), (2, [60, 30]), (4, [60, 30, 15, 8])])
def test_models_that_hang_leave_the_others_as_many_places_as_the_last_one_has(hanging: int, gets: list[int]) -> None:
    bulkhead = Bulkhead(120, alone=False)
    with ExitStack() as held:
        assert [most(bulkhead, f"hangs {number}", held) for number in range(hanging)] == gets
        assert most(bulkhead, "sound", held) >= gets[-1] // 2


def test_a_model_that_is_alone_has_all_places() -> None:
    with ExitStack() as held:
        assert most(Bulkhead(5, alone=True), "m", held) == 5


def test_the_places_that_a_model_has_in_all_workers_count() -> None:
    shared = Bulkhead(4, alone=False, rows=2)
    held = [shared.place("hangs"), shared.place("hangs")]
    for worker, place in enumerate(held):
        shared.begin_worker(worker)
        place.__enter__()
    with pytest.raises(Overloaded, match="'hangs'"), shared.place("hangs"):
        pass
    with shared.place("another"):
        pass


def test_what_an_ended_worker_had_in_work_is_no_more_when_another_one_has_its_place() -> None:
    shared = Bulkhead(2, alone=False, rows=2)
    shared.begin_worker(1)
    held = shared.place("m")
    held.__enter__()
    shared.begin_worker(1)
    with shared.place("m"):
        pass


def test_a_place_is_free_again_after_an_error() -> None:
    shared = Bulkhead(2, alone=False)
    for _ in range(2):
        with pytest.raises(KeyError), shared.place("m"):
            raise KeyError
