"""SIGHUP, whenever it comes."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from serving.reload import __main__ as reload
from serving.settings.table import Settings

pytestmark = pytest.mark.unit


class Ended(BaseException):
    """No further look."""


class Reloader:
    """Notes for each look whether it was asked for; there are three."""

    looks: list[bool]

    def __init__(self, _settings: Settings) -> None:
        pass

    def step(self, asked: bool) -> None:
        self.looks.append(asked)
        if len(self.looks) == 3:
            raise Ended

    def is_tidy(self) -> bool:
        return True


class Interrupted(threading.Event):
    """The signal comes when it was first found not to have come."""

    _first = True

    def is_set(self) -> bool:
        found = super().is_set()
        if self._first:
            self._first = False
            os.kill(os.getpid(), signal.SIGHUP)
        return found


@pytest.fixture
def own_handler() -> Iterator[None]:
    before = signal.getsignal(signal.SIGHUP)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("own_handler")
def test_one_that_comes_while_a_look_begins_is_heard_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SERVE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(Reloader, "looks", [], raising=False)
    monkeypatch.setattr(reload, "Reloader", Reloader)
    monkeypatch.setattr(reload, "PAUSE", 0.01)
    monkeypatch.setattr(reload, "threading", SimpleNamespace(Event=Interrupted))
    with pytest.raises(Ended):
        reload.main()
    assert Reloader.looks == [False, True, False]
