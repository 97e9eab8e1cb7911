"""Stops what the tests started if their fixture or test fails, and at the latest at the end of the
run."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from typing import Any

import psutil

_ends: list[Callable[[], object]] = []


def ends_with(end: Callable[[], object]) -> None:
    """Register `end`, which is called after a failure and at the end of the run, even if nothing is
    running then."""
    _ends.append(end)


def kill(process: subprocess.Popen[Any]) -> None:
    """Kill the process and its descendants. Do nothing if it has ended, because its pid may be
    reused."""
    if process.poll() is not None:
        return
    with contextlib.suppress(psutil.NoSuchProcess):
        first = psutil.Process(process.pid)
        for living in (first, *first.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                living.kill()
    process.wait()


def end_all(after: int = 0) -> None:
    """End everything that was registered, except what the first `after` registrations started."""
    while len(_ends) > after:
        with contextlib.suppress(Exception):  # continue with the others if one fails
            end = _ends.pop()
            end()


@contextlib.contextmanager
def ended_on_failure() -> Iterator[None]:
    """If the code in this context fails, end everything that it started."""
    before = len(_ends)
    try:
        yield
    except BaseException:
        end_all(before)
        raise
