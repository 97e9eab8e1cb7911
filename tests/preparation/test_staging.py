"""What Triton gets of an archive: configurations made whole, with the engine for this machine."""

import logging
from pathlib import Path

import pytest

from serving.host.tritonserver import backend_directory
from serving.preparation.staging import Staging
from serving.repository.archives import Archive
from serving.repository.model_config import read_config
from serving.settings.table import Settings
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

RESNET = ROOT / "model_repository/resnet"


@pytest.mark.parametrize(
    ("engine", "backend"), [("openvino", ("", "openvino")), ("onnxruntime", ("onnxruntime_onnx", ""))]
)
def test_an_archive_is_loaded_by_the_engine_for_this_machine(
    engine: str, backend: tuple[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    settings = Settings.from_env({"SERVE_DEVICE": "cpu", "SERVE_CPU_ENGINE": engine})
    archive = Archive(RESNET, (RESNET,))
    archive.stage(tmp_path)
    with caplog.at_level(logging.INFO):
        Staging(settings, backend_directory()).fit(archive, tmp_path)
    made = read_config(tmp_path / "resnet", "cpu")
    assert (made.platform, made.backend) == backend
    assert (made.input, made.parameters["client"].string_value) == (read_config(RESNET, "gpu").input, "resnet")
    assert "resnet" in caplog.text and "SERVE_CPU_ENGINE" in caplog.text
