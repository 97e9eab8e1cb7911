"""docs/image.md is true: `make image` and what follows. podman stands for docker, no network for the published port."""

import os
import shlex
import subprocess
from pathlib import Path

from tests.image.container import SUDO, Container, podman_environment
from tests.support.harness import ROOT
from tests.support.readme import commands


def test_the_image_is_made_and_served_as_the_page_says(image: str, tmp_path: Path) -> None:
    """`image` has been built already: what is built here takes its layers."""
    make, run = commands("Build and run", "docs/image.md")
    environ = os.environ | podman_environment() | {"ENGINE": "podman"}
    done = subprocess.run([*SUDO, *shlex.split(make)], cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, f"{done.stdout}{done.stderr}"
    docker, verb, *options, name = shlex.split(run)
    assert [docker, verb, *options] == ["docker", "run", "--rm", "-p", "8080:8080"]
    container = Container(tmp_path, name).wait_ready()
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
