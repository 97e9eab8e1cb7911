"""The committed networks that read digits, and their folders."""

import filecmp
from pathlib import Path

import pytest

from build_engines.build import build
from build_engines.errors import BuildError, UsageError
from build_engines.families import bundled
from build_engines.request import Request
from tests.support.harness import ROOT

pytestmark = pytest.mark.full

REPOSITORY = ROOT / "model_repository"
EXAMPLES = {"resnet": "example.png", "yolov5": "example.jpg"}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_committed_folder_is_what_the_recipe_writes(name: str, tmp_path: Path) -> None:
    folder, made = build(Request(name, repository=tmp_path))
    names = ["config.pbtxt", "configs/cpu.pbtxt", "labels.txt", EXAMPLES[name], "1/model.onnx"]
    assert made
    assert filecmp.cmpfiles(REPOSITORY / name, folder, names, shallow=False)[0] == names


def test_what_the_network_does_itself_is_no_setting(tmp_path: Path) -> None:
    for request in (Request("resnet", settings={"mean": "0.1"}, repository=tmp_path), Request("yolov5", size=320)):
        with pytest.raises(UsageError):
            build(request)


def test_another_network_is_not_taken_for_the_committed_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "resnet/1").mkdir(parents=True)
    (tmp_path / "resnet/1/model.onnx").write_bytes(b"another")
    monkeypatch.setattr(bundled, "REPOSITORY", tmp_path)
    with pytest.raises(BuildError, match="resnet"):
        build(Request("resnet", repository=tmp_path / "models"))
