"""Tests a TensorRT plan for another GPU: the error names both remedies. A stand-in replaces
Triton's TensorRT backend."""

import shutil
from pathlib import Path

import pytest

from tests.support.harness import Server, expect_error, make_scale, tensor
from tests.support.stand_ins import tensorrt_backend

pytestmark = pytest.mark.stack

TARGET = "X-Amzn-SageMaker-Target-Model"
CONFIG = (
    'platform: "tensorrt_plan" max_batch_size: 8\n'
    'input { name: "x" data_type: TYPE_FP32 dims: [-1] } output { name: "y" data_type: '
    "TYPE_FP32 dims: [-1] }\n"
)
TENSORS = {"inputs": [tensor([1, 2])]}
REMEDIES = ("--for tensorrt", "--for gpu")


def make_foreign(repository: Path, name: str = "scale") -> Path:
    """Make a model y = 2x whose plan was built for another GPU, and whose ONNX file is beside the
    plan."""
    make_scale(repository.parent / "made")
    folder = repository / name
    shutil.copytree(
        repository.parent / "made/scale", folder, ignore=lambda _, names: {"2"} & set(names)
    )
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "1/model.plan").write_bytes(b"ftrt of another GPU")
    return folder


def start(folder: Path, models: Path, **variables: str) -> Server:
    folder.mkdir()
    return Server(folder, models, **variables)


@pytest.fixture
def models(tmp_path: Path) -> Path:
    return make_foreign(tmp_path / "models").parent


@pytest.fixture
def on_gpu(tmp_path: Path) -> dict[str, str]:
    backends = tensorrt_backend(tmp_path / "backends")
    return {
        "SERVE_DEVICE": "gpu",
        "SAGEMAKER_TRITON_ADDITIONAL_ARGS": f"--backend-directory={backends}",
    }


def test_name_remedies_at_a_start_with_another_gpu_s_plan(
    models: Path, on_gpu: dict[str, str], tmp_path: Path
) -> None:
    server = start(tmp_path / "serve", models, **on_gpu)
    assert server.wait_ended() == 1
    last = str(server.entries("serve")[-1]["message"])
    assert all(word in last for word in ("scale", *REMEDIES))


def test_refuse_an_archive_with_another_gpu_s_plan(on_gpu: dict[str, str], tmp_path: Path) -> None:
    make_foreign(tmp_path / "archives/id", "model")
    variables = {
        "SAGEMAKER_MULTI_MODEL": "true",
        "SERVE_MODEL_REPOSITORY": str(tmp_path / "archives"),
    }
    server = start(tmp_path / "serve", tmp_path / "unused", **on_gpu, **variables).wait_ready()
    body = {"model_name": "id", "url": str(tmp_path / "archives/id/model")}
    refused = server.post("/models", json=body, headers={TARGET: "id.tar.gz"})
    server.stop_later()
    expect_error(refused, 400, "load_failed")
    assert all(word in refused.json()["error"] for word in REMEDIES)


def test_serve_the_onnx_file_without_a_gpu_if_cpu_pbtxt_says_so(
    models: Path, tmp_path: Path
) -> None:
    """The folder is as `build --for tensorrt` writes it."""
    (models / "scale/configs").mkdir()
    (models / "scale/configs/cpu.pbtxt").write_text(
        CONFIG.replace("tensorrt_plan", "onnxruntime_onnx")
    )
    server = start(tmp_path / "serve", models, SERVE_DEVICE="cpu").wait_ready()
    reply = server.post(params={"model_name": "scale"}, json=TENSORS)
    server.stop_later()
    assert reply.json()["outputs"][0]["data"] == [2.0, 4.0]
