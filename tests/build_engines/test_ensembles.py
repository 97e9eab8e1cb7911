"""The model folders that the commands of the ensembles write, from weights of every kind."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper
from tritonclient.grpc.model_config_pb2 import TYPE_UINT8

from build_engines.__main__ import main
from build_engines.ensemble_files.classes_client import Client
from build_engines.model_folder import read_config
from clients.base import Model
from serving.errors import InferenceFailed
from tests.build_engines.models import parsed

pytestmark = pytest.mark.full


def tiny_network(path: Path, shape: tuple[int, ...]) -> None:
    """Save a network whose scores are the means of the three channels."""
    axes, sides = [1, 2] if shape[-1] == 3 else [2, 3], ", ".join(map(str, shape))
    model = parsed(f"""tiny (float[batch, {sides}] image) => (float[batch, 3] scores) {{
        scores = ReduceMean <axes = {axes}, keepdims = 0> (image)
    }}""")
    onnx.save(model, path)


def build(folder: Path, *arguments: str, model: str = "image_classes") -> int:
    words = ["build", model, "--for", "cpu", "--out", str(folder / "models"), "--no-load"]
    return main([*words, *arguments])


def test_use_efficientnet_unless_weights_are_named(tmp_path: Path) -> None:
    assert build(tmp_path) == 0
    decoder = read_config(tmp_path / "models/image_classes_decoder")
    assert (list(decoder.output[0].dims), decoder.output[0].data_type) == (
        [3, 224, 224],
        TYPE_UINT8,
    )
    assert len((tmp_path / "models/image_classes/labels.txt").read_text().splitlines()) == 1000


def test_keep_the_scores_of_the_file(tmp_path: Path) -> None:
    tiny_network(tmp_path / "tiny.onnx", (3, 96, 96))
    model = onnx.load(tmp_path / "tiny.onnx")
    model.graph.node.append(helper.make_node("Softmax", ["scores"], ["shares"]))
    model.graph.output[0].name = "shares"
    onnx.save(model, tmp_path / "tiny.onnx")
    assert build(tmp_path, "--weights", str(tmp_path / "tiny.onnx")) == 0
    assert (
        read_config(tmp_path / "models/image_classes").parameters["activation"].string_value
        == "none"
    )


@pytest.mark.parametrize(("shape", "layout"), [((96, 96, 3), "HWC"), ((3, 96, 96), "CHW")])
def test_keep_an_onnx_file_s_names_and_read_its_layout(
    tmp_path: Path, shape: tuple[int, ...], layout: str
) -> None:
    tiny_network(tmp_path / "tiny.onnx", shape)
    assert build(tmp_path, "--weights", str(tmp_path / "tiny.onnx")) == 0
    steps = read_config(tmp_path / "models/image_classes").ensemble_scheduling.step
    assert dict(steps[1].input_map) == {"image": "pixels"}
    assert dict(steps[1].output_map) == {"scores": "OUTPUT"}
    decoder = tmp_path / "models/image_classes_decoder"
    assert f'LAYOUT = "{layout}"' in (decoder / "1/dali.py").read_text()
    assert f'string_value: "{layout}"' in (decoder / "configs/cpu.pbtxt").read_text()
    assert tuple(read_config(decoder).output[0].dims) == shape
    assert "SIZE = 96" in (decoder / "1/dali.py").read_text()


@pytest.mark.parametrize(
    ("decoder", "backends"),
    [("auto", ["dali", "python"]), ("dali", ["dali"]), ("python", ["python"])],
)
def test_decode_with_dali_on_gpus_by_default(
    tmp_path: Path, decoder: str, backends: list[str]
) -> None:
    tiny_network(tmp_path / "tiny.onnx", (96, 96, 3))
    assert (
        build(tmp_path, "--weights", str(tmp_path / "tiny.onnx"), "--set", f"decoder={decoder}")
        == 0
    )
    folder = tmp_path / "models/image_classes_decoder"
    files = [folder / "config.pbtxt", *folder.glob("configs/cpu.pbtxt")]
    assert [file.read_text().split('backend: "')[1].split('"')[0] for file in files] == backends


@pytest.mark.parametrize("setting", ["pooling=max", "normalize=maybe", "max_length=x", "maximum=1"])
def test_refuse_a_wrong_setting(
    setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert build(tmp_path, "--set", setting, model="text_embedding") == 2
    assert f"--set {setting.partition('=')[0]}: " in capsys.readouterr().err


def test_return_the_sigmoid_of_one_logit_unless_it_is_not_finite(tmp_path: Path) -> None:
    client = Client(Model("own", tmp_path, (), ()))
    (prediction,) = client.postprocess(
        {"OUTPUT": np.zeros((1, 1), np.float32)}, {}, [b""], {"top_k": 5}
    )
    assert prediction == {"classes": [{"label": "0", "class_id": 0, "score": 0.5}]}
    with pytest.raises(InferenceFailed, match="OUTPUT"):
        client.postprocess({"OUTPUT": np.full((1, 1), np.nan, np.float32)}, {}, [b""], {"top_k": 5})


def test_refuse_a_network_of_another_shape(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tiny_network(tmp_path / "tiny.onnx", (224, 96, 3))
    assert build(tmp_path, "--weights", str(tmp_path / "tiny.onnx")) == 1
    assert "[224, 96, 3]" in capsys.readouterr().err
    assert not (tmp_path / "models/image_classes").exists()
