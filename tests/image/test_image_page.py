"""The README's and docs/image.md's commands make an image that serves. podman stands for docker."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from scripts.image.build import LOOK_ALIKE, building, secrets
from tests.image.container import SUDO, Container, podman_environment
from tests.support.harness import ROOT
from tests.support.readme import commands

README = [command for command in commands("Try it") if command.startswith("docker")]


@pytest.mark.parametrize("options", [[], ["--shm-size", "1g"]], ids=["docs/image.md", "README.md"])
def test_the_image_classifies_a_photo(image: str, tmp_path: Path, options: list[str]) -> None:
    """`image` was made by docs/image.md's `make image`; the README's is the same Dockerfile."""
    if options:
        image = built_as_the_readme_says(tmp_path)
    else:
        _make, run = commands("Build and run", "docs/image.md")
        assert shlex.split(run) == ["docker", "run", "--rm", "-p", "8080:8080", "triton-multi-model"]
    container = Container(tmp_path, image, *options).wait_ready()
    try:
        photo = (ROOT / "model_repository/efficientnet/example.jpg").read_bytes()
        headers = {"Content-Type": "image/jpeg"}
        reply = container.post("/invocations?model_name=efficientnet", data=photo, headers=headers)
        assert reply.json()["predictions"][0]["classes"][0]["label"] == "espresso"
        assert container.stop() == 0
    finally:
        container.remove()


def built_as_the_readme_says(folder: Path) -> str:
    """The image's name. Added to the README's command: what podman needs without a registry."""
    name = f"localhost/readme-{os.getpid()}"
    build, run = map(shlex.split, README[0].split(" && "))
    assert build[:2] == ["docker", "build"]
    assert run == ["docker", "run", "--rm", "--shm-size", "1g", "-p", "8080:8080", build[build.index("-t") + 1]]
    given = [name if word == "triton-multi-model" else word for word in build[2:]]
    added = [*secrets(folder, os.environ), "--build-arg", f"BASE_IMAGE={LOOK_ALIKE}"]
    command = [*SUDO, *building("podman", os.environ), *added, *given]
    environ = os.environ | podman_environment()
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return name


def test_the_readme_mounts_a_folder_of_models_over_opt_ml_model() -> None:
    run = shlex.split(README[1])
    assert run[run.index("-v") + 1].endswith(":/opt/ml/model:ro")
