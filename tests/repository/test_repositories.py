"""Tests which models are served: layouts of a model.tar.gz, several repositories, mistakes.
tests/conformance tests the default model over HTTP."""

from pathlib import Path

import pytest

from serving.preparation.survey import Chosen, choose_models
from serving.repository.layout import (
    BUILT_IN_MODELS,
    LayoutError,
    final_folders,
    is_meant_for_models,
)
from serving.repository.model_config import parse_config, parts_of
from serving.settings.settings import AUTO
from tests.pid1.test_serve import run
from tests.support.harness import free_port

pytestmark = pytest.mark.unit

ENSEMBLE = """
platform: "ensemble"  # model_name: "commented"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [-1] }
output { name: "y" data_type: TYPE_FP32 dims: [-1] }
ensemble_scheduling {
  step [
    { model_name: "scale" model_version: 1
      input_map { key: "x" value: "x" } output_map { key: "y" value: "between" } },
    { model_name: 'scale' model_version: 2
      input_map { key: "x" value: "between" } output_map { key: "y" value: "y" } }
  ]
}
"""


def make_model(repository: Path, name: str, config: str = "", version: str = "1") -> None:
    folder = repository / name
    (folder / version).mkdir(parents=True)
    (folder / "config.pbtxt").write_text(config or 'backend: "python"')


def make_ensemble(repository: Path) -> None:
    """Make `sixfold`, which calls `scale` twice, in versions 1 and 2."""
    make_model(repository, "sixfold", ENSEMBLE)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in ("a", "b"):
        make_model(tmp_path / "models", name)
    return tmp_path / "models"


def loaded(result: Chosen) -> tuple[str, ...]:
    return tuple(result.models)


def mistake(*folders: Path, default: str = "", load: tuple[str, ...] = ()) -> str:
    """Return the first line of the error with which a start with these settings ends."""
    with pytest.raises(LayoutError) as caught:
        choose_models(folders, default, load)
    return caught.value.mistakes[0]


def names(line: str, *words: object) -> bool:
    return all(str(word) in line for word in words)


def test_load_the_parts_of_an_ensemble_at_any_depth(repository: Path) -> None:
    for name, part in (("outer", "inner"), ("inner", "scale")):
        make_model(
            repository, name, f'ensemble_scheduling {{ step [ {{ model_name: "{part}" }} ] }}'
        )
    make_model(repository, "scale")
    assert loaded(choose_models([repository], "outer")) == ("outer", "inner", "scale")


def test_read_the_parts_from_the_configuration_of_this_machine(repository: Path) -> None:
    make_model(repository, "ensemble", 'ensemble_scheduling { step [ { model_name: "a" } ] }')
    (repository / "ensemble/configs").mkdir()
    (repository / "ensemble/configs/cpu.pbtxt").write_text(
        'ensemble_scheduling { step [ { model_name: "b" } ] }'
    )
    assert loaded(choose_models([repository], "ensemble", device="cpu")) == ("ensemble", "b")
    assert loaded(choose_models([repository], "ensemble")) == ("ensemble", "a")


def test_choose_models_by_name_besides_the_default(repository: Path) -> None:
    make_model(repository, "c")
    assert loaded(choose_models([repository], "b", ["c"])) == ("c", "b")
    assert loaded(choose_models([repository], "", ["c", "a"])) == ("c", "a")


def test_skip_comments_and_name_each_part_once() -> None:
    assert parts_of(parse_config(ENSEMBLE)) == ["scale"]
    assert parts_of(parse_config('ensemble_scheduling { step { model_name: "a#b" } }')) == ["a#b"]
    assert (
        parts_of(parse_config("# ensemble_scheduling\nparameters { key: \"model_name: 'x'\" }"))
        == []
    )


def test_enter_a_single_folder_around_the_models_and_log_it(
    tmp_path: Path, repository: Path
) -> None:
    result = choose_models([tmp_path])
    assert (result.folders, loaded(result)) == ((repository,), ("a", "b"))
    assert names(*result.warnings, tmp_path, "'models'")


def test_ignore_folders_that_are_not_models(repository: Path) -> None:
    for name in ("code", ".git", "__MACOSX"):
        (repository / name / "deep").mkdir(parents=True)
    result = choose_models([repository])
    assert loaded(result) == ("a", "b")
    assert names(*result.warnings, repository / "code")


def test_refuse_a_name_in_two_repositories(tmp_path: Path, repository: Path) -> None:
    make_model(tmp_path / "more", "b")
    assert names(mistake(repository, tmp_path / "more"), repository / "b", tmp_path / "more/b")


def test_refuse_a_model_at_the_root_with_commands_that_fix_it(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "config.pbtxt").write_text('name: "resnet"\nplatform: "onnxruntime_onnx"')
    assert "mkdir resnet && mv 1 config.pbtxt resnet/" in mistake(tmp_path)
    (tmp_path / "config.pbtxt").write_text('platform: "onnxruntime_onnx"')
    assert f"mkdir {tmp_path.name} && mv 1 config.pbtxt {tmp_path.name}/" in mistake(tmp_path)


def test_refuse_a_variable_that_names_a_missing_model(repository: Path) -> None:
    assert names(
        mistake(repository, default="resnet"),
        "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME",
        "'resnet'",
        "a, b",
    )
    assert names(mistake(repository, load=("x",)), "SERVE_LOAD_MODELS", "'x'")


def test_refuse_a_repository_without_models(tmp_path: Path) -> None:
    assert names(mistake(tmp_path), tmp_path)
    (tmp_path / "code").mkdir()
    (tmp_path / "inference.py").touch()
    assert names(mistake(tmp_path), "code/", "inference.py")
    assert names(mistake(tmp_path / "absent"), tmp_path / "absent")
    assert names(mistake(tmp_path / "inference.py"), "Not a directory")


def test_refuse_to_load_a_model_without_a_version(repository: Path) -> None:
    (repository / "b/1").rmdir()
    (repository / "b/model.onnx").touch()
    assert names(mistake(repository), "'b'", "model.onnx")
    assert loaded(choose_models([repository], "a")) == ("a",)
    (repository / "a/1").rmdir()
    with pytest.raises(LayoutError) as caught:
        choose_models([repository])
    assert [line.split("'")[1] for line in caught.value.mistakes[:2]] == ["a", "b"]


def test_refuse_an_ensemble_without_a_version_or_a_part(repository: Path) -> None:
    make_ensemble(repository)
    assert names(mistake(repository), "'sixfold'", "'scale'")
    make_model(repository, "scale")
    (repository / "sixfold/1").rmdir()
    assert names(mistake(repository), "'sixfold'")


@pytest.mark.parametrize(
    "name", ["a/config.pbtxt", "a/1/model.onnx", "config.pbtxt", "model.onnx", "top/a/config.pbtxt"]
)
def test_prefer_an_incomplete_repository_of_the_user_to_our_models(
    tmp_path: Path, name: str
) -> None:
    """Otherwise, a mistake in a model.tar.gz would make the server start the bundled models instead
    of the user's."""
    (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / name).touch()
    assert is_meant_for_models(tmp_path)
    assert final_folders([AUTO], tmp_path) == (tmp_path,)


def test_ignore_other_files_and_use_a_named_repository(tmp_path: Path) -> None:
    (tmp_path / "code").mkdir()
    (tmp_path / "code/inference.py").touch()
    assert not is_meant_for_models(tmp_path)
    for folder in (tmp_path, tmp_path / "absent"):
        assert final_folders([AUTO], folder) == (BUILT_IN_MODELS,)
        assert final_folders([tmp_path / "named", AUTO], folder) == (
            tmp_path / "named",
            BUILT_IN_MODELS,
        )


def test_stop_the_start_naming_the_line_of_a_broken_configuration(repository: Path) -> None:
    (repository / "a/config.pbtxt").write_text('backend: "python"\nmax_batchsize: 3')
    local = {"SERVE_HOST": "127.0.0.1", "PORT": str(free_port())}
    done = run(SERVE_MODEL_REPOSITORY=str(repository), **local)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count(f"{repository}/a/config.pbtxt") == 1
    assert f"{repository}/b/1 has no model.py" in done.stderr, "other mistakes are named too"
    assert loaded(choose_models([repository], "b")) == ("b",), (
        "a model that is not loaded is not read"
    )
