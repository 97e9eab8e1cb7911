"""Defines the fixtures that several test modules use."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.harness import (
    BUNDLED,
    FP32,
    ROOT,
    Server,
    expect_stopped,
    link_model,
    make_both_scales,
    make_identity,
    make_sleeper,
)

pytest_plugins = ("tests.support.plugin",)

SERVED = ("resnet", "yolov5", "bert")


@pytest.fixture(scope="session", autouse=True)
def stopped_servers() -> Iterator[None]:
    """Expect at the end that all servers have stopped."""
    yield
    expect_stopped()


@pytest.fixture(scope="session")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository of the bundled models, without any other models in the checkout's
    model_repository."""
    folder = tmp_path_factory.mktemp("bundled")
    for name in BUNDLED:
        link_model(ROOT / "model_repository" / name, folder)
    return folder


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a repository with three of the bundled models and those that the tests make."""
    folder = tmp_path_factory.mktemp("repository")
    for name in SERVED:
        link_model(ROOT / "model_repository" / name, folder)
    make_identity(folder)
    make_both_scales(folder)
    make_sleeper(folder)
    return folder


@pytest.fixture(scope="session")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Run one server for all tests that do not change it."""
    running = Server(tmp_path_factory.mktemp("serve"), repository, **FP32).wait_ready()
    yield running
    running.stop_later()
