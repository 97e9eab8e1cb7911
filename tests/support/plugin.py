"""Set up the whole run: seeds, marks, signals, and the end of what the tests started."""

import gc
import random
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest

from tests.support.started import end_all, ended_on_failure

MARKS = {"unit", "stack", "full"}  # what each means: pyproject.toml

# A background shell ignores SIGINT, and every program that the tests start would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# sent by timeout(1); end the started programs too
signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the test files without garbage collections, which take a third of that time, and keep
    what they import out of later ones."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed all random generators, so that each run builds the same networks. With some seeds INT8
    is too coarse or answers are too close to compare."""
    random.seed(0)
    np.random.seed(0)
    if torch := sys.modules.get("torch"):
        torch.manual_seed(0)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup() -> Generator[None, object, object]:
    with ended_on_failure():
        return (yield)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    with ended_on_failure():
        return (yield)


def pytest_sessionfinish() -> None:
    end_all()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip the import of files that `-m MARK` leaves out, because some import torch (10 s)."""
    mark = config.option.markexpr
    if mark in MARKS and collection_path.name.startswith("test_"):
        return f"pytest.mark.{mark}" not in collection_path.read_text() or None
    return None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wrong = [
        item.nodeid
        for item in items
        if len({mark.name for mark in item.iter_markers()} & MARKS) != 1
    ]
    if wrong:
        raise pytest.UsageError(
            f"each test has one of the marks {sorted(MARKS)}, but not {', '.join(wrong)}"
        )
    # their files are short, so they fill the processors while the last long ones end
    items.sort(key=lambda item: item.get_closest_marker("unit") is not None)
