"""Trains small models of scikit-learn, XGBoost and LightGBM, and makes rows for them."""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import joblib
import lightgbm
import numpy as np
import pandas as pd
import xgboost
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import RandomForestClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

CODE = "ran.txt"


@dataclass(frozen=True)
class Trained:
    """A trained model, its file, and rows of its training data."""

    model: Any
    file: Path
    rows: pd.DataFrame

    @property
    def own_rows(self) -> Any:
        """Return the rows in the form that the model itself takes: with column names if it was
        trained with names."""
        return self.rows if hasattr(self.model, "feature_names_in_") else self.rows.to_numpy()

    @property
    def lists(self) -> list[list[Any]]:
        return lists_of(self.rows)


def lists_of(rows: Any) -> list[list[Any]]:
    """Return rows as lists, the form in which JSON has them."""
    cells = pd.DataFrame(rows).astype(object).to_numpy().tolist()
    return [[None if cell != cell else cell for cell in row] for row in cells]


@cache
def people() -> tuple[pd.DataFrame, np.ndarray[Any, Any]]:
    """Make rows of numbers and strings, each labelled "yes" or "no". No model uses one of the
    columns."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame(
        {
            "age": rng.integers(18, 80, 200).astype(float),
            "job": rng.choice(["cook", "clerk, senior", "pilot"], 200),
            "fare (EUR)": rng.normal(50, 20, 200).round(2),
            "city": rng.choice(["Bern", "Köln"], 200),
            "grade": rng.integers(0, 4, 200),
            "note": "-",
        }
    )
    return frame, np.where((frame.age > 40) ^ (frame.job == "cook"), "yes", "no")


def mixed(folder: Path) -> Trained:
    """Train a pipeline on numbers and strings, with the classes "no" and "yes". It drops the column
    `note`."""
    frame, answers = people()
    encoders = ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["age", "fare (EUR)"]),
            ("texts", OneHotEncoder(handle_unknown="ignore"), ["job", "city"]),
            ("grades", OneHotEncoder(), ["grade"]),
        ]
    )
    model = make_pipeline(encoders, LogisticRegression()).fit(frame, answers)
    return saved(model, folder / "mixed.joblib", frame.drop(columns="note"))


def forest(folder: Path) -> Trained:
    """Train a forest on a matrix with column names. The classes are the names of irises."""
    iris = load_iris(as_frame=True)
    model = RandomForestClassifier(5, random_state=0).fit(iris.data, iris.target_names[iris.target])
    return saved(model, folder / "forest.joblib", iris.data)


def ridge(folder: Path) -> Trained:
    rows, answers = load_diabetes(return_X_y=True)
    return saved(Ridge().fit(rows, answers), folder / "ridge.pkl", pd.DataFrame(rows))


def odd_classes(folder: Path) -> Trained:
    rows, answers = load_iris(return_X_y=True)
    return saved(
        LogisticRegression(max_iter=300).fit(rows, answers * 2 + 1),
        folder / "odd.joblib",
        pd.DataFrame(rows),
    )


def xgboosts(folder: Path) -> Trained:
    """Save a model as XGBoost's own file, with column names and three numeric classes. Its cells
    may be empty."""
    iris = load_iris(as_frame=True)
    rows = iris.data.mask(np.random.default_rng(0).random(iris.data.shape) < 0.1)
    model = xgboost.XGBClassifier(n_estimators=5, max_depth=3).fit(rows, iris.target)
    model.save_model(folder / "model.json")
    return Trained(model, folder / "model.json", rows)


def lightgbms(folder: Path) -> Trained:
    rows, answers = load_diabetes(return_X_y=True)
    model = lightgbm.LGBMRegressor(n_estimators=5, verbose=-1).fit(rows, answers)
    model.booster_.save_model(folder / "model.txt")
    return Trained(model, folder / "model.txt", pd.DataFrame(rows))


def letters(folder: Path) -> Trained:
    """Train a model on a column of strings, some of them missing, and a column of numbers. The
    class of rows with a missing string is "missing"."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {"c": rng.choice(np.array(["p", "q", None], object), 60), "v": rng.normal(size=60)}
    )
    encoders = ColumnTransformer(
        [("c", OneHotEncoder(handle_unknown="ignore"), ["c"])], remainder="passthrough"
    )
    model = make_pipeline(encoders, LogisticRegression()).fit(rows, rows.c.fillna("missing"))
    return saved(model, folder / "letters.joblib", rows)


def ages(folder: Path) -> Trained:
    """Train 100 trees on integers, some of them missing, after an imputer and a scaler. Many rows
    lie on a threshold, and have equally many votes for both classes."""
    rng = np.random.default_rng(0)
    rows = pd.DataFrame(
        {"age": rng.integers(0, 40, 400).astype(float), "paid": rng.random(400) < 0.5}
    )
    rows["age"] = rows.age.mask(rng.random(400) < 0.1)
    answers = (rows.age % 7 > 3) ^ rows.paid
    model = make_pipeline(
        SimpleImputer(), StandardScaler(), RandomForestClassifier(100, max_depth=4, random_state=0)
    )
    return saved(model.fit(rows.astype(float), answers.astype(int)), folder / "ages.joblib", rows)


def saved(model: Any, file: Path, rows: pd.DataFrame) -> Trained:
    joblib.dump(model, file)
    return Trained(model, file, rows)


class Code:
    """An object that writes a file when it is unpickled."""

    def __reduce__(self) -> Any:
        return Path(CODE).write_text, ("read",)
