"""`--for auto`: the engines run in processes of their own, in turns, and the fastest that passes is written."""

from pathlib import Path

import numpy as np
import pytest

from build_engines.__main__ import main
from build_engines.commands.verify import verify
from build_engines.engines.measured import BF16, FP32, INT8, Candidate, Result, fastest, parameters
from build_engines.errors import BuildError
from build_engines.measurement.comparison import Score
from build_engines.measurement.isolated import IsolatedRunner, Way
from build_engines.model_folder.stored import open_model
from serving.host.tritonserver import backend_directory
from serving.repository.engines import ONNX_RUNTIME, OPENVINO, Processor, this_processor
from serving.repository.model_config import read_config
from tests.build_engines.models import save_scale

FILE, SMALL = Path("model.onnx"), Path("model.int8.openvino.onnx")
ORT, F32, HALF = (
    Candidate(FP32, Way(ONNX_RUNTIME), FILE),
    Candidate(FP32, Way(OPENVINO, "f32"), FILE),
    Candidate(BF16, Way(OPENVINO, "bf16"), FILE),
)
EIGHT = Candidate(INT8, Way(OPENVINO), SMALL)
ASKED = {  # by whether the processor computes in BF16
    False: {"onnxruntime fp32": "auto", "openvino fp32": "openvino"},
    True: {"onnxruntime fp32": "onnxruntime", "openvino fp32": "auto", "openvino bf16": "auto"},
}
WITH_AMX, WITHOUT = Processor(frozenset(["amx_bf16"])), Processor()


def result(candidate: Candidate, milliseconds: float, passed: bool = True) -> Result:
    return Result(candidate, milliseconds, [Score("accuracy", 1.0 if passed else 0.5, 0.9)])


@pytest.mark.parametrize(
    ("results", "expected"),
    [
        ([result(ORT, 30), result(F32, 31), result(HALF, 7), result(EIGHT, 5)], EIGHT),
        ([result(ORT, 30), result(HALF, 7), result(EIGHT, 6.5)], HALF),
        ([result(ORT, 30), result(HALF, 7, passed=False), result(EIGHT, 5, passed=False)], ORT),
        ([result(ORT, 30), result(F32, 29)], F32),
    ],
)
def test_the_fastest_is_taken_that_passes_and_int8_where_it_is_clearly_faster(
    results: list[Result], expected: Candidate
) -> None:
    assert fastest(results) == expected


@pytest.mark.parametrize(
    ("best", "here", "written"),
    [
        (HALF, WITH_AMX, {"cpu_engine": "auto"}),
        (F32, WITH_AMX, {"cpu_engine": "auto", "INFERENCE_PRECISION_HINT": "f32"}),
        (ORT, WITH_AMX, {"cpu_engine": "onnxruntime"}),
        (ORT, WITHOUT, {"cpu_engine": "auto"}),
        (F32, WITHOUT, {"cpu_engine": "openvino"}),
        (EIGHT, WITH_AMX, {"cpu_engine": "openvino"}),
    ],
)
def test_the_engine_is_left_to_each_machine_where_a_start_would_choose_the_same(
    best: Candidate, here: Processor, written: dict[str, str]
) -> None:
    assert parameters(best, here) == written


def test_a_model_is_built_with_the_table_that_decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = save_scale(tmp_path / "scale.onnx")
    models = tmp_path / "models"
    assert main(["build", "scale", "--weights", str(file), "--out", str(models), "--for", "auto"]) == 0
    said = capsys.readouterr().out
    assert "onnxruntime fp32" in said and "openvino fp32" in said and "no INT8 for openvino: " in said
    assert "cosine of 'y' 1.0000 (limit 0.9900), random input" in said
    chosen = said.split("fastest here: ")[1].splitlines()[0]
    asked = read_config(models / "scale", "cpu").parameters["cpu_engine"].string_value
    assert asked == ASKED[bool(this_processor(backend_directory()).bf16)][chosen]
    assert [path.name for path in (models / "scale/1").iterdir()] == ["model.onnx"]


def test_a_model_for_openvino_is_verified_by_openvino(tmp_path: Path) -> None:
    file = save_scale(tmp_path / "scale.onnx")
    models = tmp_path / "models"
    assert main(["build", "scale", "--weights", str(file), "--out", str(models), "--for", "openvino"]) == 0
    assert read_config(models / "scale", "cpu").parameters["cpu_engine"].string_value == "openvino"
    assert all(score.passed for score in verify(open_model("scale", models, "cpu"), file, None, 0))


@pytest.mark.parametrize("engine", [ONNX_RUNTIME, OPENVINO])
def test_a_runner_of_its_own_process_answers_and_says_what_is_wrong(engine: str, tmp_path: Path) -> None:
    runner = IsolatedRunner(save_scale(tmp_path / "scale.onnx"), Way(engine))
    feed = {"x": np.ones((2, 4), np.float32)}
    assert runner(feed)["y"].tolist() == [[2.0] * 4] * 2
    assert runner.seconds(feed) > 0
    with pytest.raises(BuildError):
        runner({"x": np.ones((2, 5), np.float32)})
    runner.close()
    (tmp_path / "broken.onnx").write_bytes(b"no model")
    with pytest.raises(BuildError):
        IsolatedRunner(tmp_path / "broken.onnx", Way(engine))
