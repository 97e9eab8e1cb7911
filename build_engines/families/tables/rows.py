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
EMPTY = 0.5  # the share of missing cells in columns for which missing cells are tried
# objectives of Boosters whose predictions are probabilities
_PROBABLE = ("binary:logistic", "multi:softprob", "binary", "multiclass", "multiclassova")
# the thresholds at which trees of scikit-learn, XGBoost and LightGBM split a column of Booleans
OF_BOOLEANS = (0.5, 1.0, float(np.float32(1e-35)))


@dataclass(frozen=True)
class Limits:
    """Limits how much predictions may differ. `share` is the minimum share of rows whose
    predictions must match. Numbers match if they differ by at most `close` · (|expected| + the
    standard deviation of all expected numbers)."""

    share: float
    close: float


EXACT, USUAL = Limits(1.0, 1e-6), Limits(0.99, 1e-3)


def sample(columns: Sequence[Column]) -> list[Array]:
    """Return ROWS cells for each column, none of them missing: categories with equal probability,
    Booleans, or numbers in and around the range of the column's `points`."""
    rng = np.random.default_rng(0)
    return [_cells(column, rng) for column in columns]


def _cells(column: Column, rng: np.random.Generator) -> Array:
    values = [value for value in column.values if not is_missing(value)]
    if column.datatype == "BYTES":
        return np.asarray(rng.choice(np.array(values or ["", "a"], object), ROWS))
    if values:
        return np.asarray(rng.choice(np.array(values, column.dtype), ROWS))
    known = np.unique(np.array(column.points, float))
    has_boolean_threshold = len(known) == 1 and known[0] in OF_BOOLEANS
    if column.datatype == "BOOL" or has_boolean_threshold:
        return rng.random(ROWS) < 0.5
    numbers = _numbers(known[np.isfinite(known)], rng)
    if column.datatype == "INT64":
        return np.asarray(numbers.round(), np.int64)
    if column.datatype == "FP32":
        return numbers.astype(np.float32).astype(float)
    return numbers


def _numbers(points: Array, rng: np.random.Generator) -> Array:
    """Return numbers in and around the range of the points. About half of the numbers are integers,
    or all of them if all points are multiples of 0.5, like thresholds between integers. Without
    points, return numbers of magnitudes from 0.01 to 10,000."""
    if not len(points):
        signs = rng.choice([-1, 1], ROWS)
        return np.asarray(signs * 10 ** rng.uniform(-2, 4, ROWS))
    least, most = float(points[0]), float(points[-1])
    margin = 0.1 * (most - least or abs(least) or 1.0)
    numbers = rng.uniform(least - margin, most + margin, ROWS)
    is_known = rng.random(ROWS) < 0.25
    numbers = np.where(is_known, rng.choice(points, ROWS), numbers)
    share_of_whole = 0.5 if (2 * points % 1).any() else 1.0
    return np.where(rng.random(ROWS) < share_of_whole, numbers.round(), numbers)


def with_missing(
    cells: Sequence[Array], columns: Sequence[Column], indices: Sequence[int]
) -> list[Array]:
    """Return the cells, with about half of those in the columns at `indices` missing."""
    rng = np.random.default_rng(1)
    changed = list(cells)
    for index in indices:
        empty = rng.random(len(cells[index])) < EMPTY
        empty[0] = True  # at least one
        missing = np.array(columns[index].missing, object)
        changed[index] = np.where(empty, missing, cells[index])
        if columns[index].datatype != "BYTES":
            changed[index] = changed[index].astype(float)
    return changed


def compared(
    expected: Mapping[str, Any], model: onnx.ModelProto, rows: Mapping[str, Array], limits: Limits
) -> float:
    """Return the share of rows for which the ONNX model makes the expected predictions, or 0 if it
    does not run or has no probabilities although some are expected."""
    count = len(next(iter(rows.values())))
    answered = []
    try:
        for start in range(0, count, AT_ONCE):
            end = start + AT_ONCE
            part = {name: cells[start:end] for name, cells in rows.items()}
            answered.append(run(model, part))
    except Exception:  # ONNX Runtime's exceptions have no common base class
        return 0.0
    names = [value.name for value in model.graph.output]
    arrays = [np.concatenate(each) for each in zip(*answered, strict=True)]
    outputs = dict(zip(names, arrays, strict=True))
    scored = next((name for name in names if "prob" in name), "")
    alike = np.ones(count, bool)
    for what, wanted in expected.items():
        name = scored if what == PROBABILITIES else names[0]
        if not name:
            return 0.0
        alike &= _alike(np.asarray(wanted), outputs[name], limits.close)
    return float(np.mean(alike))


def missing_columns(
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

    def takes(indices: Sequence[int]) -> bool:
        rows = with_missing(cells, columns, indices)
        try:
            expected = answers(estimator, rows, columns)
        except BuildError:
            return False
        return compared(expected, model, feed(model, rows, columns), limits) >= limits.share

    able = [
        index
        for index, column in enumerate(columns)
        if column.datatype in ("FP32", "FP64", "BYTES")
    ]
    if not able or takes(able):
        return able
    if not selects_columns:
        able = [index for index in able if columns[index].datatype == "BYTES"]
    accepting = [index for index in able if takes([index])]
    return accepting if len(accepting) < 2 or takes(accepting) else []


def feed(
    model: onnx.ModelProto, cells: Sequence[Array], columns: Sequence[Column]
) -> dict[str, Array]:
    """Return the cells as the inputs of the graph: one matrix, or a column for each input. A
    missing string is ""."""
    cells = [
        np.array(["" if is_missing(cell) else cell for cell in each], object)
        if column.datatype == "BYTES"
        else each
        for each, column in zip(cells, columns, strict=True)
    ]
    inputs = list(model.graph.input)
    groups = [cells] if len(inputs) == 1 else [[each] for each in cells]
    dtypes = [helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) for value in inputs]
    return {
        value.name: np.stack(group, axis=1).astype(dtype)
        for value, group, dtype in zip(inputs, groups, dtypes, strict=True)
    }


def answers(estimator: Any, cells: Sequence[Array], columns: Sequence[Column]) -> Mapping[str, Any]:
    """Return the predictions of the model itself. Raise BuildError if it fails."""
    try:
        return _answers(estimator, cells, [column.name for column in columns])
    except Exception as err:  # any library's exception
        raise BuildError(
            f"the model itself does not answer rows like those it was trained on: {brief(err)}; if "
            "the types of its columns are the reason, name each in its order: --input NAME:FP32:1, "
            "NAME:BYTES:1 for strings"
        ) from err


def _answers(estimator: Any, cells: Sequence[Array], names: Sequence[str]) -> Mapping[str, Any]:
    rows: Any = np.stack(cells, axis=1)
    if type(estimator).__name__ == "Booster":
        predict = getattr(estimator, "inplace_predict", estimator.predict)
        is_probable = objective_of(estimator).partition(" ")[0] in _PROBABLE
        return {PROBABILITIES if is_probable else PREDICTIONS: predict(rows)}
    if all(names) and all(names_of(estimator)):
        import pandas as pd

        # keep each column's type; otherwise pandas replaces None with NaN in a column of texts
        series = [pd.Series(each, dtype=each.dtype) for each in cells]
        rows = pd.DataFrame(dict(zip(names, series, strict=True)))
    predict = getattr(estimator, "predict", None) or estimator.transform
    outputs = {PREDICTIONS: predict(rows)}
    if hasattr(estimator, "predict_proba"):
        outputs[PROBABILITIES] = estimator.predict_proba(rows)
    return outputs


def _alike(wanted: Array, got: Array, close: float) -> Array:
    """Return for each row whether the predictions match."""
    if got.dtype.kind in "OSU":
        texts, others = wanted.astype(str), got.astype(str)
        return np.asarray(texts.ravel() == others.ravel())
    if wanted.ndim == 1 and got.shape[1:] == (2,):
        got = got[:, 1]  # a Booster returns only the second of two probabilities
    if wanted.size != got.size:
        return np.zeros(len(wanted), bool)
    shape = (len(wanted), -1)
    wanted = wanted.reshape(shape).astype(float)
    got = got.reshape(shape).astype(float)
    spread = float(np.nanstd(wanted))
    near = np.isclose(got, wanted, rtol=close, atol=close * spread, equal_nan=True)
    return np.asarray(near.all(axis=1))
