"""When a streamed reply is over: tests/endpoint/test_streaming has the same over HTTP, but for these two."""

import socket
import threading

import pytest

from serving.front.streams import Ending, HangUps
from tests.support.harness import PATIENCE

pytestmark = pytest.mark.unit


def test_a_stream_is_closed_once_before_its_end_is_sent() -> None:
    closed: list[str] = []
    response = Ending(iter([b"one", b"two"]))
    response.call_on_close(lambda: closed.append("closed"))
    parts = response.iter_encoded()
    assert (next(parts), next(parts), closed) == (b"one", b"two", [])
    assert (next(parts, None), closed) == (None, ["closed"])
    response.close()
    assert closed == ["closed"]


def test_a_forgotten_connection_calls_nobody_even_if_another_gets_its_number() -> None:
    hang_ups, called = HangUps(), threading.Event()
    for _ in range(50):
        first, other = socket.socketpair()
        hang_ups.watch(first, called.set)
        hang_ups.forget(first)
        other.close()
        first.close()
    ours, theirs = socket.socketpair()
    with ours, theirs:
        hang_ups.watch(ours, called.set)
        theirs.sendall(b"data is not an end")
        assert not called.wait(0.1)
        theirs.close()
        assert called.wait(PATIENCE)
        hang_ups.forget(ours)
