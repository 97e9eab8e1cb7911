"""`python -m simulate --image`: the image as the platform runs it, called by boto3."""

import json
import re
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import BUNDLED
from tests.image.container import SUDO, podman, podman_environment
from tests.simulate.command import Command
from tests.simulate.simulation import client_of, make_tar
from tests.support.archives import files_of
from tests.support.harness import ROOT

pytestmark = pytest.mark.full

OF_THE_IMAGE = (*BUNDLED, "efficientnet", "yolov4_tiny")
Simulate = Callable[..., Command]


@pytest.fixture
def simulate(image: str, tmp_path: Path) -> Iterator[Simulate]:
    """Starts it, and looks afterwards that it ended well and left no container."""
    started: list[Command] = []

    def start(*arguments: str) -> Command:
        started.append(Command(tmp_path, "--image", image, *arguments, sudo=SUDO, environment=podman_environment()))
        return started[-1]

    yield start
    for command in started:
        assert command.stop(signal.SIGINT) == 0, command.output()[-3000:]
        assert "rules broken: none" in command.output()
    assert "sim-" not in podman("ps", "--all", "--format", "{{.Names}}")


@pytest.mark.parametrize("data", [False, True])
def test_every_bundled_model_answers(simulate: Simulate, repository: Path, data: bool) -> None:
    repository.chmod(0o755)  # the container's user is not we
    command = simulate("--memory", "3g", *(["--model-data", str(repository)] if data else []))
    client = client_of(command.wait_ready())
    for model in BUNDLED if data else OF_THE_IMAGE:
        example = next((ROOT / "model_repository" / model).glob("example.*"))
        kind = {"txt": "text/plain", "png": "image/png", "jpg": "image/jpeg"}[example.suffix[1:]]
        reply = client.invoke_endpoint(
            EndpointName="any", Body=example.read_bytes(), ContentType=kind, CustomAttributes=f"model_name={model}"
        )
        assert len(json.loads(reply["Body"].read())["predictions"]) == 1


def test_archives_are_loaded_and_evicted(simulate: Simulate, tmp_path: Path) -> None:
    for number in range(4):
        make_tar(tmp_path / f"models/{number}.tar.gz", files_of(number))
    arguments = ["--models", str(tmp_path / "models"), "--memory", "1g", "--limit", "memory-share=0.2"]
    command = simulate(*arguments)
    client = client_of(command.wait_ready())
    for number in [*range(4), *range(4)]:
        assert multiply(client, number, 3.0) == 3.0 * number
    assert len(re.findall(r"^loaded \d\.tar\.gz in ", command.output(), re.MULTILINE)) > 4


def multiply(client: Any, number: int, x: float) -> float:
    tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}
    reply = client.invoke_endpoint(
        EndpointName="any",
        Body=json.dumps({"inputs": [tensor]}),
        ContentType="application/json",
        TargetModel=f"{number}.tar.gz",
    )
    return float(json.loads(reply["Body"].read())["outputs"][0]["data"][0])
