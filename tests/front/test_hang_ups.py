"""Tests the thread that detects hang-ups of callers."""

import socket
import threading

import pytest

from serving.front.hang_ups import HangUps

pytestmark = pytest.mark.unit
PATIENCE = 60


def test_detect_a_hang_up_although_the_check_of_another_stream_fails() -> None:
    hang_ups, has_failed, has_ended = HangUps(), threading.Event(), threading.Event()

    def fail() -> None:
        has_failed.set()
        raise OSError("too many open files")

    (first, _), (second, caller) = socket.socketpair(), socket.socketpair()
    hang_ups.watch(first, lambda: None, fail)
    hang_ups.watch(second, has_ended.set)
    assert has_failed.wait(PATIENCE)
    caller.close()
    assert has_ended.wait(PATIENCE)
    for connection in (first, second):
        hang_ups.forget(connection)
