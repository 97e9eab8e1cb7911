"""Compare the configurations that serving.repository.completion completes with those that Triton
completes."""

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc import InferenceServerClient
from tritonclient.grpc.model_config_pb2 import ModelConfig

from serving.host import tritonserver
from tests.backends.onnx_models import SERVED
from tests.support.harness import PATIENCE, ROOT

pytestmark = pytest.mark.stack

OPTIONS = {"SAGEMAKER_TRITON_ADDITIONAL_ARGS": "--backend-config=default-max-batch-size=6"}


def run(model: Path, config: Path, backends: Path) -> "subprocess.CompletedProcess[str]":
    """Complete a copy of the model's configuration."""
    if (model / "config.pbtxt").exists():
        shutil.copy(model / "config.pbtxt", config)
    paths = (str(model), str(config), str(backends))
    command = [sys.executable, "-m", "serving.repository.completion", *paths]
    return subprocess.run(
        command,
        cwd=ROOT,
        env=OPTIONS,
        capture_output=True,
        text=True,
        check=False,
        timeout=PATIENCE,
    )


def what_was_told(config: Any) -> dict[str, Any]:
    return {
        "max_batch_size": config.max_batch_size,
        "input": [str(tensor) for tensor in config.input],
        "output": [str(tensor) for tensor in config.output],
        "dynamic batching": config.HasField("dynamic_batching"),
        "backend": config.backend,
    }


@pytest.mark.parametrize("name", SERVED)
def test_complete_as_triton(
    name: str, client: InferenceServerClient, repository: Path, backends: Path, tmp_path: Path
) -> None:
    done = run(repository / name, tmp_path / "config.pbtxt", backends)
    assert done.returncode == 0, done.stderr
    ours = text_format.Parse((tmp_path / "config.pbtxt").read_text(), ModelConfig())
    ours.backend = ours.backend or "onnxruntime"  # Triton has it from the platform
    assert what_was_told(ours) == what_was_told(client.get_model_config(name).config)
    assert ours.name == ""


@pytest.mark.parametrize(
    ("name", "named"), [("bad_batch", "max_batch_size 0"), ("bad_bfloat16", "'x'")]
)
def test_explain_in_the_last_line_why_completion_failed(
    name: str, named: str, repository: Path, backends: Path, tmp_path: Path
) -> None:
    done = run(repository / name, tmp_path / "config.pbtxt", backends)
    assert done.returncode == 1
    assert named in done.stderr.strip().splitlines()[-1]


def test_state_the_version_that_tritonserver_reports(client: InferenceServerClient) -> None:
    assert client.get_server_metadata().version == tritonserver.version()
