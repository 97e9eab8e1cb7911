"""INT8 for OpenVINO: what is rounded, and that it answers as fp32 does."""

from pathlib import Path

import onnx
import pytest

from build_engines.__main__ import main
from build_engines.commands.verify import verify
from build_engines.model_folder.stored import open_model
from serving.repository.model_config import read_config
from tests.build_engines.models import save_scale


@pytest.mark.accuracy
@pytest.mark.parametrize(("name", "kind", "count"), [("resnet", "Conv", 359), ("bert", "MatMul", 24)])
def test_what_products_take_is_rounded_and_not_what_they_make_and_the_answers_stay(
    name: str, kind: str, count: int, tmp_path: Path
) -> None:
    assert main(["build", name, "--for", "openvino", "--precision", "int8", "--out", str(tmp_path)]) == 0
    folder = tmp_path / f"{name}_int8"
    assert read_config(folder, "cpu").parameters["cpu_engine"].string_value == "openvino"
    graph = onnx.load(folder / "1/model.onnx").graph
    makers = {name: node.op_type for node in graph.node for name in node.output}
    takers = [makers.get(name, "") for node in graph.node if node.op_type == kind for name in node.input]
    assert takers.count("DequantizeLinear") > 10
    assert kind not in {makers.get(node.input[0]) for node in graph.node if node.op_type == "QuantizeLinear"}
    scores = verify(open_model(f"{name}_int8", tmp_path, "cpu"), None, None, count)
    assert all(score.passed for score in scores), scores


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--precision", "auto"], "--precision auto compares engines: say --for auto"),
        (["--precision", "fp16"], "fp16 is no faster than fp32 on a CPU"),
        (["--precision", "int8"], "INT8 for OpenVINO is calibrated on instances that a client reads"),
    ],
)
def test_what_it_does_not_make_is_refused(
    words: list[str], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = save_scale(tmp_path / "scale.onnx")
    out = ["--for", "openvino", "--out", str(tmp_path / "models")]
    assert main(["build", "scale", "--weights", str(file), *out, *words]) != 0
    assert reason in capsys.readouterr().err
