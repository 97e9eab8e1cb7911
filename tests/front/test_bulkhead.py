"""No model takes the places of all others."""

import pytest

from serving.errors import Overloaded
from serving.front.bulkhead import Bulkhead


def test_a_model_has_no_more_places_than_its_limit_in_all_workers() -> None:
    shared = Bulkhead(limit=2, places=2)
    held = [shared.place("hangs"), shared.place("hangs")]
    for worker, place in enumerate(held):
        shared.begin_worker(worker)
        place.__enter__()
    with pytest.raises(Overloaded, match="'hangs'"), shared.place("hangs"):
        pass
    with shared.place("another"):
        pass


def test_what_an_ended_worker_had_in_work_is_no_more_when_another_one_has_its_place() -> None:
    shared = Bulkhead(limit=1, places=2)
    shared.begin_worker(1)
    held = shared.place("m")
    held.__enter__()
    shared.begin_worker(1)
    with shared.place("m"):
        pass


def test_a_place_is_free_again_after_an_error() -> None:
    alone = Bulkhead(limit=1)
    for _ in range(2):
        with pytest.raises(KeyError), alone.place("m"):
            raise KeyError
