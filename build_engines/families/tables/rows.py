"""Generates rows like the training data, and compares the predictions of a trained model for them
with those of its ONNX file."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import helper

from build_engines.errors import BuildError, brief
from build_engines.families.tables.columns import Array, Column, is_missing, names_of
from build_engines.families.tables.repair import run
from build_engines.families.tables.trees import objective_of

PREDICTIONS, PROBABILITIES = "predictions", "probabilities"
ROWS = 500
AT_ONCE = 1000  # rows per run
MISSING = 0.5  # the share of missing cells in columns for which missing cells are tried
# objectives of Boosters whose predictions are probabilities
PROBABLE_OBJECTIVES = ("binary:logistic", "multi:softprob", "binary", "multiclass", "multiclassova")
# the thresholds at which trees of scikit-learn, XGBoost and LightGBM split a column of Booleans
BOOLEAN_THRESHOLDS = (0.5, 1.0, float(np.float32(1e-35)))


@dataclass(frozen=True)
class Limits:
    """Limits how much predictions may differ. `share` is the minimum share of rows whose
    predictions must match. Numbers match if they differ by at most `close` · (|expected| + the
    standard deviation of all expected numbers)."""

    share: float
    close: float


EXACT, USUAL = Limits(1.0, 1e-6), Limits(0.99, 1e-3)


def sample(columns: Sequence[Column]) -> list[Array]:
    """Return ROWS random cells for each column: its categories with equal probability, Booleans, or
    numbers in and around the range of its `points`. None of them is missing, but if the categories
    of a column of strings are not known, about half of its cells are ""."""
    rng = np.random.default_rng(0)
    return [_cells(column, rng) for column in columns]


def _cells(column: Column, rng: np.random.Generator) -> Array:
    values = [value for value in column.values if not is_missing(value)]
    if column.datatype == "BYTES":
        return np.asarray(rng.choice(np.array(values or ["", "a"], object), ROWS))
    if values:
        return np.asarray(rng.choice(np.array(values, column.dtype), ROWS))
    points = np.unique(np.array(column.points, float))
    has_boolean_threshold = len(points) == 1 and points[0] in BOOLEAN_THRESHOLDS
    if column.datatype == "BOOL" or has_boolean_threshold:
        return rng.random(ROWS) < 0.5
    numbers = _numbers(points[np.isfinite(points)], rng)
    if column.datatype == "INT64":
        return np.asarray(numbers.round(), np.int64)
    if column.datatype == "FP32":  # only numbers that FP32 holds exactly
        return numbers.astype(np.float32).astype(float)
    return numbers


def _numbers(points: Array, rng: np.random.Generator) -> Array:
    """Return ROWS numbers: about a quarter are points, and the others are in and around the range
    of the points, which are in ascending order. About half of the numbers are rounded to integers,
    or all of them if all points are multiples of 0.5, like thresholds between integers. Without
    points, return numbers of magnitudes from 0.01 to 10,000."""
    if not len(points):
        signs = rng.choice([-1, 1], ROWS)
        return np.asarray(signs * 10 ** rng.uniform(-2, 4, ROWS))
    least, most = float(points[0]), float(points[-1])
    width = most - least
    if not width:  # all points are equal
        width = abs(least) or 1.0
    margin = 0.1 * width
    numbers = rng.uniform(least - margin, most + margin, ROWS)
    is_point = rng.random(ROWS) < 0.25
    numbers = np.where(is_point, rng.choice(points, ROWS), numbers)
    has_fractions = (2 * points % 1).any()
    share_of_integers = 0.5 if has_fractions else 1.0
    is_integer = rng.random(ROWS) < share_of_integers
    return np.where(is_integer, numbers.round(), numbers)


def with_missing(
    cells: Sequence[Array], columns: Sequence[Column], indices: Sequence[int]
) -> list[Array]:
    """Return the cells, with about half of those in the columns at `indices` missing."""
    rng = np.random.default_rng(1)
    changed = list(cells)
    for index in indices:
        is_empty = rng.random(len(cells[index])) < MISSING
        is_empty[0] = True  # at least one
        missing = np.array(columns[index].missing, object)
        changed[index] = np.where(is_empty, missing, cells[index])
        if columns[index].datatype != "BYTES":
            changed[index] = changed[index].astype(float)  # None becomes NaN
    return changed


def share_alike(
    expected: Mapping[str, Any], model: onnx.ModelProto, rows: Mapping[str, Array], limits: Limits
) -> float:
    """Return the share of rows for which the ONNX model makes the expected predictions, or 0 if it
    does not run or has no probabilities although some are expected."""
    first_input = next(iter(rows.values()))
    count = len(first_input)
    runs = []
    try:
        for start in range(0, count, AT_ONCE):
            end = start + AT_ONCE
            part = {name: cells[start:end] for name, cells in rows.items()}
            runs.append(run(model, part))
    except Exception:  # ONNX Runtime's exceptions have no common base class
        return 0.0
    names = [value.name for value in model.graph.output]
    arrays = [np.concatenate(parts) for parts in zip(*runs, strict=True)]
    outputs = dict(zip(names, arrays, strict=True))
    probabilities_name = next((name for name in names if "prob" in name), "")
    are_alike = np.ones(count, bool)
    for kind, wanted in expected.items():
        name = probabilities_name if kind == PROBABILITIES else names[0]
        if not name:
            return 0.0
        are_alike &= _are_alike(np.asarray(wanted), outputs[name], limits.close)
    return float(np.mean(are_alike))


def nullable_columns(
    estimator: Any,
    model: onnx.ModelProto,
    columns: Sequence[Column],
    cells: Sequence[Array],
    limits: Limits,
    selects_columns: bool,
) -> list[int]:
    """Return the indices of the columns whose cells may be missing, because the predictions of the
    model and its ONNX file then still match. Only columns of floats and of strings are tried.

    If the predictions do not match with missing cells in all these columns, each is tried alone,
    and then those that pass are tried together; if that fails, none may be missing. Columns of
    floats are tried alone only if the first step `selects_columns`: in other models, a match would
    only mean that the model hardly uses the column.
    """

    def match_if_missing(indices: Sequence[int]) -> bool:
        rows = with_missing(cells, columns, indices)
        try:
            expected = predictions_of(estimator, rows, columns)
        except BuildError:
            return False
        share = share_alike(expected, model, feed(model, rows, columns), limits)
        return share >= limits.share

    tried = [
        index
        for index, column in enumerate(columns)
        if column.datatype in ("FP32", "FP64", "BYTES")
    ]
    if not tried or match_if_missing(tried):
        return tried
    if not selects_columns:
        tried = [index for index in tried if columns[index].datatype == "BYTES"]
    nullable = [index for index in tried if match_if_missing([index])]
    if len(nullable) < 2 or match_if_missing(nullable):
        return nullable
    return []


def feed(
    model: onnx.ModelProto, cells: Sequence[Array], columns: Sequence[Column]
) -> dict[str, Array]:
    """Return the cells as the inputs of the graph: one matrix, or a column for each input. A
    missing string is ""."""
    arrays = list(cells)
    for index, column in enumerate(columns):
        if column.datatype == "BYTES":
            texts = ["" if is_missing(cell) else cell for cell in cells[index]]
            arrays[index] = np.array(texts, object)
    inputs = list(model.graph.input)
    groups = [arrays] if len(inputs) == 1 else [[array] for array in arrays]
    dtypes = [helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) for value in inputs]
    return {
        value.name: np.stack(group, axis=1).astype(dtype)
        for value, group, dtype in zip(inputs, groups, dtypes, strict=True)
    }


def predictions_of(
    estimator: Any, cells: Sequence[Array], columns: Sequence[Column]
) -> Mapping[str, Any]:
    """Return the predictions that the model itself makes for these cells, keyed by PREDICTIONS,
    PROBABILITIES or both. Raise BuildError if the model fails."""
    try:
        return _predict(estimator, cells, [column.name for column in columns])
    except Exception as err:  # any library's exception
        raise BuildError(
            f"the model itself does not answer rows like those it was trained on: {brief(err)}; if "
            "the types of its columns are the reason, name each in its order: --input NAME:FP32:1, "
            "NAME:BYTES:1 for strings"
        ) from err


def _predict(estimator: Any, cells: Sequence[Array], names: Sequence[str]) -> Mapping[str, Any]:
    rows: Any = np.stack(cells, axis=1)
    if type(estimator).__name__ == "Booster":
        # XGBoost's predict() takes only a DMatrix
        predict = getattr(estimator, "inplace_predict", estimator.predict)
        objective = objective_of(estimator).partition(" ")[0]
        kind = PROBABILITIES if objective in PROBABLE_OBJECTIVES else PREDICTIONS
        return {kind: predict(rows)}
    # a model that was trained on an array takes an array, even if the user names the columns
    if all(names) and all(names_of(estimator)):
        import pandas as pd

        # keep each column's type; otherwise pandas replaces None with NaN in a column of texts
        series = [pd.Series(column, dtype=column.dtype) for column in cells]
        rows = pd.DataFrame(dict(zip(names, series, strict=True)))
    predict = getattr(estimator, "predict", None) or estimator.transform
    outputs = {PREDICTIONS: predict(rows)}
    if hasattr(estimator, "predict_proba"):
        outputs[PROBABILITIES] = estimator.predict_proba(rows)
    return outputs


def _are_alike(wanted: Array, got: Array, close: float) -> Array:
    """Return for each row whether the predictions match. `close` is explained in Limits."""
    if got.dtype.kind in "OSU":
        return np.asarray(wanted.astype(str).ravel() == got.astype(str).ravel())
    if wanted.ndim == 1 and got.shape[1:] == (2,):
        got = got[:, 1]  # for two classes, a Booster returns only the second probability
    if wanted.size != got.size:
        return np.zeros(len(wanted), bool)
    shape = (len(wanted), -1)
    wanted = wanted.reshape(shape).astype(float)
    got = got.reshape(shape).astype(float)
    spread = float(np.nanstd(wanted))
    near = np.isclose(got, wanted, rtol=close, atol=close * spread, equal_nan=True)
    return np.asarray(near.all(axis=1))
