"""Tests INT8 for OpenVINO: which inputs are quantized, and that its predictions are like those of
fp32."""

from pathlib import Path

import numpy as np
import onnx
import pytest

from build_engines.comparison import verify
from build_engines.errors import BuildError
from build_engines.runners import openvino_runner
from build_engines.stored_model import open_model
from serving.repository.model_config import read_config
from tests.build_engines.models import run, save_digits, save_scale, save_texts
from tests.support.harness import SLEEPER_CLIENT, make_scale

pytestmark = pytest.mark.full

CALIBRATION = {"resnet": save_digits, "bert": save_texts}


@pytest.mark.parametrize(
    ("name", "kind", "count"), [("resnet", "Conv", 200), ("bert", "MatMul", 16)]
)
def test_quantize_only_the_inputs_of_products_for_openvino(
    name: str, kind: str, count: int, tmp_path: Path
) -> None:
    samples = CALIBRATION[name](tmp_path)
    words = f"--for openvino --precision int8 --calibration {samples} --no-load --out {tmp_path}"
    assert run(f"build {name} {words}") == 0
    folder = tmp_path / f"{name}_int8"
    assert read_config(folder, "cpu").parameters["cpu_engine"].string_value == "openvino"
    graph = onnx.load(folder / "1/model.onnx").graph
    makers = {name: node.op_type for node in graph.node for name in node.output}
    takers = [
        makers.get(name, "") for node in graph.node if node.op_type == kind for name in node.input
    ]
    assert takers.count("DequantizeLinear") > 10
    assert kind not in {
        makers.get(node.input[0]) for node in graph.node if node.op_type == "QuantizeLinear"
    }
    scores = verify(
        open_model(f"{name}_int8", tmp_path, "cpu"),
        None,
        samples if name == "resnet" else None,
        count,
    )
    assert all(score.passed for score in scores), scores


@pytest.mark.parametrize(
    ("target", "precision"), [("openvino", "fp16"), ("openvino", "int8"), ("cpu", "fp16")]
)
def test_refuse_targets_and_precisions_that_cannot_be_built(
    target: str, precision: str, tmp_path: Path
) -> None:
    file = save_scale(tmp_path / "scale.onnx")
    models = tmp_path / "models"
    words = f"--weights {file} --for {target} --precision {precision} --out {models}"
    assert run(f"build scale {words}") != 0
    assert not models.exists()


def test_verify_a_model_for_openvino_with_openvino(tmp_path: Path) -> None:
    file = save_scale(tmp_path / "scale.onnx")
    models = tmp_path / "models"
    assert run(f"build scale --weights {file} --out {models} --for openvino --no-load") == 0
    parameters = read_config(models / "scale", "cpu").parameters
    assert parameters["cpu_engine"].string_value == "openvino"
    # BF16 is not known to be accurate enough for this model
    assert parameters["INFERENCE_PRECISION_HINT"].string_value == "f32"
    assert all(score.passed for score in verify(open_model("scale", models, "cpu"), file, None, 0))


def test_compare_a_model_with_its_own_client_on_the_example(tmp_path: Path) -> None:
    make_scale(tmp_path)
    client = SLEEPER_CLIENT.replace("seconds", "x").replace("slept", "y")
    (tmp_path / "scale/client.py").write_text(client)
    stored = open_model("scale", tmp_path, "")
    (score,) = verify(stored, stored.version / "model.onnx", None, 0)
    assert (score.note, score.passed) == ("the model's example", True)


def test_run_openvino_in_its_own_process_and_report_errors(tmp_path: Path) -> None:
    run = openvino_runner(save_scale(tmp_path / "scale.onnx"), {})
    assert run({"x": np.ones((2, 4), np.float32)})["y"].tolist() == [[2.0] * 4] * 2
    with pytest.raises(BuildError):
        run({"x": np.ones((2, 5), np.float32)})
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(BuildError):
        openvino_runner(tmp_path / "broken.onnx", {})({})
