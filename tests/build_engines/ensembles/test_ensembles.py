"""What the commands of the ensembles write, from weights of every kind."""

from pathlib import Path

import onnx
import pytest
import torch
from onnx import TensorProto, helper

from build_engines.__main__ import main
from build_engines.ensembles.parts import Step, ensemble_config, write_model
from build_engines.families.inception_network import InceptionV3, Probabilities, checkpoint_network, random_network
from build_engines.model_folder.config import read_config
from clients.base import TensorSpec


def tiny_network(path: Path, shape: tuple[int, ...], scores: int = 3) -> None:
    """The mean of each channel, as often as it takes to make so many scores."""
    axes = [1, 2] if shape[-1] == 3 else [2, 3]
    graph = helper.make_graph(
        [
            helper.make_node("ReduceMean", ["image"], ["mean"], axes=axes, keepdims=0),
            helper.make_node("Tile", ["mean", "times"], ["scores"]),
        ],
        "tiny",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", *shape])],
        [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", scores])],
        [helper.make_tensor("times", TensorProto.INT64, [2], [1, scores // 3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)


def build(folder: Path, *arguments: str) -> int:
    return main(["build", "inception", "--for", "cpu", "--out", str(folder / "models"), *arguments])


def test_inception_v3_has_the_parameters_of_its_paper() -> None:
    count = sum(parameter.numel() for parameter in InceptionV3(1000).parameters())
    auxiliary = (768 * 128 + 2 * 128) + (128 * 768 * 5 * 5 + 2 * 768) + (768 * 1000 + 1000)
    assert (count, count + auxiliary) == (23_834_568, 27_161_264)


def test_a_checkpoint_of_torchvision_s_is_read_and_its_classes_follow_the_background(tmp_path: Path) -> None:
    network = random_network(1000)
    state = network.state_dict() | {"AuxLogits.fc.bias": torch.zeros(1000)}
    torch.save(state, tmp_path / "inception.pth")
    image = torch.rand(1, 299, 299, 3, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = torch.softmax(network(image.permute(0, 3, 1, 2)), 1)
        found = Probabilities(checkpoint_network(tmp_path / "inception.pth"))(image)
    assert found.shape == (1, 1001)
    assert found[0, 0] == 0
    torch.testing.assert_close(found[:, 1:], expected)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"fc.bias": torch.zeros(1000)}, "does not fit Inception v3's structure"),
        ({"weight": torch.zeros(3)}, "is not a torchvision Inception v3"),
        (None, "cannot be read as a file of tensors"),
    ],
    ids=["other tensors", "no classifier", "no file of tensors"],
)
def test_other_checkpoints_are_refused_in_one_line(
    tmp_path: Path, content: object, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "other.pth"
    torch.save(content, path) if content else path.write_text("text")
    assert build(tmp_path, "--weights", str(path)) == 1
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(("shape", "layout"), [((299, 299, 3), "HWC"), ((3, 299, 299), "CHW")])
def test_an_onnx_file_keeps_its_names_and_decides_the_layout(
    tmp_path: Path, shape: tuple[int, ...], layout: str
) -> None:
    tiny_network(tmp_path / "tiny.onnx", shape)
    assert build(tmp_path, "--weights", str(tmp_path / "tiny.onnx")) == 0
    steps = read_config(tmp_path / "models/inception").ensemble_scheduling.step
    assert dict(steps[1].input_map) == {"image": "pixels"}
    assert dict(steps[1].output_map) == {"scores": "OUTPUT"}
    decoder = tmp_path / "models/inception_decoder"
    assert f'LAYOUT = "{layout}"' in (decoder / "1/dali.py").read_text()
    assert f'string_value: "{layout}"' in (decoder / "configs/cpu.pbtxt").read_text()
    assert tuple(read_config(decoder).output[0].dims) == shape


@pytest.mark.parametrize(
    ("decoder", "backends"), [("auto", ["dali", "python"]), ("dali", ["dali"]), ("python", ["python"])]
)
def test_the_decoder_is_dali_on_gpu_machines_unless_the_command_says_otherwise(
    tmp_path: Path, decoder: str, backends: list[str]
) -> None:
    tiny_network(tmp_path / "tiny.onnx", (299, 299, 3))
    assert build(tmp_path, "--weights", str(tmp_path / "tiny.onnx"), "--set", f"decoder={decoder}") == 0
    folder = tmp_path / "models/inception_decoder"
    files = [folder / "config.pbtxt", *folder.glob("configs/cpu.pbtxt")]
    assert [file.read_text().split('backend: "')[1].split('"')[0] for file in files] == backends


def test_a_network_of_another_shape_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tiny_network(tmp_path / "tiny.onnx", (224, 224, 3))
    assert build(tmp_path, "--weights", str(tmp_path / "tiny.onnx")) == 1
    assert "image [-1, 224, 224, 3]" in capsys.readouterr().err
    assert not (tmp_path / "models").exists()


@pytest.mark.parametrize(
    ("name", "platform", "file"),
    [
        ("frozen.pb", "tensorflow_graphdef", "model.graphdef"),
        ("saved", "tensorflow_savedmodel", "model.savedmodel/saved_model.pb"),
    ],
)
def test_a_tensorflow_graph_gets_a_configuration_for_triton_s_own_backend(
    tmp_path: Path, name: str, platform: str, file: str
) -> None:
    """A stand-in for a graph: nothing here reads it, and TensorFlow is not installed."""
    if name == "saved":
        (tmp_path / name).mkdir()
    (tmp_path / name / "saved_model.pb" if name == "saved" else tmp_path / name).write_bytes(b"graph")
    assert build(tmp_path, "--weights", str(tmp_path / name)) == 0
    folder = tmp_path / "models/inception_v3"
    assert (folder / "1" / file).read_bytes() == b"graph"
    config = read_config(folder)
    assert config.platform == platform
    assert [config.input[0].name, config.output[0].name] == ["input", "InceptionV3/Predictions/Softmax"]
    assert list(config.output[0].dims) == [1001]


def test_an_ensemble_has_neither_instances_nor_a_batcher_of_its_own(tmp_path: Path) -> None:
    spec = (TensorSpec("x", "FP32", (1,)),)
    text = ensemble_config(spec, (TensorSpec("y", "FP32", (1,)),), 4, [Step("part", {"x": "x"}, {"y": "y"})])
    assert write_model(tmp_path / "whole", {"config.pbtxt": text})
    config = read_config(tmp_path / "whole")
    assert (len(config.instance_group), config.HasField("dynamic_batching")) == (0, False)
    assert (tmp_path / "whole/1").is_dir()
