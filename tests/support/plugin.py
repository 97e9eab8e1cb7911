"""Sets up the whole test run: seeds, marks, signals, files that run in one process, and the cleanup
of everything that tests started."""

import gc
import random
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import numpy as np
import pytest
from xdist.scheduler import LoadFileScheduling

from tests.support.started import end_all, ended_on_failure

MARKS = {"unit", "stack", "full"}  # pyproject.toml explains them
# Files that run in one process, because they use the fixture `server` of tests/conftest.py, or
# because moto's services take seconds to import.
TOGETHER = {
    "tests/endpoint/test_edge.py": "server",
    "tests/endpoint/test_errors.py": "server",
    "tests/endpoint/test_generated_client.py": "server",
    "tests/endpoint/test_invocations.py": "server",
    "tests/deploy/test_config.py": "moto",
    "tests/deploy/test_docs.py": "moto",
    "tests/deploy/test_endpoint.py": "moto",
    "tests/deploy/test_push.py": "moto",
}

# A shell in the background ignores SIGINT, and every program that the tests start would inherit
# that.
signal.signal(signal.SIGINT, signal.default_int_handler)
# timeout(1) sends this signal; the programs that the tests started must end too
signal.signal(signal.SIGTERM, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Import the test files without garbage collections, which take a third of that time. Exclude
    the imported objects from later collections."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Seed all random generators, so that each run builds the same networks. With some seeds, INT8
    is too coarse, or answers are too close to be compared."""
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


class Scheduling(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
    """Runs each file in one process, and some files together."""

    def _split_scope(self, nodeid: str) -> str:
        file: str = super()._split_scope(nodeid)
        return TOGETHER.get(file, file)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> Scheduling | None:
    return Scheduling(config, log) if config.option.dist == "loadfile" else None


def pytest_sessionfinish() -> None:
    end_all()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Skip files that `-m MARK` leaves out without importing them, because some of them import
    torch (10 s)."""
    mark = config.option.markexpr
    if mark not in MARKS or not collection_path.name.startswith("test_"):
        return None
    if f"pytest.mark.{mark}" in collection_path.read_text():
        return None  # let other plugins decide
    return True


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    wrong = []
    for item in items:
        names = {mark.name for mark in item.iter_markers()}
        if len(names & MARKS) != 1:
            wrong.append(item.nodeid)
    if wrong:
        raise pytest.UsageError(
            f"each test has one of the marks {sorted(MARKS)}, but not {', '.join(wrong)}"
        )
    # the files of unit tests are short, so they keep the processors busy while the last long files
    # end
    items.sort(key=lambda item: item.get_closest_marker("unit") is not None)
