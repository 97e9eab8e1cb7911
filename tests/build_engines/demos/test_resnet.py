"""The committed network that reads digits, and its folder."""

import filecmp
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnx
import pytest
from PIL import Image
from tritonclient.grpc.model_config_pb2 import TYPE_FP32, TYPE_UINT8, ModelInstanceGroup

from build_engines.building.model import build
from build_engines.demos import resnet as demo
from build_engines.digits.images import held_out
from build_engines.errors import BuildError
from build_engines.request import Request
from serving.repository.model_config import read_merged
from tests.build_engines.models import config_of, session
from tests.support.harness import ROOT

FOLDER = ROOT / "model_repository" / "resnet"
WEIGHTS = FOLDER / "1" / "model.onnx"


def test_the_committed_folder_is_what_the_recipe_writes(tmp_path: Path) -> None:
    folder, made = build(Request("resnet", repository=tmp_path))
    names = ["config.pbtxt", "configs/cpu.pbtxt", "labels.txt", "example.png", "1/model.onnx"]
    assert made
    assert filecmp.cmpfiles(FOLDER, folder, names, shallow=False)[0] == names


def test_the_example_is_a_held_out_picture() -> None:
    made = held_out(50)[-1][0]
    np.testing.assert_array_equal(np.asarray(Image.open(FOLDER / "example.png")), np.asarray(made))


@pytest.mark.parametrize("name", ["config.pbtxt", "configs/cpu.pbtxt"])
def test_triton_parses_the_configuration_and_it_describes_the_onnx_file(name: str) -> None:
    config, network = read_merged(FOLDER, FOLDER / name), session(WEIGHTS)
    for declared, actual in ((config.input, network.get_inputs()), (config.output, network.get_outputs())):
        assert [(t.name, list(t.dims)) for t in declared] == [(t.name, t.shape[1:]) for t in actual]
    assert [t.type for t in (*network.get_inputs(), *network.get_outputs())] == ["tensor(uint8)", "tensor(float)"]
    assert (config.input[0].data_type, config.output[0].data_type) == (TYPE_UINT8, TYPE_FP32)
    assert (config.platform, config.max_batch_size) == ("onnxruntime_onnx", 32)
    assert config.HasField("dynamic_batching")
    assert config.parameters["client"].string_value == "resnet"


def test_the_second_configuration_says_what_differs_on_a_processor() -> None:
    gpu, cpu = config_of(FOLDER / "config.pbtxt"), config_of(FOLDER / "configs" / "cpu.pbtxt")
    assert [group.kind for group in gpu.instance_group] == [ModelInstanceGroup.KIND_GPU]
    assert [group.kind for group in cpu.instance_group] == [ModelInstanceGroup.KIND_CPU]
    assert [field.name for field, _ in cpu.ListFields()] == ["instance_group", "parameters"]
    assert {name: value.string_value for name, value in cpu.parameters.items()} == {"cpu_engine": "auto"}


def test_the_weights_are_one_file_small_enough_to_be_committed() -> None:
    assert WEIGHTS.stat().st_size <= 3_000_000
    assert [path.name for path in WEIGHTS.parent.iterdir()] == ["model.onnx"]


def test_triton_24_10s_onnx_runtime_can_read_the_file() -> None:
    """ONNX Runtime 1.19: opset 21 and IR version 10 at most."""
    model = onnx.load(WEIGHTS)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version <= 10
    assert [(o.domain, o.version) for o in model.opset_import if o.domain in ("", "ai.onnx")] == [("", 20)]
    assert all(node.domain in ("", "ai.onnx") for node in model.graph.node)


@pytest.mark.parametrize("batch", [1, 2, 32])
def test_any_batch_is_taken(batch: int) -> None:
    images = np.random.default_rng(0).integers(0, 256, (batch, 3, 64, 64), dtype=np.uint8)
    network = session(WEIGHTS)
    together = network.run(["logits"], {"input": images})[0]
    alone = np.concatenate([network.run(["logits"], {"input": image[None]})[0] for image in images])
    np.testing.assert_allclose(together, alone, atol=1e-4)


def test_the_file_carries_no_path_of_the_machine_that_made_it() -> None:
    data = WEIGHTS.read_bytes()
    assert str(ROOT).encode() not in data
    assert b"site-packages" not in data


def test_weights_that_are_not_the_trained_ones_are_not_taken_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = tmp_path / "model.onnx"
    other.write_bytes(b"another")
    monkeypatch.setattr(demo, "TRAINED", replace(demo.TRAINED, path=other))
    with pytest.raises(BuildError, match="is not the network that was trained"):
        build(Request("resnet", repository=tmp_path / "models"))
