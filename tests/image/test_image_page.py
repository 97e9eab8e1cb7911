"""docs/image.md is true: `make image` and what follows. podman stands for docker, no network for the published port."""

import shlex
from pathlib import Path

from tests.image.container import Container
from tests.support.harness import ROOT
from tests.support.readme import commands


def test_the_image_is_made_and_served_as_the_page_says(image: str, tmp_path: Path) -> None:
    """`image` is what the page's `make` has made, with an IMAGE of its own; test_build.py has the name without."""
    _make, run = commands("Build and run", "docs/image.md")
    assert shlex.split(run) == ["docker", "run", "--rm", "-p", "8080:8080", "triton-multi-model"]
    container = Container(tmp_path, image.rpartition(":")[0]).wait_ready()
    try:
        reply = container.post(
            "/invocations?model_name=resnet",
            data=(ROOT / "model_repository/resnet/example.png").read_bytes(),
            headers={"Content-Type": "image/png"},
        )
        assert reply.json()["predictions"][0]["classes"][0]["label"] == "6"
        assert container.stop() == 0
    finally:
        container.remove()
