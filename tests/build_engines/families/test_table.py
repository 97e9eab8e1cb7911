"""Tests which models are built from trained tabular models, and which ones are refused with an
explanation."""

import json
import pickle
import sys
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from importlib import import_module
from io import BytesIO
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import joblib
import lightgbm
import numpy as np
import onnx
import onnxruntime
import pandas as pd
import pytest
import sklearn
import xgboost
from skl2onnx import to_onnx
from skl2onnx.common.data_types import FloatTensorType
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.decomposition import PCA
from sklearn.discriminant_analysis import QuadraticDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    GradientBoostingClassifier,
    GradientBoostingRegressor,
    HistGradientBoostingClassifier,
    HistGradientBoostingRegressor,
    IsolationForest,
    RandomForestClassifier,
    RandomTreesEmbedding,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.feature_selection import SelectFromModel, SelectKBest, VarianceThreshold
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.impute import KNNImputer, SimpleImputer
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.model_selection import GridSearchCV, TunedThresholdClassifierCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.multioutput import MultiOutputClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import NearestCentroid
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import FeatureUnion, Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    MaxAbsScaler,
    OneHotEncoder,
    OrdinalEncoder,
    StandardScaler,
    TargetEncoder,
)
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeRegressor

from build_engines.errors import BuildError, UsageError
from build_engines.families import table
from build_engines.families.tables import trees as table_trees
from build_engines.request import Request
from build_engines.stored_model import StoredModel
from build_engines.weights import Weights
from clients.base import TensorSpec
from serving.errors import DecodingError
from tests.build_engines import models, trained
from tests.build_engines.models import save_scale
from tests.build_engines.trained import lists_of
from tests.support.harness import parsed

pytestmark = pytest.mark.unit


def build_own(tmp_path: Path, file: Path, **options: Any) -> StoredModel:
    return models.build_own(tmp_path, file, **({"allow_pickle": True} | options))


def columns(stored: StoredModel) -> tuple[str, ...]:
    client = stored.client()
    assert client
    return client.columns


def test_make_an_input_for_each_column_that_a_pipeline_uses(tmp_path: Path) -> None:
    stored = build_own(tmp_path, trained.mixed(tmp_path).file)
    assert [spec.datatype for spec in stored.model.inputs] == [
        "FP64",
        "BYTES",
        "FP64",
        "BYTES",
        "INT64",
    ]
    assert {spec.shape for spec in stored.model.inputs} == {(1,)}
    assert columns(stored) == ("age", "job", "fare (EUR)", "city", "grade")
    assert (stored.folder / "labels.txt").read_text() == "no\nyes\n"
    assert json.loads((stored.folder / "categories.json").read_text()) == [
        None,
        None,
        None,
        None,
        [0, 1, 2, 3],
    ]
    # its OneHotEncoder ignores unknown values
    assert stored.model.parameters["missing"] == "1,3"
    assert stored.config.instance_group[0].kind == stored.config.instance_group[0].KIND_CPU
    assert not (stored.folder / "configs").exists()


def test_make_one_input_for_a_matrix_with_its_column_names(tmp_path: Path) -> None:
    stored = build_own(tmp_path, trained.forest(tmp_path).file)
    assert stored.model.inputs == (TensorSpec("X", "FP64", (4,)),)
    assert columns(stored)[0] == "sepal length (cm)"
    assert [spec.shape for spec in stored.model.outputs] == [(1,), (3,)]
    assert stored.model.max_batch_size == 1024


def test_keep_numeric_classes_and_let_the_user_name_them(tmp_path: Path) -> None:
    model = trained.odd_classes(tmp_path)
    assert build_own(tmp_path, model.file).model.parameters["classes"] == "1,3,5"
    (tmp_path / "names").write_text("a\nb\nc\n")
    client = build_own(tmp_path, model.file, labels=tmp_path / "names").client()
    assert client and client.labels == ["a", "b", "c"]  # type: ignore[attr-defined]


def test_leave_the_graph_of_the_weights_unchanged(tmp_path: Path) -> None:
    weights = Weights(export(tmp_path))
    table.FAMILY.write_model(weights, Request("own"), tmp_path / "folder")
    assert weights.graph == Weights(weights.path).graph


def test_accept_empty_cells_if_the_model_was_trained_with_them(tmp_path: Path) -> None:
    stored = build_own(tmp_path, trained.xgboosts(tmp_path).file)
    assert stored.model.parameters["missing"] == "nan"
    assert columns(stored)[0] == "sepal length (cm)"


def test_read_a_pickle_only_if_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    joblib.dump(trained.Code(), tmp_path / "model.joblib")
    with pytest.raises(UsageError, match="--allow-pickle"):
        build_own(tmp_path, tmp_path / "model.joblib", allow_pickle=False)
    assert not Path(trained.CODE).exists()
    with pytest.raises(UsageError, match="int"):
        build_own(tmp_path, tmp_path / "model.joblib")
    assert Path(trained.CODE).exists()


def test_refuse_a_model_of_another_scikit_learn(tmp_path: Path) -> None:
    file = trained.ridge(tmp_path).file
    content, version = file.read_bytes(), sklearn.__version__.encode()
    assert version in content
    file.write_bytes(content.replace(version, b"1.0".ljust(len(version), b"0")))
    with pytest.raises(BuildError, match=r"1\.0"):
        build_own(tmp_path, file)


@pytest.mark.parametrize(
    ("content", "name", "message"),
    [
        ({"a": 1}, "model.pkl", "dict"),
        (LogisticRegression(), "model.pkl", "trained"),
        (None, "model.pkl", "model.pkl"),
        (None, "model.json", "model.json"),
    ],
)
def test_refuse_files_that_are_not_a_trained_model(
    content: Any, name: str, message: str, tmp_path: Path
) -> None:
    if content is None:
        (tmp_path / name).write_bytes(b"{}")
    else:
        joblib.dump(content, tmp_path / name)
    with pytest.raises(BuildError, match=message):
        build_own(tmp_path, tmp_path / name)


def export(tmp_path: Path, batch: int | None = None, **options: Any) -> Path:
    """Return the ONNX file that a user would export, by default with ZipMap, which Triton
    refuses."""
    model = trained.odd_classes(tmp_path)
    types = [("X", FloatTensorType([batch, 4]))]
    onnx.save(
        to_onnx(
            model.model, initial_types=types, target_opset={"": 17, "ai.onnx.ml": 3}, **options
        ),
        model.file,
    )
    return model.file.rename(tmp_path / "model.onnx")


@pytest.mark.parametrize("options", [{}, {"options": {"zipmap": False}}, {"batch": 1}])
def test_build_scikit_learn_s_onnx_file_without_flags_or_zipmap(
    options: Any, tmp_path: Path
) -> None:
    stored = build_own(tmp_path, export(tmp_path, **options))
    nodes = onnx.load(stored.file).graph.node
    assert "ZipMap" not in {node.op_type for node in nodes}
    assert [(spec.datatype, spec.shape) for spec in stored.model.outputs] == [
        ("INT64", (1,)),
        ("FP32", (3,)),
    ]
    assert stored.model.max_batch_size == 1024
    assert stored.model.parameters["client"] == "table"


def test_serve_a_table_in_fp32_and_refuse_to_name_classes_twice(tmp_path: Path) -> None:
    model = trained.forest(tmp_path)
    with pytest.raises(UsageError, match="fp32"):
        build_own(tmp_path, model.file, precision="int8")
    with pytest.raises(UsageError, match="setosa"):
        build_own(tmp_path, model.file, labels=model.file)


def test_serve_other_onnx_files_as_tensors(tmp_path: Path) -> None:
    assert build_own(tmp_path, save_scale(tmp_path / "scale.onnx")).client() is None
    assert columns(build_own(tmp_path, save_scale(tmp_path / "scale.onnx"), client="table")) == ()


def test_refuse_outputs_that_are_not_tensors(tmp_path: Path) -> None:
    model = parsed(
        "sequence (float[batch, 4] x) => (seq(float[batch, 4]) y) { y = SequenceConstruct (x) }"
    )
    onnx.save(model, tmp_path / "model.onnx")
    with pytest.raises(BuildError, match="'y'"):
        build_own(tmp_path, tmp_path / "model.onnx", client="table")


RNG = np.random.default_rng(0)
LETTERS = pd.DataFrame({"c": np.array(["p", "q", None] * 20, object), "v": RNG.normal(size=60)})
WITH_NAN = LETTERS.assign(c=np.array(["p", "q", np.nan] * 20, object))
FILLED = LETTERS.fillna("z")
LETTER = FILLED.c.to_numpy()
NUMBERS = RNG.normal(size=(60, 3))
GAPS = np.where(RNG.random((60, 3)) < 0.2, np.nan, NUMBERS)
CODES = np.digitize(NUMBERS[:, 0], [-0.5, 0.5])
KIND = np.array(["a", "b", "c"])[CODES]
SECONDS = pd.DataFrame({"time": 1.7e9 + RNG.uniform(0, 3600, 200), "v": RNG.normal(size=200)})
LATE = (SECONDS.time > 1.7e9 + 1800).to_numpy()
VOTE = VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], voting="soft")
WEIGHTED = ColumnTransformer(
    [("c", OneHotEncoder(), ["c"]), ("v", StandardScaler(), ["v"])], transformer_weights={"c": 0.3}
)
WORDS = np.char.add("kind_", KIND)
DART = xgboost.XGBClassifier(booster="dart", n_estimators=2)
LINES = xgboost.XGBClassifier(booster="gblinear", n_estimators=2)
ZEROS = lightgbm.LGBMClassifier(n_estimators=2, zero_as_missing=True, verbose=-1)
FILLING = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder())
QUANTILE = "reg:quantileerror"
AROUND = pd.DataFrame({"a": 1e9 + 10 * RNG.normal(size=200), "b": RNG.normal(size=200)})


def encoded(encoder: Any, model: Any) -> Any:
    """Return a pipeline that encodes the column c and passes on the other columns."""
    return make_pipeline(ColumnTransformer([("c", encoder, ["c"])], remainder="passthrough"), model)


def built(tmp_path: Path, model: Any, **options: Any) -> StoredModel:
    file = tmp_path / "trained.joblib"
    joblib.dump(model, file)
    return build_own(tmp_path, file, **options)


def assert_answers(tmp_path: Path, model: Any, rows: Any, tolerance: float = 1e-6) -> list[Any]:
    """Build the model, and assert that its predictions equal those of the trained model. Return the
    predictions."""
    return assert_alike(built(tmp_path, model), model, rows, tolerance)


def assert_alike(stored: StoredModel, model: Any, rows: Any, tolerance: float = 1e-6) -> list[Any]:
    """Assert that the built model gives the same predictions as the trained one, and the same
    probabilities if it has any. Return the predictions."""
    predictions = answered(stored, lists_of(rows))
    assert [each["prediction"] for each in predictions] == model.predict(rows).tolist()
    if hasattr(model, "predict_proba"):
        scores = [list(each["probabilities"].values()) for each in predictions]
        np.testing.assert_allclose(scores, model.predict_proba(rows), atol=tolerance)
    return predictions


def predicted(stored: StoredModel, rows: Any) -> list[Any]:
    return [each["prediction"] for each in answered(stored, lists_of(rows))]


def answered(stored: StoredModel, rows: list[Any]) -> list[Any]:
    client = stored.client()
    assert client
    tensors = client.prepare(rows, {})
    session = onnxruntime.InferenceSession(stored.file)
    feed = {name: _strings(array, bytes.decode) for name, array in tensors.items()}
    answers = [_strings(array, str.encode) for array in session.run(None, feed)]
    names = [output.name for output in session.get_outputs()]
    return client.postprocess(dict(zip(names, answers, strict=True)), tensors, rows, {})


def _strings(array: Any, change: Callable[[Any], Any]) -> Any:
    """Apply `change` to each string in an array of strings, because ONNX Runtime takes and returns
    `str`."""
    return np.vectorize(change, otypes=[object])(array) if array.dtype.kind in "OU" else array


@pytest.mark.parametrize(
    ("model", "rows", "classes"),
    [
        (encoded(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()), LETTERS, LETTER),
        (encoded(OneHotEncoder(handle_unknown="ignore"), LogisticRegression()), WITH_NAN, LETTER),
        (encoded(OneHotEncoder(), LogisticRegression()), LETTERS, LETTER),
        (encoded(OrdinalEncoder(), RandomForestClassifier(5)), FILLED, LETTER),
        (make_pipeline(SimpleImputer(), StandardScaler(), LogisticRegression()), GAPS, KIND),
        (
            make_pipeline(SimpleImputer(strategy="constant", fill_value=0), LogisticRegression()),
            GAPS,
            KIND,
        ),
        (make_pipeline(KBinsDiscretizer(), LogisticRegression()), NUMBERS, KIND),
        (make_pipeline(StandardScaler(), LogisticRegression()), SECONDS, LATE),
        (make_pipeline(PCA(2), LogisticRegression()), NUMBERS, KIND),
        (make_pipeline(SimpleImputer(add_indicator=True), LogisticRegression()), GAPS, KIND),
        (encoded(FILLING, LogisticRegression()), WITH_NAN, LETTER),
        (make_pipeline(WEIGHTED, LogisticRegression()), FILLED, LETTER),
        (VOTE, NUMBERS, KIND),
        (make_pipeline(StandardScaler(), VOTE), NUMBERS, KIND),
        (RandomForestClassifier(5), NUMBERS, KIND == "a"),
        (QuadraticDiscriminantAnalysis(), NUMBERS, KIND),
    ],
    ids=[
        "missing",
        "nan",
        "known",
        "ordinal",
        "imputer",
        "zeros",
        "bins",
        "seconds",
        "components",
        "gaps",
        "filled texts",
        "weights",
        "vote",
        "scaled vote",
        "booleans",
        "quadratic",
    ],
)
def test_answer_as_a_scikit_learn_classifier_does(
    model: Any, rows: Any, classes: Any, tmp_path: Path
) -> None:
    model.fit(rows, classes)
    predictions = assert_answers(tmp_path, model, rows, 1e-5)
    assert list(predictions[0]["probabilities"]) == list(map(str, model.classes_))


TREES = RandomForestClassifier(5, random_state=0)
PLACES = pd.DataFrame({"c": RNG.integers(0, 9, 300), "v": RNG.normal(size=300)})
PLACE = np.isin(PLACES.c, [0, 3, 4, 8]).astype(int)
GAPPY = PLACES.mask(RNG.random(PLACES.shape) < 0.2)


@pytest.mark.parametrize(
    ("model", "rows", "classes"),
    [
        (ZEROS, NUMBERS.round(), CODES),
        (
            lightgbm.LGBMClassifier(n_estimators=5, verbose=-1, categorical_feature=[0]),
            GAPPY,
            PLACE,
        ),
        (HistGradientBoostingClassifier(max_iter=5, categorical_features=[0]), GAPPY, PLACE),
        (xgboost.XGBClassifier(n_estimators=5, missing=0), NUMBERS.round(), CODES),
        (xgboost.XGBClassifier(n_estimators=5, objective="multi:softmax"), NUMBERS, CODES),
        (xgboost.XGBClassifier(n_estimators=5, objective="binary:hinge"), NUMBERS, CODES // 2),
        (encoded(OneHotEncoder(sparse_output=True), xgboost.XGBClassifier()), FILLED, CODES),
        (
            lightgbm.LGBMClassifier(n_estimators=5, objective="multiclassova", verbose=-1),
            GAPS,
            CODES,
        ),
        (lightgbm.LGBMClassifier(n_estimators=2, verbose=-1), GAPPY, np.isnan(GAPPY.v)),
        (GradientBoostingClassifier(n_estimators=5, loss="exponential"), NUMBERS, CODES // 2),
        (GridSearchCV(TREES, {"max_depth": [2]}, cv=2), NUMBERS, CODES),
        (encoded(FILLING, TREES), WITH_NAN, LETTER),
        (make_pipeline(SelectKBest(k=2), StandardScaler(), TREES), NUMBERS, CODES),
        (encoded(TargetEncoder(), TREES), FILLED, CODES // 2),
    ],
    ids=[
        "zeros",
        "codes of LightGBM",
        "codes of HistGradientBoosting",
        "missing is 0",
        "softmax",
        "hinge",
        "sparse",
        "one against all",
        "missing or not",
        "exponential",
        "search",
        "filled texts",
        "selected columns",
        "means of classes",
    ],
)
def test_answer_as_the_library_of_the_trees_does(
    model: Any, rows: Any, classes: Any, tmp_path: Path
) -> None:
    model.fit(rows, classes)
    assert_answers(tmp_path, model, rows)


@pytest.mark.parametrize(
    ("model", "answers"),
    [
        (HistGradientBoostingRegressor(max_iter=9, loss="poisson"), AROUND.a - AROUND.a.min()),
        (lightgbm.LGBMRegressor(n_estimators=9, objective="tweedie", verbose=-1), AROUND.b**2),
        (lightgbm.LGBMRegressor(n_estimators=9, reg_sqrt=True, verbose=-1), AROUND.b),
        (xgboost.XGBRegressor(n_estimators=9, objective="count:poisson"), AROUND.b**2),
        (
            xgboost.XGBRegressor(n_estimators=9, quantile_alpha=[0.2, 0.8], objective=QUANTILE),
            AROUND.b,
        ),
        (xgboost.XGBRegressor(n_estimators=9, objective="binary:logistic"), AROUND.b > 0),
        (lightgbm.LGBMRegressor(n_estimators=9, objective="binary", verbose=-1), AROUND.b > 0),
        (DecisionTreeRegressor(max_depth=4), AROUND * [1e3, 1]),
        (GradientBoostingRegressor(n_estimators=9, init="zero"), AROUND.a),
        (
            lightgbm.LGBMRegressor(
                n_estimators=9, boosting_type="rf", bagging_freq=1, bagging_fraction=0.5, verbose=-1
            ),
            AROUND.b,
        ),
    ],
    ids=[
        "poisson",
        "tweedie",
        "root",
        "counts",
        "quantiles",
        "probabilities of XGBoost",
        "probabilities of LightGBM",
        "two",
        "zero",
        "averaged",
    ],
)
def test_return_the_numbers_of_the_library_of_the_trees(
    model: Any, answers: Any, tmp_path: Path
) -> None:
    model.fit(AROUND, answers)
    wanted = model.predict(AROUND)
    got = predicted(built(tmp_path, model), AROUND)
    np.testing.assert_allclose(got, wanted, rtol=0, atol=1e-6 * np.ptp(wanted))


def test_decide_at_a_threshold_as_the_library_does(tmp_path: Path) -> None:
    ages = pd.DataFrame({"age": [0.0, 1.0, 7.0]})
    model = make_pipeline(StandardScaler(), DecisionTreeRegressor(random_state=0))
    model.fit(ages, [0.0, 1.0, 2.0])
    predictions = answered(built(tmp_path, model), [[4.0]])
    assert [each["prediction"] for each in predictions] == model.predict(ages[2:] * 4 / 7).tolist()


def test_decide_a_tie_of_a_forest_as_the_library_does(tmp_path: Path) -> None:
    rows = RNG.integers(0, 12, (400, 2)).astype(float)
    model = RandomForestClassifier(100, max_depth=2, random_state=0)
    model.fit(rows, RNG.integers(0, 2, 400))
    model.estimators_ = [*model.estimators_[:50], *map(mirrored, model.estimators_[:50])]
    predictions = assert_answers(tmp_path, model, rows)
    assert len({each["prediction"] for each in predictions}) == 2


def mirrored(tree: Any) -> Any:
    """Return a copy of a tree in which the shares of the two classes are swapped."""
    copied = deepcopy(tree)
    copied.tree_.value[:] = copied.tree_.value[:, :, ::-1].copy()
    return copied


def test_accept_a_missing_cell_that_the_pipeline_fills(tmp_path: Path) -> None:
    model = encoded(FILLING, TREES).fit(WITH_NAN, LETTER)
    stored = built(tmp_path, model)
    predictions = answered(stored, [[None, 1.0], ["", 1.0], ["p", 1.0]])
    filled = model[0].transformers_[0][1][0].statistics_[0]
    wanted = model.predict(pd.DataFrame({"c": [filled, filled, "p"], "v": 1.0}))
    assert [each["prediction"] for each in predictions] == wanted.tolist()


OBJECTS = FILLED.assign(c=pd.Series(["p", "q", None] * 20, dtype=object))
CONSTANT = SimpleImputer(strategy="constant", fill_value="z")


@pytest.mark.parametrize("encoder", [OneHotEncoder(), OrdinalEncoder()])
def test_refuse_a_missing_cell_that_is_filled_with_an_unknown_category(
    encoder: Any, tmp_path: Path
) -> None:
    rows = FILLED[FILLED.c != "z"]
    model = encoded(make_pipeline(CONSTANT, encoder), LogisticRegression()).fit(rows, rows.c)
    stored = built(tmp_path, model)
    for cell in (None, ""):
        with pytest.raises(DecodingError, match="field 'c'"):
            answered(stored, [[cell, 1.0]])


@pytest.mark.parametrize("encoder", [OneHotEncoder(), OrdinalEncoder()])
def test_accept_null_where_the_model_was_trained_with_none(encoder: Any, tmp_path: Path) -> None:
    model = encoded(encoder, TREES).fit(OBJECTS, LETTER)
    (prediction,) = answered(built(tmp_path, model), [[None, 1.0]])
    assert prediction["prediction"] == model.predict(OBJECTS[2:3].assign(v=1.0))[0] == "z"


@pytest.mark.parametrize("cells", [["p", "p", "q", None], ["p", "p", np.nan, ""]])
@pytest.mark.parametrize("step", [FILLING, make_pipeline(CONSTANT, OrdinalEncoder())])
def test_refuse_a_category_that_looks_like_a_missing_cell(
    step: Any, cells: list[Any], tmp_path: Path
) -> None:
    rows = FILLED.assign(c=pd.Series(cells * 15, dtype=object))
    model = encoded(step, LinearRegression()).fit(rows, rows.v)
    with pytest.raises(BuildError, match=r"category None or ''.*train with NaN instead"):
        built(tmp_path, model)


def test_check_the_column_behind_one_that_an_imputer_drops(tmp_path: Path) -> None:
    empty = pd.Series([np.nan] * 60, dtype=object)
    rows = pd.DataFrame({"a": ["p", "q", "z"] * 20, "empty": empty, "b": ["x", "y"] * 30})
    model = make_pipeline(
        SimpleImputer(strategy="most_frequent"), OneHotEncoder(), LogisticRegression()
    ).fit(rows, LETTER)
    stored = built(tmp_path, model)
    (prediction,) = answered(stored, [["q", "y"]])
    assert prediction["prediction"] == model.predict(rows[1:2])[0]
    with pytest.raises(DecodingError, match="field 'b'"):
        answered(stored, [["q", "q"]])


@pytest.mark.parametrize("encoder", [OneHotEncoder(), OrdinalEncoder()])
def test_name_a_category_that_the_encoder_refuses(encoder: Any, tmp_path: Path) -> None:
    model = encoded(encoder, RandomForestClassifier(5)).fit(FILLED, LETTER)
    stored = built(tmp_path, model)
    for cell in ("", "P"):
        with pytest.raises(
            DecodingError, match=f"instance 1, field 'c': the string '{cell}' is not"
        ):
            answered(stored, [["p", 1.0], [cell, 1.0]])


TIE = 2**54 + 2**30  # halfway between two FP32 numbers
IDS = pd.DataFrame({"id": [2**54, 2**54 + 2**31] * 100, "v": 0})
PASSED = ColumnTransformer([("all", "passthrough", ["id", "v"])])


@pytest.mark.parametrize("step", [None, PASSED], ids=["alone", "behind a step"])
@pytest.mark.parametrize("beside", ["INT64", "FP64"])
@pytest.mark.parametrize(
    "trees",
    [
        DecisionTreeRegressor(),
        xgboost.XGBRegressor(n_estimators=1),
        lightgbm.LGBMRegressor(n_estimators=1, verbose=-1),
        HistGradientBoostingRegressor(max_iter=1),
    ],
    ids=["tree", "XGBoost", "LightGBM", "histogram"],
)
def test_round_a_whole_number_as_the_library_of_the_trees_does(
    trees: Any, beside: str, step: Any, tmp_path: Path
) -> None:
    rows = IDS if beside == "INT64" else IDS.astype({"v": float})
    model = (trees if step is None else make_pipeline(step, trees)).fit(rows, [0.0, 1.0] * 100)
    asked = rows[:5].assign(id=[2**54, TIE - 1, TIE, TIE + 1, 2**54 + 2**31])
    options = {"inputs": ("id:INT64:1", f"v:{beside}:1")}
    stored = built(tmp_path, model, **options)
    np.testing.assert_allclose(predicted(stored, asked), model.predict(asked), rtol=1e-6)


def test_round_an_array_of_whole_numbers_as_lightgbm_does(tmp_path: Path) -> None:
    model = lightgbm.LGBMRegressor(n_estimators=1, verbose=-1)
    model.fit(IDS.to_numpy(), [0.0, 1.0] * 100)
    asked = IDS[:5].assign(id=[2**54, TIE - 1, TIE, TIE + 1, 2**54 + 2**31])
    options = {"inputs": ("id:INT64:1", "v:INT64:1")}
    stored = built(tmp_path, model, **options)
    np.testing.assert_allclose(predicted(stored, asked), model.predict(asked.to_numpy()), rtol=1e-6)


OPEN = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1)
FEWER = OrdinalEncoder(categories=[["q", "r", "z"]])


@pytest.mark.parametrize(
    "step",
    [
        ColumnTransformer([("a", OneHotEncoder(), ["c"]), ("b", OPEN, ["c"])]),
        ColumnTransformer([("a", OPEN, ["c"]), ("b", OneHotEncoder(), ["c"])]),
        FeatureUnion([("a", OneHotEncoder()), ("b", OPEN)]),
        FeatureUnion(
            [("a", ColumnTransformer([("c", OneHotEncoder(), ["c"])])), ("b", OPEN), ("c", "drop")]
        ),
    ],
    ids=["the first refuses", "the last refuses", "union", "columns in a union"],
)
def test_refuse_a_category_that_one_of_two_encoders_refuses(step: Any, tmp_path: Path) -> None:
    rows = FILLED[["c"]]
    model = make_pipeline(step, TREES).fit(rows, LETTER)
    stored = built(tmp_path, model)
    assert_alike(stored, model, rows)
    with pytest.raises(DecodingError, match="instance 1, field 'c': the string 'P' is not"):
        answered(stored, [["p"], ["P"]])


def test_accept_only_the_categories_that_two_encoders_know(tmp_path: Path) -> None:
    rows = FILLED[FILLED.c != "p"][["c"]]
    step = ColumnTransformer([("a", OneHotEncoder(), ["c"]), ("b", FEWER, ["c"])])
    model = make_pipeline(step, TREES).fit(rows, rows.c)
    stored = built(tmp_path, model)
    assert [each["prediction"] for each in answered(stored, [["q"], ["z"]])] == ["q", "z"]
    with pytest.raises(DecodingError, match="instance 0, field 'c': the string 'r' is not"):
        answered(stored, [["r"]])


def stopped_early() -> Any:
    """Return a model whose best round is not its last one."""
    model = xgboost.XGBClassifier(n_estimators=40, learning_rate=1, early_stopping_rounds=3)
    wrong = [(NUMBERS, 1 - (CODES > 0))]
    return model.fit(NUMBERS, CODES > 0, eval_set=wrong, verbose=False)


def test_use_all_trees_of_a_booster_that_stopped_early(tmp_path: Path) -> None:
    booster = stopped_early().get_booster()
    predictions = answered(built(tmp_path, booster), lists_of(NUMBERS))
    got = [each["probabilities"]["1"] for each in predictions]
    np.testing.assert_allclose(got, booster.inplace_predict(NUMBERS), atol=1e-6)


@pytest.mark.parametrize("name", ["model.json", "model.joblib"])
def test_use_the_trees_up_to_the_best_of_a_classifier_that_stopped_early(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = stopped_early()
    file = tmp_path / name
    if file.suffix == ".json":
        model.save_model(file)
    else:
        joblib.dump(model, file)
    assert_alike(build_own(tmp_path, file), model, NUMBERS)
    says = "the first 1 of its 4 rounds are built" in capsys.readouterr().out
    assert says == (file.suffix == ".json")


SPARSE = pd.DataFrame({"c": FILLED.c, "v": np.resize([np.nan, 0, 1, 5e-324, -2], 60)})
ONE_HOT = ColumnTransformer(
    [("c", OneHotEncoder(), ["c"])], remainder="passthrough", sparse_threshold=1
)
ZERO = SimpleImputer(strategy="constant", fill_value=0)


@pytest.mark.parametrize(
    "steps",
    [
        (ONE_HOT, ZERO),
        (ONE_HOT, MaxAbsScaler()),
        (ONE_HOT, ZERO, MaxAbsScaler(), VarianceThreshold()),
        (ONE_HOT, FeatureUnion([("a", ZERO), ("b", MaxAbsScaler())])),
    ],
    ids=["filled", "scaled to 0", "several", "union"],
)
def test_tell_a_stored_0_of_a_sparse_matrix_from_a_missing_cell(steps: Any, tmp_path: Path) -> None:
    answers = SPARSE.v.map({0: 1, 1: 2, 5e-324: 9, -2: 4}).fillna(5)
    model = make_pipeline(*steps, xgboost.XGBRegressor(n_estimators=9)).fit(SPARSE, answers)
    stored = built(tmp_path, model)
    np.testing.assert_allclose(predicted(stored, SPARSE), model.predict(SPARSE), rtol=1e-6)


NAMES = ["label", "probabilities", "Sub_1", "label_number", "constant_0", "label_"]
NAMES += ["output_label", "part_3_cells", "scores"]


@pytest.mark.parametrize("classes", [KIND, KIND == "a"], ids=["texts", "booleans"])
@pytest.mark.parametrize("last", [TREES, LogisticRegression()], ids=["trees", "skl2onnx"])
def test_build_columns_named_like_outputs_and_nodes(
    last: Any, classes: Any, tmp_path: Path
) -> None:
    rows = pd.DataFrame(np.tile(NUMBERS, 3), columns=NAMES)
    model = make_pipeline(ColumnTransformer([("s", StandardScaler(), NAMES)]), last)
    model.fit(rows, classes)
    stored = built(tmp_path, model)
    assert list(columns(stored)) == NAMES
    assert_alike(stored, model, rows)


def test_build_a_pipeline_that_begins_with_a_step_that_does_nothing(tmp_path: Path) -> None:
    inner = Pipeline([("none", None), ("trees", TREES)])
    idle = Pipeline([("idle", "passthrough")])
    model = Pipeline([("idle", idle), ("inner", inner)]).fit(NUMBERS, KIND)
    assert_answers(tmp_path, model, NUMBERS)


def test_build_the_steps_of_a_pipeline_that_ends_with_one_that_does_nothing(tmp_path: Path) -> None:
    model = Pipeline([("scaler", StandardScaler()), ("idle", "passthrough")]).fit(NUMBERS)
    np.testing.assert_allclose(predicted(built(tmp_path, model), NUMBERS), model.transform(NUMBERS))


@pytest.mark.parametrize("idle", ["passthrough", None, FunctionTransformer()])
def test_refuse_a_pipeline_of_which_no_step_does_anything(idle: Any, tmp_path: Path) -> None:
    inner = Pipeline([("idle", idle)])
    with pytest.raises(UsageError, match="all steps of the pipeline do nothing"):
        built(tmp_path, Pipeline([("inner", inner), ("idle", idle)]).fit(NUMBERS))


LARGE = {"id": [10**16, 2 * 10**16, 3 * 10**16] * 30, "v": [0.5, 1.5] * 45}
KNOWN = pd.DataFrame(LARGE | {"id": [2**53, 2**53 + 1, 2**53 + 3] * 30})


@pytest.mark.parametrize(
    "rows",
    [
        pd.DataFrame(LARGE).astype(float)[["id"]],
        pd.DataFrame(LARGE),
        pd.DataFrame({"id": [1, 2, 2**63 - 1] * 30}),
        pd.DataFrame({"id": np.array([1, 2, 3] * 30, np.int8)}),
        pd.DataFrame({"id": np.array([1, 2, 3] * 30, np.uint32)}),
        pd.DataFrame({"id": np.array([10**18, 10**18 + 1, 10**18 + 2] * 30, np.uint64)}),
    ],
    ids=["floats", "whole numbers beside floats", "the greatest INT64", "INT8", "UINT32", "UINT64"],
)
@pytest.mark.parametrize(
    "encoder",
    [
        OneHotEncoder(handle_unknown="ignore"),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
        TargetEncoder(random_state=0),
    ],
)
def test_answer_an_unknown_number_as_the_encoder_does(
    encoder: Any, rows: Any, tmp_path: Path
) -> None:
    model = make_pipeline(encoder, TREES).fit(rows, [0, 1, 2] * 30)
    asked = pd.concat([rows[:3], rows[:3].assign(id=[0, 7, 4]).astype(rows.dtypes)])
    assert_answers(tmp_path, model, asked)


def test_refuse_a_category_beyond_int64(tmp_path: Path) -> None:
    rows = pd.DataFrame({"id": np.array([1, 2, 2**64 - 1] * 30, np.uint64)})
    model = make_pipeline(OrdinalEncoder(), TREES).fit(rows, [0, 1, 2] * 30)
    with pytest.raises(BuildError, match="18446744073709551615, and INT64 ends at"):
        built(tmp_path, model)


def test_tell_apart_ids_beside_floats_that_fp64_cannot_hold(tmp_path: Path) -> None:
    model = make_pipeline(OrdinalEncoder(), TREES).fit(KNOWN, [0, 1, 2] * 30)
    predictions = assert_answers(tmp_path, model, KNOWN)
    assert {each["prediction"] for each in predictions} == {0, 1, 2}


@pytest.mark.parametrize(
    ("model", "rows"),
    [(make_pipeline(StandardScaler(), LinearRegression()), AROUND), (LinearRegression(), AROUND)],
    ids=["scaled", "as it is"],
)
def test_serve_a_column_in_fp64_that_fp32_cannot_hold(
    model: Any, rows: Any, tmp_path: Path
) -> None:
    model.fit(rows, (rows.a - 1e9) / 10 + rows.b)
    stored = built(tmp_path, model)
    assert stored.model.inputs[0].datatype == "FP64"
    np.testing.assert_allclose(predicted(stored, rows), model.predict(rows), atol=1e-4)


@pytest.mark.parametrize(
    "model",
    [
        LinearSVC(),
        make_pipeline(StandardScaler(), LinearSVC()),
        VotingClassifier([("a", LogisticRegression()), ("b", LinearSVC())]),
    ],
    ids=["svc", "svc in a pipeline", "votes"],
)
def test_answer_as_a_classifier_without_probabilities_does(model: Any, tmp_path: Path) -> None:
    model.fit(NUMBERS, KIND)
    assert_answers(tmp_path, model, NUMBERS)


@pytest.mark.parametrize(
    ("model", "rows", "answers", "name"),
    [
        (
            MultiOutputClassifier(LogisticRegression()),
            NUMBERS,
            NUMBERS > 0,
            "MultiOutputClassifier",
        ),
        (RandomForestClassifier(5), NUMBERS, NUMBERS > 0, "RandomForestClassifier"),
        (MLPClassifier((4,), max_iter=20), NUMBERS, NUMBERS > 0, "MLPClassifier"),
        (make_pipeline(StandardScaler(), NearestCentroid()), NUMBERS, KIND, "know NearestCentroid"),
        (
            make_pipeline(FunctionTransformer(np.log1p), LogisticRegression()),
            np.exp(NUMBERS),
            KIND,
            "compute log1p yourself",
        ),
        (TunedThresholdClassifierCV(LogisticRegression()), NUMBERS, CODES > 0, "threshold"),
        (LogisticRegression(), NUMBERS, np.char.add(KIND, "\n"), r"'a\\n'"),
        (GaussianProcessClassifier(), NUMBERS, NUMBERS[:, 0] > 0, "Python backend"),
        (DART, NUMBERS, CODES, "booster is dart"),
        (LINES, NUMBERS, CODES, "booster is gblinear"),
        (
            lightgbm.LGBMClassifier(n_estimators=2, pred_early_stop=True, verbose=-1),
            NUMBERS,
            CODES,
            "pred_early_stop=False",
        ),
        (make_pipeline(KNNImputer(), LogisticRegression()), GAPS, KIND, "KNNImputer .*opset 17"),
        (make_pipeline(TfidfVectorizer(), LogisticRegression()), WORDS, KIND, "Python"),
        (make_pipeline(PCA(2), RandomForestClassifier(5)), NUMBERS, KIND, "PCA.*build the ONNX"),
    ],
    ids=[
        "outputs",
        "forest",
        "network",
        "unknown",
        "function",
        "threshold",
        "name",
        "operator",
        "dart",
        "lines",
        "stopped early",
        "neighbours",
        "words",
        "step",
    ],
)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_refuse_other_models_in_a_short_line(
    model: Any, rows: Any, answers: Any, name: str, tmp_path: Path
) -> None:
    with pytest.raises(BuildError, match=name) as caught:
        built(tmp_path, model.fit(rows, answers))
    assert len(str(caught.value)) < 300
    assert not (tmp_path / "models").exists()


FOREST = [("trees", TREES)]


@pytest.mark.parametrize(
    "model",
    [
        VotingClassifier(FOREST),
        VotingClassifier([("trees", xgboost.XGBClassifier(n_estimators=2))]),
        VotingClassifier([("trees", HistGradientBoostingClassifier(max_iter=2))]),
        VotingClassifier([("trees", make_pipeline(StandardScaler(), TREES))]),
        StackingClassifier(FOREST),
        StackingClassifier([("line", LogisticRegression())], final_estimator=TREES),
        BaggingClassifier(n_estimators=2),
        AdaBoostClassifier(n_estimators=2),
        CalibratedClassifierCV(TREES, cv=2),
        OneVsRestClassifier(TREES),
        IsolationForest(n_estimators=2),
        make_pipeline(RandomTreesEmbedding(2, sparse_output=False), LogisticRegression()),
    ],
    ids=lambda model: type(model).__name__,
)
def test_refuse_trees_inside_another_model(model: Any, tmp_path: Path) -> None:
    model.fit(NUMBERS, CODES)
    with pytest.raises(BuildError, match=r"trees inside a \w+ are not converted exactly"):
        built(tmp_path, model)


def test_select_columns_by_the_importance_that_trees_give_them(tmp_path: Path) -> None:
    model = make_pipeline(SelectFromModel(TREES), LogisticRegression()).fit(NUMBERS, KIND)
    assert_answers(tmp_path, model, NUMBERS)


def test_return_probabilities_from_a_booster_that_predicts_classes(tmp_path: Path) -> None:
    model = xgboost.XGBClassifier(objective="multi:softmax", n_estimators=3).fit(NUMBERS, CODES)
    model.save_model(tmp_path / "model.json")
    assert_alike(build_own(tmp_path, tmp_path / "model.json"), model, NUMBERS)


def test_make_an_example_row_that_the_model_knows(tmp_path: Path) -> None:
    model = encoded(OneHotEncoder(), LogisticRegression()).fit(FILLED, LETTER)
    stored = built(tmp_path, model)
    row = json.loads((stored.folder / "example.json").read_text())
    assert (
        answered(stored, [row])[0]["prediction"]
        == model.predict(pd.DataFrame([row], columns=["c", "v"]))[0]
    )


def test_make_a_boolean_example_for_a_column_of_booleans(tmp_path: Path) -> None:
    rows = pd.DataFrame({"paid": RNG.random(60) < 0.5, "v": NUMBERS[:, 0]})
    scaled = ColumnTransformer([("v", StandardScaler(), ["v"])], remainder="passthrough")
    model = make_pipeline(scaled, TREES).fit(rows, rows.paid & (rows.v > 0))
    stored = built(tmp_path, model)
    assert type(json.loads((stored.folder / "example.json").read_text())[0]) is bool


def test_refuse_a_model_of_the_user_s_own_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = ModuleType("train")
    exec("def double(values): return 2 * values", vars(own))
    monkeypatch.setitem(sys.modules, "train", own)
    own.double.__module__ = "train"
    model = make_pipeline(FunctionTransformer(own.double), TREES).fit(NUMBERS, KIND)
    joblib.dump(model, tmp_path / "own.joblib")
    monkeypatch.delitem(sys.modules, "train")
    with pytest.raises(BuildError, match=r"'double' of the user's own code \(the module train\)"):
        build_own(tmp_path, tmp_path / "own.joblib")


def test_say_how_to_write_the_onnx_file_of_a_catboost_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = ModuleType("catboost.core")
    kind = type("CatBoostClassifier", (), {"__module__": "catboost.core"})
    library.CatBoostClassifier = kind  # type: ignore[attr-defined]
    for name in ("catboost", "catboost.core"):
        monkeypatch.setitem(sys.modules, name, library)
    with pytest.raises(BuildError, match="format='onnx'"):
        built(tmp_path, kind())
    for name in ("catboost", "catboost.core"):
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(BuildError, match="format='onnx'"):
        build_own(tmp_path, tmp_path / "trained.joblib")


class Numpy2(pickle.Pickler):
    """Pickle random generators as NumPy 2 does."""

    def reducer_override(self, obj: Any) -> Any:
        if isinstance(obj, np.random.MT19937):
            return getattr(NUMPY, BITS), (np.random.MT19937,), (obj.state, None)
        if isinstance(obj, np.random.RandomState):
            return getattr(NUMPY, STATE), (obj._bit_generator,), obj.get_state(legacy=False)
        return NotImplemented


NUMPY, BITS, STATE = (
    import_module("numpy.random._pickle"),
    "__bit_generator_ctor",
    "__randomstate_ctor",
)


class Watch:
    """Records which constructor of random bits NumPy has while a pickle is read."""

    seen: ClassVar[list[Any]] = []

    def __setstate__(self, _: Any) -> None:
        self.seen.append(getattr(NUMPY, BITS))

    def __getstate__(self) -> Any:
        return {"any": 1}


def test_read_a_model_saved_under_numpy_2(tmp_path: Path) -> None:
    model = GradientBoostingClassifier(n_estimators=3, random_state=np.random.RandomState(0)).fit(
        NUMBERS, KIND
    )
    model.watch = Watch()
    buffer = BytesIO()
    Numpy2(buffer, protocol=2).dump(model)
    file = tmp_path / "model.pkl"
    file.write_bytes(buffer.getvalue().replace(b"cnumpy.core.", b"cnumpy._core."))
    assert_alike(build_own(tmp_path, file), model, NUMBERS)
    # NumPy itself is not patched while the pickle is read
    assert Watch.seen == [getattr(NUMPY, BITS)]


@pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
def test_return_probabilities_of_two_classes_from_a_file_of_a_booster(
    library: str, tmp_path: Path
) -> None:
    classes = CODES // 2
    if library == "xgboost":
        model = xgboost.XGBClassifier(n_estimators=3).fit(NUMBERS, classes)
        model.save_model(file := tmp_path / "model.ubj")
    else:
        model = lightgbm.LGBMClassifier(n_estimators=3, verbose=-1).fit(NUMBERS, classes)
        model.booster_.save_model(file := tmp_path / "model.txt")
    assert_alike(build_own(tmp_path, file), model, NUMBERS)


def test_take_fewer_rows_in_a_run_of_many_trees(tmp_path: Path) -> None:
    model = RandomForestClassifier(110, max_depth=2).fit(NUMBERS, np.arange(60) % 40)
    assert built(tmp_path, model).model.max_batch_size == 2**22 // (110 * 40)


def test_exit_with_1_and_build_nothing_if_a_comparison_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = table_trees.KINDS["ForestClassifier"]

    def forgetful(model: Any) -> table_trees.Trees:
        trees = kind.read(model)
        return replace(trees, trees=trees.trees[:-1])

    monkeypatch.setitem(table_trees.KINDS, "ForestClassifier", replace(kind, read=forgetful))
    file, out = trained.forest(tmp_path).file, tmp_path / "models"
    assert models.run(f"build own --weights {file} --allow-pickle --out {out}") == 1
    assert not out.exists()


@pytest.mark.parametrize("places", [[[0], [1]], [[1, 0]], [[1], [0]]], ids=str)
def test_fill_each_cell_with_the_value_of_its_own_column(
    places: list[list[int]], tmp_path: Path
) -> None:
    rows = pd.DataFrame({"a": ["p", "p", "q"] * 20, "b": ["x", "x", "y", "x"] * 15}, dtype=object)
    rows.loc[::7, "a"] = rows.loc[::5, "b"] = np.nan
    encoders = [(str(place), OneHotEncoder(), place) for place in places]
    filling = SimpleImputer(strategy="most_frequent")
    model = make_pipeline(filling, ColumnTransformer(encoders), LogisticRegression())
    assert_answers(tmp_path, model.fit(rows, LETTER), rows)


@pytest.mark.parametrize(
    "step",
    [ColumnTransformer([("v", StandardScaler(), [2, 0])]), SimpleImputer()],
    ids=["columns", "imputer"],
)
def test_build_a_step_behind_an_imputer_that_adds_flags(step: Any, tmp_path: Path) -> None:
    model = make_pipeline(SimpleImputer(add_indicator=True), step, LogisticRegression())
    assert_answers(tmp_path, model.fit(GAPS, KIND), GAPS)
