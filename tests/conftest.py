"""Fixtures that more than one test module uses."""

import gc
import random
import signal
import sys
from collections.abc import Generator, Iterator
from pathlib import Path

import numpy as np
import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadFileScheduling, Scheduling

from tests.support.calls import needs_a_server
from tests.support.harness import FP32, ROOT, Server, link_model, make_identity, make_scale, make_sleeper
from tests.support.started import end_all, ended_on_failure

BUNDLED = ("resnet", "yolov5", "bert")
IMAGE = "tests/image/"

# A shell that runs the tests in the background ignores SIGINT, and so would every program that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGTERM, signal.default_int_handler)  # as by timeout(1): what was started is ended too


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """Of the processes of `pytest -n`, one takes the tests of a whole file, for they share fixtures; and one those of
    all files of tests/image, which share the image and podman's containers."""

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        return IMAGE if file.startswith(IMAGE) else file


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling:
    return ByFile(config, log)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """The same random networks in each run: of some an INT8 file is too coarse, or the answers are too close."""
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


def pytest_sessionstart() -> None:
    gc.disable()


def pytest_collection_finish() -> None:
    """What the tests import is a million objects, and stays: going through them again and again took a sixth of the
    processor time of their import, and a seventh of many tests'."""
    gc.freeze()
    gc.enable()


def pytest_sessionfinish() -> None:
    end_all()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--without-servers", action="store_true", help="leave out the tests that start a server")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--without-servers"):
        left_out = [item for item in items if isinstance(item, pytest.Function) and needs_a_server(item)]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled models and those that the tests make."""
    folder = tmp_path_factory.mktemp("repository")
    for name in BUNDLED:
        link_model(ROOT / "model_repository" / name, folder)
    make_identity(folder)
    make_scale(folder)
    make_sleeper(folder)
    return folder


@pytest.fixture(scope="session")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One container for all tests that leave it as it was."""
    running = Server(tmp_path_factory.mktemp("serve"), repository, **FP32).wait_ready()
    yield running
    assert running.stop() == 0
    running.wait_gone()
