"""Fixtures that more than one test module uses."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.harness import ROOT, Server, link_model, make_identity, make_scale, make_sleeper

BUNDLED = ("resnet", "yolov5", "bert")

# A shell that runs the tests in the background ignores SIGINT, and so would every program that they start.
signal.signal(signal.SIGINT, signal.default_int_handler)


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
    running = Server(tmp_path_factory.mktemp("serve"), repository, SERVE_REQUEST_TIMEOUT="10").wait_ready()
    yield running
    assert running.stop() == 0
    assert running.processes() == []
