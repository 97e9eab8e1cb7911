"""A trained model and the ONNX file that was made of it answer the same random rows.

A converter may leave out what it does not know without a word, as skl2onnx does with the categorical features of
HistGradientBoosting.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from build_engines.errors import BuildError, first_line
from build_engines.families import table_graph

Array = NDArray[Any]
ROWS = 200
AGREEING, CLOSE = 0.99, 1e-3  # the share of rows whose answers are the same, up to that part of their spread
EMPTY = 0.1  # the share of missing numbers, where a model takes them
PREDICTIONS, PROBABILITIES = "predictions", "probabilities"


@dataclass(frozen=True)
class Column:
    """`name` is "" where columns have none; `values` are the categories that the model knows, () for numbers."""

    name: str
    datatype: str = "FP32"
    values: tuple[Any, ...] = ()


def check(estimator: Any, model: onnx.ModelProto, columns: Sequence[Column]) -> None:
    """Raises BuildError where the answers differ."""
    share = agreement(estimator, model, columns, missing=False)
    print(f"of {ROWS} random rows the model and its ONNX file answer {share:.1%} alike", flush=True)
    if share < AGREEING:
        raise BuildError(
            f"the ONNX file answers otherwise than the {type(estimator).__name__}: its converter does not know "
            "something that the model does"
        )


def agreement(estimator: Any, model: onnx.ModelProto, columns: Sequence[Column], missing: bool) -> float:
    """The share of random rows, with `missing` some cells of which are NaN, whose answers are alike."""
    rng = np.random.default_rng(0)
    cells = [_cells(column, missing, rng) for column in columns]
    try:
        expected = _answers(estimator, cells, columns)
    except Exception as err:  # of any library
        raise BuildError(f"the model does not answer random rows, so it cannot be checked: {first_line(err)}") from err
    names = [value.name for value in model.graph.output]
    outputs = dict(zip(names, table_graph.run(model, _feed(model, cells)), strict=True))
    shares = []
    for what, wanted in expected.items():
        name = next((name for name in names if "prob" in name), "") if what == PROBABILITIES else names[0]
        shares.append(_alike(np.asarray(wanted), np.asarray(outputs[name])) if name else 0.0)
    return min(shares)


def _cells(column: Column, missing: bool, rng: np.random.Generator) -> Array:
    """Of each category as many; numbers of all sizes, as FP32 holds them."""
    if column.values:
        return np.asarray(rng.choice(np.array(column.values, object), ROWS))
    if column.datatype in ("BYTES", "BOOL"):
        return np.asarray(rng.choice(np.array(["", "a"] if column.datatype == "BYTES" else [False, True]), ROWS))
    numbers = rng.choice([-1, 1], ROWS) * 10 ** rng.uniform(-2, 4, ROWS)
    if column.datatype == "INT64":
        return np.asarray(numbers, np.int64)
    numbers = numbers.astype(np.float32).astype(np.float64)
    return np.where(rng.random(ROWS) < EMPTY, np.nan, numbers) if missing else numbers


def _feed(model: onnx.ModelProto, cells: Sequence[Array]) -> dict[str, Array]:
    """The cells as the graph's one matrix, or a column for each input."""
    inputs = list(model.graph.input)
    groups = [cells] if len(inputs) == 1 else [[each] for each in cells]
    dtypes = [helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type) for value in inputs]
    return {
        value.name: np.stack(group, axis=1).astype(dtype)
        for value, group, dtype in zip(inputs, groups, dtypes, strict=True)
    }


def _answers(estimator: Any, cells: Sequence[Array], columns: Sequence[Column]) -> Mapping[str, Any]:
    """The model's own."""
    matrix = np.stack(cells, axis=1)
    if hasattr(estimator, "inplace_predict"):
        objective = json.loads(estimator.save_config())["learner"]["objective"]["name"]
        return _of_booster(estimator.inplace_predict(matrix), objective)
    if hasattr(estimator, "num_feature"):
        return _of_booster(estimator.predict(matrix), str(estimator.dump_model(num_iteration=1)["objective"]))
    rows: Any = matrix
    if hasattr(estimator, "feature_names_in_") and all(column.name for column in columns):
        import pandas as pd

        rows = pd.DataFrame(dict(zip((column.name for column in columns), cells, strict=True)))
    found = {PREDICTIONS: estimator.predict(rows) if hasattr(estimator, "predict") else estimator.transform(rows)}
    return found | ({PROBABILITIES: estimator.predict_proba(rows)} if hasattr(estimator, "predict_proba") else {})


def _of_booster(values: Array, objective: str) -> Mapping[str, Any]:
    """A Booster has one answer, which its objective names."""
    word = objective.partition(" ")[0]
    return {PROBABILITIES if word in _PROBABLE else PREDICTIONS: values}


_PROBABLE = ("binary:logistic", "multi:softprob", "binary", "multiclass", "multiclassova")


def _alike(wanted: Array, got: Array) -> float:
    """The share of rows that are the same."""
    if got.dtype.kind in "OSU":
        return float(np.mean(wanted.astype(str).ravel() == got.astype(str).ravel()))
    if wanted.ndim == 1 and got.ndim == 2 and got.shape[1] == 2:
        got = got[:, 1]  # Boosters give the probability of the second of two classes
    if wanted.size != got.size:
        return 0.0
    wanted, got = wanted.reshape(ROWS, -1).astype(float), got.reshape(ROWS, -1).astype(float)
    near = np.abs(wanted - got) <= CLOSE * float(np.nanstd(wanted))
    near |= np.abs(wanted - got) <= CLOSE * np.abs(wanted)
    return float(np.mean((near | (np.isnan(wanted) & np.isnan(got))).all(axis=1)))
