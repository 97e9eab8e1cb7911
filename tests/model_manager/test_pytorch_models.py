"""Several PyTorch models on one multi-model endpoint, as AWS's guide for Triton does it, with a small ResNet.

trace -> build -> archive --copies -> POST /models -> invoke with tensors, binary and JSON
"""

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from transformers import ResNetConfig, ResNetForImageClassification

from build_engines.__main__ import main
from build_engines.model_folder import read_config
from tests.support.harness import Server

pytestmark = pytest.mark.stack

BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size={}"
TARGET = "X-Amzn-SageMaker-Target-Model"
SHAPE = (3, 64, 64)


class Logits(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """A ResNet of 10 classes, random weights."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes: dict[str, Any] = {"embedding_size": 8, "hidden_sizes": [16, 32], "depths": [1, 1], "num_labels": 10}
        self.network = ResNetForImageClassification(ResNetConfig(**sizes)).eval()

    def forward(self, images: torch.Tensor) -> Any:
        return self.network(images, return_dict=False)[0]


@pytest.fixture(scope="module")
def network() -> Logits:
    made = Logits()
    made.eval()
    return made


@pytest.fixture(scope="module")
def root(network: Logits, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of two archives as the platform unpacks them."""
    folder = tmp_path_factory.mktemp("pytorch")
    torch.jit.trace(network, torch.zeros(1, *SHAPE)).save(str(folder / "resnet.pt"))
    dims = ",".join(map(str, SHAPE))
    build = ["build", "resnet_pt", "--weights", str(folder / "resnet.pt"), "--input", f"FP32:{dims}"]
    assert (
        main([*build, "--for", "cpu", "--max-batch-size", "8", "--instances", "1", "--out", str(folder / "models")])
        == 0
    )
    archive = ["archive", "resnet_pt", "--repository", str(folder / "models"), "--out", str(folder), "--copies", "2"]
    assert main(archive) == 0
    for number in range(2):
        with tarfile.open(folder / f"resnet_pt-{number}.tar.gz") as packed:
            packed.extractall(folder / "unpacked" / str(number) / "model", filter="data")
    return folder / "unpacked"


@pytest.fixture(scope="module")
def server(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("serve")
    running = Server(folder, folder, SAGEMAKER_MULTI_MODEL="true", SERVE_MODEL_REPOSITORY=str(root)).wait_ready()
    for number in range(2):
        body = {"model_name": f"id-{number}", "url": str(root / str(number) / "model")}
        loaded = running.post("/models", json=body, headers={TARGET: f"resnet_pt-{number}.tar.gz"})
        assert loaded.status_code == 200, loaded.text
    yield running
    assert running.stop() == 0


def images(count: int) -> NDArray[np.float32]:
    return np.random.default_rng(count).random((count, *SHAPE), dtype=np.float32)


def expected(network: Logits, batch: NDArray[np.float32]) -> NDArray[np.float32]:
    with torch.inference_mode():
        logits: NDArray[np.float32] = network(torch.from_numpy(batch)).numpy()
        return logits


def test_the_configuration_is_the_one_of_triton_s_pytorch_backend(root: Path) -> None:
    config = read_config(root / "0/model/resnet_pt_0")
    assert (config.platform, config.max_batch_size) == ("pytorch_libtorch", 8)
    assert (config.input[0].name, list(config.input[0].dims)) == ("INPUT__0", list(SHAPE))
    assert (config.output[0].name, list(config.output[0].dims)) == ("OUTPUT__0", [10])


@pytest.mark.parametrize("number", [0, 1])
def test_each_copy_answers_json_tensors_as_torch_in_process(server: Server, network: Logits, number: int) -> None:
    batch = images(2)
    tensor = {"name": "INPUT__0", "shape": list(batch.shape), "datatype": "FP32", "data": batch.tolist()}
    reply = server.post(f"/models/id-{number}/invoke", json={"inputs": [tensor]})
    assert reply.status_code == 200, reply.text
    (output,) = reply.json()["outputs"]
    found = np.array(output["data"]).reshape(output["shape"])
    np.testing.assert_allclose(found, expected(network, batch), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("number", [0, 1])
def test_each_copy_answers_binary_tensors_as_torch_in_process(server: Server, network: Logits, number: int) -> None:
    batch = images(3)
    size = {"binary_data_size": batch.nbytes}
    tensor = {"name": "INPUT__0", "shape": list(batch.shape), "datatype": "FP32", "parameters": size}
    wanted = {"name": "OUTPUT__0", "parameters": {"binary_data": True}}
    header = json.dumps({"inputs": [tensor], "outputs": [wanted]}).encode()
    kind = {"Content-Type": BINARY.format(len(header))}
    reply = server.post(f"/models/id-{number}/invoke", data=header + batch.tobytes(), headers=kind)
    assert reply.status_code == 200, reply.text
    values = reply.content[int(reply.headers["Content-Type"].rpartition("=")[2]) :]
    found = np.frombuffer(values, np.float32).reshape(3, 10)
    np.testing.assert_allclose(found, expected(network, batch), rtol=1e-4, atol=1e-5)


def test_a_copy_is_unloaded_while_the_other_goes_on(server: Server, network: Logits) -> None:
    assert server.ask("DELETE", "/models/id-1").status_code == 200
    assert server.post("/models/id-1/invoke", json={"inputs": []}).status_code == 404
    test_each_copy_answers_json_tensors_as_torch_in_process(server, network, 0)
