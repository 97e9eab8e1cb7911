"""`tune`: measured through the real tritonserver on a small model, and what it refuses, chooses and writes."""

import json
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import ModelConfig

from build_engines.__main__ import main
from build_engines.model_folder.stored import open_model
from build_engines.tuning import choice, measure
from build_engines.tuning.choice import ALONE, AT_ONCE, TOGETHER, Candidate, Figures, candidates, choose
from serving.repository.engines import Processor
from serving.repository.model_config import read_config
from tests.build_engines.models import save_scale

CONFIG = """# Why it is so.
platform: "onnxruntime_onnx"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [ 4 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
instance_group { count: 3 kind: KIND_CPU }
dynamic_batching { preferred_batch_size: [ 4 ] max_queue_delay_microseconds: 70 }
parameters { key: "intra_op_thread_count" value { string_value: "7" } }
parameters { key: "mine" value { string_value: "stays" } }
"""


def parsed(text: str) -> Any:
    return text_format.Parse(text, ModelConfig())


TRIED = [Candidate(2, 1, ALONE), Candidate(1, 2, AT_ONCE), Candidate(1, 0, TOGETHER, engine="openvino")]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measures few and for a moment only: what is tested is that it measures."""
    monkeypatch.setattr(choice, "candidates", lambda *_: TRIED)
    monkeypatch.setattr(measure, "ROUNDS", 1)
    monkeypatch.setattr(measure, "SECONDS", 0.1)
    monkeypatch.setattr(measure, "WARM_UP_SECONDS", 0.05)


@pytest.fixture
def scale(tmp_path: Path) -> Path:
    """A repository with the model `scale`, as built."""
    file = save_scale(tmp_path / "scale.onnx")
    assert main(["build", "scale", "--weights", str(file), "--out", str(tmp_path / "models"), "--for", "cpu"]) == 0
    return tmp_path / "models"


@pytest.mark.usefixtures("quick")
def test_every_candidate_is_measured_and_the_best_is_written(scale: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = scale / "scale/configs/cpu.pbtxt"
    before, config = file.read_text(), read_config(scale / "scale", "cpu")
    assert main(["tune", "scale", "--repository", str(scale), "--callers", "1,4"]) == 0
    said = capsys.readouterr().out
    assert all(f"{candidate} " in said for candidate in TRIED)
    (chosen,) = [c for c in TRIED if f"best here: {c}\n" in said]
    assert read_config(scale / "scale", "cpu") == chosen.applied(config)
    assert f"undo: mv {file}.untuned {file}" in said
    assert file.with_name("cpu.pbtxt.untuned").read_text() == before
    assert main(["inspect", "scale", "--repository", str(scale)]) == 0
    assert "since the build" not in capsys.readouterr().out
    assert [path.name for path in scale.iterdir()] == ["scale"]


@pytest.mark.usefixtures("quick")
def test_a_dry_run_writes_nothing(scale: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = {path: path.read_bytes() for path in scale.rglob("*") if path.is_file()}
    assert main(["tune", "scale", "--repository", str(scale), "--dry-run"]) == 0
    assert "cpu.pbtxt is left as it is (--dry-run)" in capsys.readouterr().out
    assert {path: path.read_bytes() for path in scale.rglob("*") if path.is_file()} == before


PLAN = 'platform: "tensorrt_plan" max_batch_size: 8'
REFUSED = {
    "a TensorRT plan": (PLAN, "tune knows ONNX on a CPU: a TensorRT plan's batches are chosen by `build --preferred"),
    "no batches": (CONFIG.replace("max_batch_size: 8", ""), "has max_batch_size 0, so requests cannot share a run"),
    "a GPU": (CONFIG.replace("KIND_CPU", "KIND_GPU"), "configured for a GPU here"),
    "sequences": (CONFIG.replace("dynamic_batching", "sequence_batching { direct {} }\n#"), "serves sequences"),
    "no weights": (CONFIG, "has no model file that can be run here"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_tuned_is_refused_with_what_to_do(
    case: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config, reason = REFUSED[case]
    (tmp_path / "own/1").mkdir(parents=True)
    (tmp_path / "own/config.pbtxt").write_text(config)
    assert main(["tune", "own", "--repository", str(tmp_path)]) == 1
    assert reason in capsys.readouterr().err


def test_a_model_that_triton_does_not_load_is_told_with_its_reason(
    scale: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = scale / "scale/config.pbtxt"
    file.write_text(file.read_text().replace('"y"', '"z"'))
    assert main(["tune", "scale", "--repository", str(scale)]) == 1
    assert "the model has no such output, only y" in capsys.readouterr().err


def test_a_candidate_changes_what_it_is_about_and_keeps_the_rest() -> None:
    made = Candidate(2, 1, TOGETHER, delay=500).applied(parsed(CONFIG))
    expected = CONFIG.replace("count: 3", "count: 2").replace(": 70", ": 500").replace('"7"', '"1"')
    kept = 'parameters { key: "separate_runs" value { string_value: "0" } }'
    assert made == parsed(expected + kept)
    alone = Candidate(1, 0, ALONE).applied(parsed(CONFIG))
    assert (alone.instance_group[0].count, alone.HasField("dynamic_batching")) == (1, False)
    assert set(alone.parameters) == {"mine"}
    assert Candidate(1, 0, AT_ONCE).applied(parsed(CONFIG)).parameters["separate_runs"].string_value == "1"


def test_the_other_engine_is_measured_too_with_few_candidates() -> None:
    found = candidates(4, ["", "openvino"])
    other = [candidate for candidate in found if candidate.engine]
    assert found[: -len(other)] == candidates(4)
    assert {candidate.engine for candidate in other} == {"openvino"} and len(other) == 6
    made = other[0].applied(parsed(CONFIG))
    assert made.parameters["cpu_engine"].string_value == "openvino"
    assert "cpu_engine" not in Candidate(1, 0, TOGETHER).applied(parsed(CONFIG)).parameters


@pytest.mark.parametrize(
    ("features", "keeps", "asked", "engines"),
    [
        ("avx2", True, "", ["", "openvino"]),
        ("avx2", True, "openvino", ["", "onnxruntime"]),
        ("amx_bf16", True, "auto", ["", "onnxruntime"]),
        ("amx_bf16", False, "auto", ["onnxruntime"]),
        ("amx_bf16", False, "", [""]),
    ],
)
def test_openvino_is_measured_where_it_runs_and_its_bf16_keeps_the_accuracy(
    features: str, keeps: bool, asked: str, engines: list[str], scale: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(measure.ENGINES.__dict__, "here", Processor(frozenset([features])))
    monkeypatch.setattr(measure, "keeps_accuracy", lambda _: keeps)
    stored = open_model("scale", scale, "cpu")
    if asked:
        stored.config.parameters["cpu_engine"].string_value = asked
    assert measure.engines(stored) == engines


def test_candidates_are_few_on_any_machine() -> None:
    assert [len(candidates(processors)) for processors in (1, 2, 4, 64)] == [3, 8, 12, 16]
    assert len(set(candidates(64))) == 16
    assert Candidate(8, 8, ALONE) in candidates(64)


def test_the_choice_is_fast_then_quick_then_small() -> None:
    big, small, quick, slow = (Candidate(count, 0, TOGETHER) for count in (1, 2, 3, 4))
    figures = {
        big: Figures(10.0, 100.0, 0, 400),
        small: Figures(10.2, 98.0, 0, 200),
        quick: Figures(5.0, 96.0, 0, 100),
        slow: Figures(12.0, 99.0, 0, 100),
    }
    assert choose(figures) == small


def test_a_second_tuning_keeps_the_first_configuration(scale: Path) -> None:
    before = (scale / "scale/configs/cpu.pbtxt").read_text()
    for count in (2, 3):
        kept = choice.write(open_model("scale", scale, "cpu"), Candidate(count, 0, TOGETHER))
    assert kept.read_text() == before
    record = json.loads((scale / "scale/build.json").read_text())
    assert "configs/cpu.pbtxt" in record["files"]
    assert open_model("scale", scale, "cpu").config.instance_group[0].count == 3
    assert (scale / "scale/configs/cpu.pbtxt").read_text().startswith("# Written by python -m build_engines.\n")
