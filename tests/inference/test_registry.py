"""A model's client is found, made and refused as its folder says."""

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tritonclient.grpc.model_config_pb2 import ModelConfig

from clients.base import Model, TensorSpec
from serving.errors import InvalidRequest, ModelRefused
from serving.inference.crashes import Crashes, Trouble
from serving.inference.live_registry import LiveRegistry
from serving.inference.registry import Registry, families, make_client
from serving.repository.live import LiveModels
from serving.triton.gateway import IndexEntry, TritonGateway
from tests.support.harness import PATIENCE

pytestmark = pytest.mark.unit

OWN = """
from clients.base import ModelClient
from serving.codecs import JSON

class Client(ModelClient):
    codec, example = JSON, b"0"

    def preprocess(self, instances): return {}

    def postprocess(self, outputs, inputs, instances, parameters): return list(instances)
"""

SLOW = """
    def __init__(self, model):
        super().__init__(model)
        open("{fifo}").read()
"""


class Loaded(TritonGateway):
    """A Triton that has loaded `slow` and `warm`."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", 1)

    def index(self) -> list[IndexEntry]:
        return [IndexEntry(name, "1", "READY", "") for name in ("slow", "warm")]

    def config(self, name: str) -> Any:
        return ModelConfig(name=name)


def model(folder: Path, name: str = "mine", **parameters: str) -> Model:
    spec = (TensorSpec("x", "FP32", (3, 8, 8)),)
    return Model(name, folder, spec, (TensorSpec("y", "FP32", (10,)),), 8, parameters)


def test_two_folders_with_a_client_each_keep_their_own(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "client.py").write_text(OWN.replace("list(instances)", f"[{name!r}]"))
    clients = [make_client(model(tmp_path / name, name)) for name in ("a", "b")]
    assert [client.postprocess({}, {}, [1], {}) for client in clients if client] == [["a"], ["b"]]


def test_the_parameter_names_a_family_and_else_the_model_s_name_does(tmp_path: Path) -> None:
    named = make_client(model(tmp_path, client="resnet"))
    alike = make_client(model(tmp_path, name="resnet"))
    called = make_client(model(tmp_path, client="image-classification"))
    assert type(named) is type(alike) is type(called) is not None
    assert make_client(model(tmp_path)) is None


def test_an_unknown_family_is_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match="resnext"):
        make_client(model(tmp_path, client="resnext"))


def test_a_client_file_without_a_client_is_refused(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("Client = 3\n")
    with pytest.raises(InvalidRequest):
        make_client(model(tmp_path))


def test_each_module_with_a_client_is_a_family() -> None:
    assert families() == ["bert", "detr", "image_embedding", "resnet", "semantic_segmentation", "table", "yolov5"]


def test_an_ensemble_of_folders_that_change_is_refused_with_its_parts_however_deep(tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("outer", "chain", "ends", "scale")]
    for folder in folders:
        (folder / "1").mkdir(parents=True)
    live, crashes = LiveModels(tmp_path / "live"), Crashes(tmp_path / "crashes")
    # Triton loads no circle, and the table may say that there is one.
    live.begin(folders, {}, {"outer": ["chain", "scale"], "chain": ["ends", "outer"]})
    registry = LiveRegistry(TritonGateway("127.0.0.1:1", 1), live, "", crashes)
    crashes.set(Trouble("ends", "its process died", until=time.monotonic() + 60))
    for name in ("outer", "chain", "ends"):
        assert isinstance(registry.trouble(name), ModelRefused)
        with pytest.raises(ModelRefused), registry.use(name):
            pass
    assert registry.trouble("scale") is None


@pytest.mark.parametrize("is_live", [False, True])
def test_a_call_of_a_warm_model_does_not_wait_while_another_model_s_client_is_made(
    tmp_path: Path, is_live: bool
) -> None:
    folders = [tmp_path / "slow", tmp_path / "warm"]
    for folder in folders:
        (folder / "1").mkdir(parents=True)
        (folder / "client.py").write_text(OWN)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    (tmp_path / "slow/client.py").write_text(OWN + SLOW.format(fifo=fifo))
    live = LiveModels(tmp_path / "live")
    live.begin(folders, {}, {})
    no_crashes = Crashes(None)
    registry = LiveRegistry(Loaded(), live, "", no_crashes) if is_live else Registry(Loaded(), [tmp_path])

    def call(name: str) -> str:
        with registry.use(name) as served:
            return type(served.client).__module__

    assert "warm" in call("warm")
    with ThreadPoolExecutor() as threads:
        slow = [threads.submit(call, "slow") for _ in range(2)]
        with fifo.open("w"):  # opens once the client is being made
            assert "warm" in threads.submit(call, "warm").result(PATIENCE)
            assert not any(each.done() for each in slow)
        assert "slow" in slow[0].result(PATIENCE) and slow[1].result(PATIENCE)
        assert registry.get("slow") is registry.get("slow")
