"""Trained models of tables: what is built of them, and what is refused by name."""

import warnings
from pathlib import Path
from typing import Any

import joblib
import onnx
import pytest
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.linear_model import LogisticRegression

from build_engines.build import build
from build_engines.errors import BuildError, UsageError
from build_engines.model_folder.stored import StoredModel, open_model
from build_engines.request import Request
from clients.base import TensorSpec
from tests.build_engines import trained
from tests.build_engines.models import parsed, save_scale

pytestmark = pytest.mark.unit


def made(tmp_path: Path, file: Path, **options: Any) -> StoredModel:
    """The model folder `own` of a file."""
    build(Request("own", str(file), repository=tmp_path / "models", **({"allow_pickle": True} | options)))
    return open_model("own", tmp_path / "models")


def columns(stored: StoredModel) -> tuple[str, ...]:
    client = stored.client()
    assert client
    return client.columns


def test_a_pipeline_of_numbers_and_texts_has_an_input_for_each_column_that_it_uses(tmp_path: Path) -> None:
    stored = made(tmp_path, trained.mixed(tmp_path).file)
    assert [(spec.datatype, spec.shape) for spec in stored.model.inputs] == [
        ("FP32", (1,)),
        ("BYTES", (1,)),
        ("FP32", (1,)),
        ("BYTES", (1,)),
        ("INT64", (1,)),
    ]
    assert columns(stored) == ("age", "job", "fare (EUR)", "city", "grade")
    assert (stored.folder / "labels.txt").read_text() == "no\nyes\n"
    assert "missing" not in stored.model.parameters
    assert stored.config.instance_group[0].kind == stored.config.instance_group[0].KIND_CPU
    assert not (stored.folder / "configs").exists()


def test_a_matrix_has_one_input_and_the_names_of_its_columns(tmp_path: Path) -> None:
    stored = made(tmp_path, trained.forest(tmp_path).file)
    assert stored.model.inputs == (TensorSpec("X", "FP32", (4,)),)
    assert columns(stored)[0] == "sepal length (cm)"
    assert [spec.shape for spec in stored.model.outputs] == [(1,), (3,)]
    assert stored.model.max_batch_size == 1024


def test_classes_that_are_numbers_are_kept_and_can_be_named(tmp_path: Path) -> None:
    model = trained.odd_classes(tmp_path)
    assert made(tmp_path, model.file).model.parameters["classes"] == "1,3,5"
    (tmp_path / "names").write_text("a\nb\nc\n")
    client = made(tmp_path, model.file, labels=tmp_path / "names").client()
    assert client and client.labels == ["a", "b", "c"]  # type: ignore[attr-defined]


def test_models_that_were_trained_with_empty_cells_take_them(tmp_path: Path) -> None:
    stored = made(tmp_path, trained.xgboosts(tmp_path).file)
    assert stored.model.parameters["missing"] == "nan"
    assert columns(stored)[0] == "sepal length (cm)"


def test_a_model_that_the_converter_does_not_wholly_know_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BuildError, match="Pipeline"):
        made(tmp_path, trained.misconverted(tmp_path).file)
    assert not (tmp_path / "models").exists()


def test_a_pickle_is_read_only_where_it_is_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    joblib.dump(trained.Code(), tmp_path / "model.joblib")
    with pytest.raises(UsageError, match="--allow-pickle"):
        made(tmp_path, tmp_path / "model.joblib", allow_pickle=False)
    assert not Path(trained.CODE).exists()
    with pytest.raises(UsageError, match="int"):
        made(tmp_path, tmp_path / "model.joblib")
    assert Path(trained.CODE).exists()


def test_a_model_of_another_scikit_learn_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = trained.ridge(tmp_path)
    with warnings.catch_warnings(), monkeypatch.context() as patched:
        patched.setattr("sklearn.base.__version__", "1.0")
        joblib.dump(model.model, tmp_path / "old.joblib")
    with pytest.raises(BuildError, match=r"1\.0"):
        made(tmp_path, tmp_path / "old.joblib")


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ({"a": 1}, "model.pkl", "dict"),
        (LogisticRegression(), "model.pkl", "trained"),
        (None, "model.pkl", "model.pkl"),
        (None, "model.json", "model.json"),
    ],
)
def test_what_is_no_trained_model_is_refused(content: Any, name: str, message: str, tmp_path: Path) -> None:
    if content is None:
        (tmp_path / name).write_bytes(b"{}")
    else:
        joblib.dump(content, tmp_path / name)
    with pytest.raises(BuildError, match=message):
        made(tmp_path, tmp_path / name)


def export(tmp_path: Path, batch: int | None = None, **options: Any) -> Path:
    """The ONNX file as a user makes it, by default with the ZipMap that Triton refuses."""
    model = trained.odd_classes(tmp_path)
    types = [("X", FloatTensorType([batch, 4]))]
    onnx.save(to_onnx(model.model, initial_types=types, target_opset={"": 17, "ai.onnx.ml": 3}, **options), model.file)
    return model.file.rename(tmp_path / "model.onnx")


@pytest.mark.parametrize("options", [{}, {"options": {"zipmap": False}}, {"batch": 1}])
def test_an_onnx_file_of_scikit_learn_needs_no_flag_and_loses_its_zipmap(options: Any, tmp_path: Path) -> None:
    stored = made(tmp_path, export(tmp_path, **options))
    nodes = onnx.load(stored.file).graph.node
    assert "ZipMap" not in {node.op_type for node in nodes}
    assert [(spec.datatype, spec.shape) for spec in stored.model.outputs] == [("INT64", (1,)), ("FP32", (3,))]
    assert stored.model.max_batch_size == 1024
    assert stored.model.parameters["client"] == "table"


def test_a_table_is_served_in_fp32_and_names_of_classes_are_not_given_twice(tmp_path: Path) -> None:
    model = trained.forest(tmp_path)
    with pytest.raises(UsageError, match="fp32"):
        made(tmp_path, model.file, precision="int8")
    with pytest.raises(UsageError, match="setosa"):
        made(tmp_path, model.file, labels=model.file)


def test_an_onnx_file_without_these_operators_stays_one_of_tensors(tmp_path: Path) -> None:
    assert made(tmp_path, save_scale(tmp_path / "scale.onnx")).client() is None
    assert columns(made(tmp_path, save_scale(tmp_path / "scale.onnx"), client="table")) == ()


def test_outputs_that_are_no_tensors_are_refused(tmp_path: Path) -> None:
    model = parsed("sequence (float[batch, 4] x) => (seq(float[batch, 4]) y) { y = SequenceConstruct (x) }")
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(BuildError, match="'y'"):
        made(tmp_path, tmp_path / "model.onnx", client="table")
