"""The committed networks that read digits, and their folders."""

from pathlib import Path

import pytest

from build_engines.build import build
from build_engines.errors import BuildError, UsageError
from build_engines.families import bundled
from build_engines.request import Request

pytestmark = pytest.mark.full


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
