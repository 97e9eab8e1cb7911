"""The command line that an image is run with; tests/image/ runs one."""

import os
from pathlib import Path

import pytest

from simulate.image import Image, engine_environment, find_engine
from simulate.runner import CannotStart, Launch


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Image:
    engine = tmp_path / "bin/docker"
    engine.parent.mkdir()
    engine.write_text("#!/bin/sh\nexit 0\n")  # a stand-in for an engine: it has every image and starts none
    engine.chmod(0o755)
    monkeypatch.setenv("PATH", f"{engine.parent}:{os.environ['PATH']}")
    return Image(find_engine("docker"), "mine:1", 2**30)


def command(image: Image, tmp_path: Path) -> str:
    launch = Launch(
        name="sim-1", folder=tmp_path, environment={"A": "b c"}, model=tmp_path / "model", models=tmp_path / "models"
    )
    return " ".join(image.command(launch, 12345))


def test_a_container_has_few_rights_and_what_the_platform_gives_it(image: Image, tmp_path: Path) -> None:
    text = command(image, tmp_path)
    assert text.startswith("docker run --rm --name sim-1 --read-only ")
    assert text.endswith(" mine:1 serve")
    for words in (
        "--cap-drop ALL",
        "--security-opt no-new-privileges",
        f"--memory {2**30}",
        f"--shm-size {2**29}",
        "-e A=b c",
        f"-v {tmp_path}/model:/opt/ml/model:ro",
        f"-v {tmp_path}/models:/opt/ml/models:ro",
        "-e SAGEMAKER_BIND_TO_PORT=8080",
        "-e SAGEMAKER_SAFE_PORT_RANGE=23000-23999",
    ):
        assert words in text


def test_it_has_no_network_as_root_and_a_published_port_otherwise(image: Image, tmp_path: Path) -> None:
    image.isolated = True
    assert "--network none" in command(image, tmp_path)
    image.isolated = False
    assert "-p 127.0.0.1:12345:8080" in command(image, tmp_path)


def test_containers_home_is_where_podman_s_storage_is_configured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "storage.conf").write_text("")
    monkeypatch.setenv("CONTAINERS_HOME", str(tmp_path))
    monkeypatch.delenv("CONTAINERS_CONF", raising=False)
    assert engine_environment()["CONTAINERS_STORAGE_CONF"] == str(tmp_path / "storage.conf")
    assert "CONTAINERS_CONF" not in engine_environment()


def test_a_machine_without_an_engine_is_told_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CannotStart, match="no podman and no docker here: install one"):
        find_engine()
