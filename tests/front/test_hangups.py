"""Who leaves is noticed, and nobody else."""

import socket
import threading
from collections.abc import Iterator

import pytest

from serving.front.hangups import HangUps
from tests.support.harness import PATIENCE

pytestmark = pytest.mark.unit

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    ours, theirs = socket.socketpair()
    yield ours, theirs
    ours.close()
    theirs.close()


def test_the_end_of_a_connection_calls_back_once(pair: Pair) -> None:
    ours, theirs = pair
    calls, called = [], threading.Event()
    hang_ups = HangUps()

    def note() -> None:
        calls.append(1)
        called.set()

    hang_ups.watch(ours, note)
    theirs.sendall(b"data is no end")
    assert not called.wait(0.1)
    theirs.close()
    assert called.wait(PATIENCE)
    hang_ups.forget(ours)
    assert calls == [1]


def test_a_forgotten_connection_calls_nobody_and_its_number_may_be_another_s(pair: Pair) -> None:
    ours, theirs = pair
    hang_ups, called = HangUps(), threading.Event()
    for _ in range(50):
        first, other = socket.socketpair()
        hang_ups.watch(first, called.set)
        hang_ups.forget(first)
        other.close()
        first.close()
    hang_ups.watch(ours, called.set)
    assert not called.wait(0.1)
    theirs.close()
    assert called.wait(PATIENCE)
