"""Tests what the survey tells PID 1 about the models before anything starts."""

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from serving.host.tritonserver import backend_directory
from serving.model_status.shared_files import MODELS, ModelsFile
from serving.model_status.states import LOADING
from serving.preparation.survey import survey
from serving.repository.layout import Survey
from serving.settings.settings import Settings
from tests.repository.test_model_config import ONNX, WHOLE, write

pytestmark = pytest.mark.unit


def look(repository: Path, stages: bool = False, **more: str) -> Survey:
    variables = {"SERVE_MODEL_REPOSITORY": str(repository), "SERVE_DEVICE": "cpu"} | more
    return survey(Settings.from_env(variables), backend_directory(), stages)


def test_keep_the_survey_unchanged_through_json(tmp_path: Path) -> None:
    write(tmp_path / "net", 'platform: "tensorrt_plan"')
    (tmp_path / "other").mkdir()
    report = look(tmp_path)
    assert json.dumps(asdict(Survey(**json.loads(text := json.dumps(asdict(report)))))) == text
    assert (report.models, report.default) == (["net"], "net")
    assert any(f"{tmp_path}/other" in line for line in report.warnings)


def test_report_mistakes_and_list_those_of_configurations_separately(tmp_path: Path) -> None:
    assert str(tmp_path) in look(tmp_path).mistakes[0]
    write(tmp_path / "net", "no protobuf")
    report = look(tmp_path)
    assert (report.mistakes, len(report.unreadable), report.models) == ((), 1, ["net"])


def test_name_the_chosen_engine_and_stage_the_models_to_load(tmp_path: Path) -> None:
    write(tmp_path / "models/plain", WHOLE)
    write(tmp_path / "models/other", WHOLE)
    (tmp_path / "run").mkdir()
    variables = {
        "SERVE_LOAD_MODELS": "plain",
        "SERVE_CPU_ENGINE": "openvino",
        "SERVE_RUN_DIR": str(tmp_path / "run"),
    }
    report = look(tmp_path / "models", stages=True, **variables)
    assert [line.partition(":")[0] for line in report.engines] == ["plain"]
    assert json.dumps(asdict(Survey(**json.loads(text := json.dumps(asdict(report)))))) == text
    assert [path.name for path in (tmp_path / "run/models").iterdir()] == ["plain"]
    assert 'backend: "openvino"' in (tmp_path / "run/models/plain/config.pbtxt").read_text()
    (entry,) = ModelsFile(tmp_path / "run/models.json").look().entries.values()
    assert (entry.name, entry.folder, entry.state) == (
        "plain",
        str(tmp_path / "models/plain"),
        LOADING,
    )


def test_skip_an_unreadable_model_when_folders_are_watched(tmp_path: Path) -> None:
    write(tmp_path / "models/net", WHOLE)
    write(tmp_path / "models/bad", "no protobuf")
    (tmp_path / "run").mkdir()
    report = look(
        tmp_path / "models", stages=True, SERVE_RUN_DIR=str(tmp_path / "run"), SERVE_RELOAD="true"
    )
    assert report.unreadable == [] and any(
        str(tmp_path / "models/bad") in line for line in report.warnings
    )
    table = ModelsFile(tmp_path / "run/models.json").look()
    assert list(table.entries) == ["net"] and Path(table.entries["net"].folder).is_relative_to(
        tmp_path / "run/copies"
    )
    assert [list(rejection.folders) for rejection in table.rejected] == [["bad"]]


def test_stop_the_start_if_a_loaded_model_names_an_unknown_engine(tmp_path: Path) -> None:
    write(tmp_path / "net", WHOLE)
    write(
        tmp_path / "bad",
        f"{ONNX} parameters {{ key: 'cpu_engine' value {{ string_value: 'fast' }} }}",
    )
    assert "cpu_engine" in look(tmp_path).unreadable[0]
    assert look(tmp_path, SERVE_LOAD_MODELS="net").unreadable == []


def test_refuse_more_models_than_there_are_columns(tmp_path: Path) -> None:
    for number in range(MODELS + 1):
        write(tmp_path / f"net{number}", ONNX)
    assert str(MODELS) in look(tmp_path).mistakes[0]
