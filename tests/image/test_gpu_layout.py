"""The gpu image as far as it can be tested here: `serve` on NVIDIA's layout, and what the Dockerfile says of it.

NVIDIA's registry and a GPU can't be had here: folders with empty files stand for its image.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from serving.host import tritonserver
from serving.host.machine import Machine
from serving.settings.table import Settings
from serving.supervisor.processes import triton

pytestmark = pytest.mark.unit

FILES = (
    "bin/tritonserver",
    "backends/python/libtriton_python.so",
    "backends/python/triton_python_backend_stub",
    "backends/onnxruntime/libtriton_onnxruntime.so",
    "backends/tensorrt/libtriton_tensorrt.so",
    "backends/tensorflow/libtriton_tensorflow.so",
    "backends/vllm/model.py",
)


@pytest.fixture
def layout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tritonserver"
    for name in FILES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).touch()
    monkeypatch.setattr(tritonserver, "NVIDIA_IMAGE", folder)
    return folder


def test_nvidia_s_server_and_backends_are_used_with_the_gpu_s_configurations(layout: Path, tmp_path: Path) -> None:
    settings = Settings.from_env({"SERVE_RUN_DIR": str(tmp_path)}, Machine(cpus=4.0, memory=2**34, gpu=True))
    environ = {"PATH": "/bin", "LD_LIBRARY_PATH": "/nvidia"}
    process = triton(replace(settings, load_models=("resnet",)), environ)
    assert process.command[0] == str(layout / "bin/tritonserver")
    assert f"--backend-directory={layout}/backends" in process.command
    assert "--backend-config=tensorflow,version=2" in process.command
    shared = {word.split(",")[0] for word in process.command if "shm-region-prefix-name" in word}
    assert shared == {"--backend-config=python", "--backend-config=vllm"}
    assert process.environment["PATH"] == "/bin"
    assert process.environment["LD_LIBRARY_PATH"] == "/nvidia"
