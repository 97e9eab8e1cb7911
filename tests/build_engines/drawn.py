"""Draws tabular pipelines at random: preprocessing steps, followed by tree models of four
libraries. The columns are integers, ids, times, amounts of money and strings."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import lightgbm
import numpy as np
import pandas as pd
import xgboost
from sklearn import ensemble
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    OneHotEncoder,
    OrdinalEncoder,
    RobustScaler,
    StandardScaler,
)

from tests.build_engines.trained import lists_of

LARGE, UNKNOWN = 1e16, 7  # a large category, and a number that is not a category
PIPELINES, TRAINED, ASKED = 20, 600, 2000
STEPS = ("none", "scaler", "imputer", "encoder", "all")
# for each library: its module, the names of its models, and further options
TREES: dict[str, tuple[Any, list[str], dict[str, int]]] = {
    "scikit-learn": (ensemble, ["RandomForest", "ExtraTrees", "GradientBoosting"], {}),
    "HistGradientBoosting": (ensemble, ["HistGradientBoosting"], {}),
    "XGBoost": (xgboost, ["XGB"], {}),
    "LightGBM": (lightgbm, ["LGBM"], {"verbose": -1}),
}
LIBRARIES = tuple(TREES)
Random = np.random.Generator


@dataclass(frozen=True)
class Drawn:
    """A trained model, and rows for its predictions."""

    name: str
    model: Any
    rows: pd.DataFrame

    @property
    def lists(self) -> list[list[Any]]:
        return lists_of(self.rows)


def drawn(seed: int, number: int) -> Drawn:
    """Return pipeline `number` of the draw. Each has another pair of steps and library. The first
    is a forest of 100 trees with two classes and no step."""
    rng = np.random.default_rng((seed, number))
    steps = STEPS[number % len(STEPS)]
    library = LIBRARIES[number // len(STEPS) % len(LIBRARIES)]
    has_texts = steps in ("encoder", "all")
    # some of scikit-learn's models accept no missing cells
    takes_gaps = steps == "none" and library != LIBRARIES[0]
    has_gaps = takes_gaps or steps in ("imputer", "all")
    rows = _columns(rng, TRAINED + ASKED, has_texts)
    classes = 2 if number == 0 else int(rng.integers(0, 4))  # 0 and 1 mean a regression
    answers = _answers(rng, rows, classes)
    gaps = rng.random(rows.shape) < 0.15
    gaps[:, [not pd.api.types.is_float_dtype(kind) for kind in rows.dtypes]] = False
    # an encoder passes on a missing cell, which not all tree models accept
    gaps[:, rows.columns == "grade"] = False
    rows = rows.mask(gaps) if has_gaps else rows
    trees = _trees(rng, library, classes > 1)
    if number == 0:
        trees = ensemble.RandomForestClassifier(100, random_state=seed)
    prepared = _steps(rng, steps, rows)
    model = trees if prepared is None else make_pipeline(prepared, trees)
    model.fit(rows[:TRAINED], answers[:TRAINED])
    asked = rows[TRAINED:].copy()
    if has_texts and prepared.transformers[0][1].handle_unknown != "error":
        asked.loc[rng.random(ASKED) < 0.1, "grade"] = UNKNOWN
    return Drawn(f"{steps}, {type(trees).__name__}", model, asked)


def _columns(rng: Random, count: int, has_texts: bool) -> pd.DataFrame:
    rows: dict[str, Any] = {
        "age": rng.integers(0, 80, count).astype(float),
        "id": rng.integers(10**6, 10**12, count).astype(float),
        "time": 1.7e9 + rng.integers(0, 10**5, count),
        "price": rng.gamma(2, 50, count).round(2),
        "rate": rng.normal(0, 1, count),
        "paid": rng.random(count) < 0.5,
    }
    # also include midpoints between two values of the training data, which are thresholds
    for name in ("age", "id", "time", "price", "rate"):
        values = rows[name]
        middle = (values[:ASKED] + rng.permutation(values[:ASKED])) / 2
        is_middle = rng.random(ASKED) < 0.3
        rows[name] = np.concatenate([values[:-ASKED], np.where(is_middle, middle, values[-ASKED:])])
    if has_texts:
        rows["city"] = rng.choice(np.array(["Bern", "Köln", "a, b", ""], object), count)
        grades = rng.integers(0, 5, count)
        rows["grade"] = grades * LARGE if rng.random() < 0.5 else grades
    return pd.DataFrame(rows)


def _answers(rng: Random, rows: pd.DataFrame, classes: int) -> Any:
    """Return the targets with noise: numbers, or classes that are strings, numbers or booleans."""
    score = rng.normal(0, 0.5, len(rows))
    for name in rows.columns:
        column = rows[name]
        is_number = pd.api.types.is_numeric_dtype(column)
        codes = column.to_numpy(float) if is_number else pd.factorize(column)[0]
        score += np.sin(codes / (codes.std() + 1e-9) * rng.uniform(1, 5)) * rng.uniform(0.3, 1)
    if classes < 2:
        return score * 10 ** float(rng.integers(-2, 7)) + rng.choice([0, 1e6])
    codes = np.digitize(score, np.quantile(score, np.arange(1, classes) / classes))
    return codes == 1 if rng.random() < 0.2 else codes


def _trees(rng: Random, library: str, classifies: bool) -> Any:
    module, names, options = TREES[library]
    name, kind = rng.choice(names), "Classifier" if classifies else "Regressor"
    count = "max_iter" if library == "HistGradientBoosting" else "n_estimators"
    sizes = {count: int(rng.integers(3, 40)), "max_depth": int(rng.integers(2, 9))}
    return getattr(module, f"{name}{kind}")(**sizes, **options, random_state=0)


def _steps(rng: Random, steps: str, rows: pd.DataFrame) -> Any:
    """Return a step, or a pipeline of several, or None."""
    scalers: Sequence[Any] = (StandardScaler(), MinMaxScaler(), RobustScaler(), MaxAbsScaler())
    scaler = scalers[int(rng.integers(len(scalers)))]
    imputer = SimpleImputer(
        strategy=str(rng.choice(["mean", "median", "most_frequent"])),
        add_indicator=bool(rng.random() < 0.3),
    )
    if steps in ("none", "scaler", "imputer"):
        return {"none": None, "scaler": scaler, "imputer": make_pipeline(imputer, scaler)}[steps]
    sparse = bool(rng.random() < 0.5)
    encoders = (
        OneHotEncoder(handle_unknown="ignore", sparse_output=sparse),
        OneHotEncoder(drop="first", sparse_output=sparse),
        OrdinalEncoder(),
        OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1),
    )
    encoder = encoders[int(rng.integers(len(encoders)))]
    numbers = [name for name in rows.columns if name not in ("city", "grade", "paid")]
    texts = ("texts", encoder, ["city", "grade"])
    scaled = make_pipeline(imputer, scaler) if steps == "all" else scaler
    # with a dense result, because HistGradientBoosting does not accept a sparse one
    return ColumnTransformer(
        [texts, ("numbers", scaled, numbers)], remainder="passthrough", sparse_threshold=0
    )
