"""What tests start ends with them, and those that start a server are known without a list."""

import subprocess
import sys
from collections.abc import Callable

import pytest

from tests.support.calls import starts_a_server
from tests.support.harness import Server
from tests.support.started import ended_on_failure, ends_with, kill


def sleeper() -> subprocess.Popen[bytes]:
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"])
    ends_with(lambda: kill(process))
    return process


def test_what_a_failing_fixture_or_test_has_started_is_ended_and_nothing_else() -> None:
    before = sleeper()
    with pytest.raises(ZeroDivisionError), ended_on_failure():
        within = sleeper()
        raise ZeroDivisionError
    assert (before.poll(), within.poll()) == (None, -9)
    kill(before)


def test_a_process_that_has_ended_is_not_killed_once_more_for_another_may_have_its_number() -> None:
    ended, another = sleeper(), sleeper()
    kill(ended)
    ended.pid = another.pid
    kill(ended)
    with pytest.raises(subprocess.TimeoutExpired):
        another.wait(0.5)
    kill(another)


def start() -> Server:
    return Server.__new__(Server)


class Starter:
    def start(self) -> list[Server]:
        return [start() for _ in range(2)]


def test_who_starts_a_server_by_way_of_others_is_found() -> None:
    def inner() -> Callable[[], list[Server]]:
        return lambda: Starter().start()

    assert starts_a_server(inner)
    assert not starts_a_server(sleeper)
