"""The image, built once, and its containers."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.image.container import BUILD_SECONDS, Container, build_image, podman
from tests.support.readme import commands

Start = Callable[..., Container]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first test of the image waits for its build."""
    for item in items:
        if "tests/image/" in item.nodeid:
            item.add_marker(pytest.mark.timeout(BUILD_SECONDS))


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    build, _run = commands("Build and run", "docs/image.md")
    name = build_image(build)
    yield name
    podman("untag", name)  # of all its names; the layers stay, for the next time


@pytest.fixture
def start(image: str, tmp_path: Path) -> Iterator[Start]:
    """Starts containers, which are removed after the test."""
    running: list[Container] = []

    def starter(*options: str, memory: str = "2g", arguments: tuple[str, ...] = (), **variables: str) -> Container:
        running.append(Container(tmp_path, image, *options, memory=memory, arguments=arguments, **variables))
        return running[-1]

    yield starter
    for container in running:
        container.remove()
