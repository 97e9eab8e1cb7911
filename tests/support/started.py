"""What the tests have started: it ends with the fixture or the test that fails, and with the run at the latest."""

import contextlib
import subprocess
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import psutil

Starter = TypeVar("Starter", bound=Callable[..., Any])
_ends: list[Callable[[], object]] = []


def starts_a_server(starter: Starter) -> Starter:
    """Marks a function or a class whose call starts programs that serve: `make check` leaves out who calls it."""
    starter.starts_a_server = True  # type: ignore[attr-defined]
    return starter


def ends_with(end: Callable[[], object]) -> None:
    """`end` is called when things go wrong, and at the end of the run; whether it still runs or not."""
    _ends.append(end)


def kill(process: subprocess.Popen[Any]) -> None:
    """The process and those that it has started."""
    with contextlib.suppress(psutil.NoSuchProcess):
        ours = psutil.Process(process.pid)
        for each in (ours, *ours.children(recursive=True)):
            with contextlib.suppress(psutil.NoSuchProcess):
                each.kill()
    process.wait()


def end_all(after: int = 0) -> None:
    while len(_ends) > after:
        with contextlib.suppress(Exception):  # whatever went wrong, the others end
            _ends.pop()()


@contextlib.contextmanager
def ended_on_failure() -> Iterator[None]:
    before = len(_ends)
    try:
        yield
    except BaseException:
        end_all(before)
        raise
