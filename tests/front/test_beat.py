"""A worker's file is touched while its main thread gives signs."""

import threading
import time
from pathlib import Path

import pytest
from gunicorn.config import Config
from gunicorn.workers.workertmp import WorkerTmp

from serving.front.beat import LATE, Beat
from tests.support.harness import PATIENCE, wait_until


def test_the_file_is_touched_while_the_main_thread_gives_signs(tmp_path: Path) -> None:
    file, signs = tmp_path / "7", [time.monotonic() - LATE]
    Beat(file, lambda: signs[0]).start()
    signs_before = file.exists()
    signs[0] = time.monotonic() + 3600
    wait_until(file.exists, "the first beat")
    first = file.stat().st_mtime_ns
    wait_until(lambda: file.stat().st_mtime_ns > first, "another beat")
    assert not signs_before


def test_it_beats_no_more_once_the_main_thread_gives_no_sign(tmp_path: Path) -> None:
    asked: list[float] = []

    def last_sign() -> float:
        asked.append(time.monotonic())
        return 0.0

    Beat(tmp_path / "7", last_sign).start()
    wait_until(lambda: len(asked) > 1, "it has looked twice")
    assert not (tmp_path / "7").exists()


def test_a_folder_that_is_missing_is_no_error(tmp_path: Path) -> None:
    asked: list[float] = []

    def last_sign() -> float:
        asked.append(time.monotonic())
        return asked[-1]

    Beat(tmp_path / "missing" / "7", last_sign).start()
    wait_until(lambda: len(asked) > 1, "it goes on")


@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")
def test_it_ends_without_a_word_when_gunicorn_has_closed_the_workers_file(tmp_path: Path) -> None:
    signs, before = WorkerTmp(Config()), set(threading.enumerate())
    Beat(tmp_path / "7", signs.last_update).start()
    (beat,) = (thread for thread in threading.enumerate() if thread.name == "beat" and thread not in before)
    signs.close()
    beat.join(PATIENCE)
    assert not beat.is_alive()
