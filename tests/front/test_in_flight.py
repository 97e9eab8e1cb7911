"""What is in work is counted by all workers together, and ends with a worker."""

from copy import copy

from serving.front.in_flight import InFlight


def in_worker(number: int, shared: InFlight, enters: int) -> list[bool]:
    """What a worker is told, which ends without leaving. As a fork it shares the counts and nothing else; a real one
    would crash now and then beside the threads of other tests."""
    worker = copy(shared)
    worker.begin_worker(number)
    return [worker.enter() for _ in range(enters)]


def test_no_more_than_the_limit_are_in_work_in_all_workers() -> None:
    shared = InFlight(limit=3, places=3)
    assert in_worker(1, shared, 2) == [True, True]
    assert in_worker(2, shared, 2) == [True, False]
    assert shared.total() == 3


def test_what_an_ended_worker_had_in_work_is_no_more_when_another_one_has_its_place() -> None:
    shared = InFlight(limit=2, places=2)
    assert in_worker(1, shared, 2) == [True, True]
    assert in_worker(1, shared, 1) == [True]
    assert shared.total() == 1


def test_who_leaves_makes_room() -> None:
    alone = InFlight(limit=1)
    assert [alone.enter(), alone.enter()] == [True, False]
    alone.leave()
    assert alone.enter()
    assert alone.last_active > 0
