"""What PID 1 is told of the models before anything starts."""

from pathlib import Path

import pytest

from serving.host.tritonserver import backend_directory
from serving.preparation.survey import survey
from serving.repository.facts import Facts, ModelFacts
from serving.settings.table import Settings
from tests.repository.test_model_config import ONNX, X, Y, write
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit


def look(repository: Path, **more: str) -> Facts:
    variables = {"SERVE_MODEL_REPOSITORY": str(repository), "SERVE_DEVICE": "cpu"} | more
    return survey(Settings.from_env(variables), backend_directory())


def test_the_backend_of_a_model_is_surveyed(tmp_path: Path) -> None:
    write(tmp_path / "net", ONNX)
    assert look(tmp_path).models == {"net": ModelFacts(backend="onnxruntime")}


def test_it_is_the_same_behind_json(tmp_path: Path) -> None:
    write(tmp_path / "net", 'platform: "tensorrt_plan"')
    (tmp_path / "other").mkdir()
    facts = look(tmp_path)
    assert Facts.from_json(facts.to_json()) == facts
    assert (facts.default, facts.complete) == ("net", False)
    assert any(f"{tmp_path}/other" in line for line in facts.warnings)


def test_mistakes_are_told_and_those_of_configurations_apart(tmp_path: Path) -> None:
    assert str(tmp_path) in look(tmp_path).mistakes[0]
    write(tmp_path / "net", "no protobuf")
    facts = look(tmp_path)
    assert (facts.mistakes, len(facts.unreadable), list(facts.models)) == ((), 1, ["net"])


def test_triton_completes_nothing_where_all_models_say_all(tmp_path: Path) -> None:
    assert look(ROOT / "model_repository").complete
    write(tmp_path / "net", f"{ONNX} {X} {Y}")
    assert look(tmp_path).complete
    write(tmp_path / "bare", ONNX)
    assert not look(tmp_path).complete
    assert not look(tmp_path, SERVE_LOAD_MODELS="net").complete, "the other may be loaded later, through gRPC"


@pytest.mark.parametrize("platform", ["tensorrt_plan", "tensorflow_savedmodel"])
def test_backends_that_are_not_python_complete_more_than_what_is_missing(platform: str, tmp_path: Path) -> None:
    write(tmp_path / "net", f'platform: "{platform}" {X} {Y}')
    assert not look(tmp_path).complete


def test_models_that_may_come_later_may_leave_things_out(tmp_path: Path) -> None:
    write(tmp_path / "net", f"{ONNX} {X} {Y}")
    assert not look(tmp_path, SAGEMAKER_TRITON_ADDITIONAL_ARGS="--model-control-mode=poll").complete


def test_triton_gets_a_whole_file_where_one_says_what_differs_and_the_reason_of_a_choice(tmp_path: Path) -> None:
    write(tmp_path / "plain", f"{ONNX} {X} {Y}")
    (write(tmp_path / "later", f"{ONNX} {X} {Y}") / "configs").mkdir()
    (tmp_path / "later/configs/cpu.pbtxt").write_text("instance_group { kind: KIND_CPU }")
    facts = look(tmp_path, SERVE_LOAD_MODELS="plain")
    assert list(facts.configs) == [str(tmp_path / "later")], "it may be loaded through gRPC"
    assert "KIND_CPU" in facts.configs[str(tmp_path / "later")] and facts.engines == ()
    facts = look(tmp_path, SERVE_LOAD_MODELS="plain", SERVE_CPU_ENGINE="openvino")
    assert [line.partition(":")[0] for line in facts.engines] == ["plain"]
    assert 'backend: "openvino"' in facts.configs[str(tmp_path / "plain")]
    assert Facts.from_json(facts.to_json()) == facts
    assert look(tmp_path, SERVE_DEVICE="gpu", SERVE_CPU_ENGINE="openvino").configs == {}


def test_an_engine_that_there_is_not_ends_the_start_of_a_model_that_is_loaded(tmp_path: Path) -> None:
    write(tmp_path / "net", f"{ONNX} {X} {Y}")
    write(tmp_path / "bad", f"{ONNX} parameters {{ key: 'cpu_engine' value {{ string_value: 'fast' }} }}")
    assert "cpu_engine" in look(tmp_path).unreadable[0]
    assert look(tmp_path, SERVE_LOAD_MODELS="net").unreadable == ()


def test_one_that_is_not_loaded_and_cannot_be_read_is_left_to_triton(tmp_path: Path) -> None:
    write(tmp_path / "net", f"{ONNX} {X} {Y}")
    write(tmp_path / "bad", "no protobuf")
    facts = look(tmp_path, SERVE_LOAD_MODELS="net")
    assert (facts.unreadable, facts.complete) == ((), False)
