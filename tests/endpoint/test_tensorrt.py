"""`serve` with TensorRT plans: built again, served by ONNX Runtime, refused; on the real Triton.

There is no GPU here: nvidia-smi, trtexec and Triton's TensorRT backend are stand-ins (tests/support/stand_ins).
"""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from serving.repository.fingerprint import Build, Fingerprint, Hardware, source_sha256
from tests.support.harness import ROOT, Server, config_for_cpu, link_model, make_scale, wait_until
from tests.support.stand_ins import Nvidia, tensorrt_backend

TARGET = "X-Amzn-SageMaker-Target-Model"
ELSEWHERE = Hardware("NVIDIA A10G", "8.6", "8.6.1", "12.2", "535.104")
CONFIG = (
    'platform: "tensorrt_plan" max_batch_size: 8\n'
    'input { name: "x" data_type: TYPE_FP32 dims: [-1] } output { name: "y" data_type: TYPE_FP32 dims: [-1] }\n'
)
TENSORS = {"inputs": [{"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2]}]}
Start = Callable[..., Server]


def make_foreign(repository: Path, name: str = "scale") -> Path:
    """A model y = 2x whose plan was built elsewhere, with its ONNX file beside it."""
    make_scale(repository.parent / "made")
    folder = repository / name
    shutil.copytree(repository.parent / "made/scale", folder, ignore=lambda _, names: {"2"} & set(names))
    (folder / "config.pbtxt").write_text(CONFIG)
    (folder / "1/model.plan").write_bytes(b"ftrt of another GPU")
    source = source_sha256(folder / "1/model.onnx")
    Fingerprint(ELSEWHERE, Build(source, "fp16", {"x": ((1, 1), (4, 16), (8, 64))})).write(folder / "1")
    return folder


@pytest.fixture
def models(tmp_path: Path) -> Path:
    make_foreign(tmp_path / "models")
    return tmp_path / "models"


@pytest.fixture
def nvidia(tmp_path: Path) -> Nvidia:
    return Nvidia(tmp_path / "nvidia")


@pytest.fixture
def start(tmp_path: Path, models: Path) -> Iterator[Start]:
    servers: list[Server] = []

    def starter(nvidia: Nvidia | None = None, **variables: str) -> Server:
        folder = tmp_path / f"serve-{len(servers)}"
        folder.mkdir()
        servers.append(Server(folder, models, **(nvidia.environ if nvidia else {}) | variables))
        return servers[-1]

    yield starter
    for server in servers:
        server.stop(signal.SIGTERM)
    assert [server.processes() for server in servers] == [[] for _ in servers]


def answer(server: Server, name: str = "scale") -> Any:
    reply = server.post(params={"model_name": name}, json=TENSORS)
    assert reply.status_code == 200, reply.text
    return reply.json()["outputs"][0]["data"]


def ping(server: Server) -> str:
    try:
        reply = server.get("/ping")
    except requests.RequestException:
        return ""
    return str(reply.json()["error"]) if reply.status_code == 503 else ""


def test_a_foreign_plan_is_built_again_and_the_next_start_takes_it(
    start: Start, nvidia: Nvidia, models: Path, tmp_path: Path
) -> None:
    """Two models, one after the other; /ping says what is done; the stand-in backend runs the new plans alone."""
    link_model(ROOT / "model_repository/resnet", models)
    config = config_for_cpu(models / "resnet")
    (models / "resnet/config.pbtxt").unlink()
    (models / "resnet/config.pbtxt").write_text(config.replace("onnxruntime_onnx", "tensorrt_plan"))
    backends = f"--backend-directory={tensorrt_backend(tmp_path / 'backends')}"
    variables = {"SAGEMAKER_TRITON_ADDITIONAL_ARGS": backends, "STAND_IN_SECONDS": "3"}
    server = start(nvidia, **variables)
    wait_until(lambda: "building the TensorRT plan of 'resnet' (fp32) for Stand-in T4" in ping(server), "/ping")
    server.wait_ready()
    assert answer(server) == [2.0, 4.0]
    example = (ROOT / "model_repository/resnet/example.png").read_bytes()
    reply = server.post(params={"model_name": "resnet"}, data=example, headers={"Content-Type": "image/png"})
    assert reply.json()["predictions"][0]["classes"][0]["label"] == "6"
    assert server.stop() == 0
    first, second = nvidia.runs()
    assert (first["onnx"], second["onnx"]) == tuple(f"{models}/{name}/1/model.onnx" for name in ("resnet", "scale"))
    assert (second["minShapes"], second["maxShapes"], "fp16" in second) == ("x:1x1", "x:8x64", True)
    assert "it was built for NVIDIA A10G and this is Stand-in T4" in server.output()
    assert answer(start(nvidia, **variables).wait_ready()) == [2.0, 4.0]
    assert len(nvidia.runs()) == 2
    assert (models / "scale/1/model.plan").read_bytes() == b"ftrt of another GPU"


def test_sigterm_while_a_plan_is_built_ends_all_at_once(start: Start, nvidia: Nvidia) -> None:
    server = start(nvidia, STAND_IN_SECONDS="600")
    (run,) = wait_until(nvidia.runs, "trtexec runs")
    assert server.stop() == 0
    assert not Path(f"/proc/{run['pid']}").exists()
    assert not list((nvidia.folder / "cache").rglob("*.*"))


def test_without_trtexec_onnx_runtime_answers_and_the_log_says_so(start: Start, nvidia: Nvidia) -> None:
    server = start(nvidia.without_trtexec()).wait_ready()
    assert answer(server) == [2.0, 4.0]
    (line,) = [line for line in server.output().splitlines() if "WARNING: scale" in line]
    assert "there is no trtexec; ONNX Runtime serves model.onnx instead" in line


def test_a_rebuild_that_fails_ends_the_start_with_the_reason(start: Start, nvidia: Nvidia) -> None:
    server = start(nvidia, SERVE_TENSORRT="rebuild", STAND_IN_FAULT="Error Code 2: OutOfMemory")
    assert server.wait_ended() == 1
    last = server.output().splitlines()[-1]
    assert last.startswith("serve | tritonserver cannot serve: error: the TensorRT model 'scale' cannot be served: ")
    assert "trtexec failed (status 1): Error Code 2: OutOfMemory" in last
    assert len(nvidia.runs()) == 1


def test_on_a_machine_without_a_gpu_the_onnx_files_answer(start: Start, models: Path) -> None:
    """A model with configs/cpu.pbtxt, as the builder writes it, and one without; no plan in the one, a foreign in the
    other."""
    folder = make_foreign(models, "for_both")
    (folder / "1/model.plan").unlink()
    (folder / "configs").mkdir()
    (folder / "configs/cpu.pbtxt").write_text(CONFIG.replace("tensorrt_plan", "onnxruntime_onnx"))
    server = start(SERVE_DEVICE="cpu").wait_ready()
    assert (answer(server, "for_both"), answer(server, "scale")) == ([2.0, 4.0], [2.0, 4.0])
    assert "a TensorRT plan needs a GPU; ONNX Runtime serves model.onnx instead" in server.output()


def test_an_archive_with_a_foreign_plan_is_served_from_its_onnx_file_or_refused(
    start: Start, nvidia: Nvidia, models: Path, tmp_path: Path
) -> None:
    root = tmp_path / "archives"
    for identifier in ("with", "without"):
        (root / identifier).mkdir(parents=True)
        make_foreign(root / identifier, "model")
    (root / "without/model/1/model.onnx").unlink()
    server = start(nvidia, SAGEMAKER_MULTI_MODEL="true", SERVE_MODELS_ROOT=str(root)).wait_ready()

    def load(identifier: str) -> requests.Response:
        body = {"model_name": identifier, "url": str(root / identifier / "model")}
        return server.post("/models", json=body, headers={TARGET: f"{identifier}.tar.gz"})

    assert load("with").status_code == 200
    reply = server.post("/models/with/invoke", json=TENSORS)
    assert reply.json()["outputs"][0]["data"] == [2.0, 4.0]
    refused = load("without")
    assert (refused.status_code, refused.json()["code"]) == (400, "load_failed")
    assert "it was built for NVIDIA A10G and this is Stand-in T4" in refused.json()["error"]
    assert "no model.onnx beside it" in refused.json()["error"]
    told = "ONNX Runtime serves model.onnx instead"
    warned = wait_until(lambda: [line for line in server.output().splitlines() if told in line], "the log says so")
    assert json.loads(warned[0])["level"] == "warning"
