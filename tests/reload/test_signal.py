"""SIGHUP while the reload process is about to look at the folders."""

import os
import signal
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from serving.reload import __main__ as reload

pytestmark = pytest.mark.unit


class Interrupted(threading.Event):
    """Send the signal when `is_set` has first returned False."""

    _first = True

    def is_set(self) -> bool:
        found = super().is_set()
        if self._first:
            self._first = False
            os.kill(os.getpid(), signal.SIGHUP)
        return found


def test_a_signal_while_a_look_begins_is_heard_by_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[bool] = []

    def step(asked: bool) -> None:
        looks.append(asked)
        if len(looks) == 3:
            raise KeyboardInterrupt

    monkeypatch.setenv("SERVE_RUN_DIR", str(tmp_path))
    monkeypatch.setattr(reload, "Reloader", lambda _: SimpleNamespace(step=step, is_tidy=lambda: True))
    monkeypatch.setattr(reload, "PAUSE", 0.01)
    monkeypatch.setattr(reload, "threading", SimpleNamespace(Event=Interrupted))
    before = signal.getsignal(signal.SIGHUP)
    try:
        with pytest.raises(KeyboardInterrupt):
            reload.main()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert looks == [False, True, False]
