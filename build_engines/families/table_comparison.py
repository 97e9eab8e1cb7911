"""A trained model and the ONNX file that was made of it answer the same rows.

A converter may leave out what it does not know without a word, as skl2onnx does with the categorical features of
HistGradientBoosting.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from build_engines.errors import BuildError, brief
from build_engines.families import table_graph
from build_engines.families.table_rows import Column, is_missing, with_missing

Array = NDArray[Any]
AGREEING, CLOSE = 0.99, 1e-3  # the share of rows whose answers are the same, up to that part of their spread
PREDICTIONS, PROBABILITIES = "predictions", "probabilities"


def agreement(estimator: Any, model: onnx.ModelProto, columns: Sequence[Column], cells: Sequence[Array]) -> float:
    """Return the share of rows whose answers are alike. Raise BuildError if the model itself does not answer them."""
    try:
        expected = answers(estimator, cells, columns)
    except Exception as err:  # of any library
        raise BuildError(f"the model itself does not answer rows like those it was trained on: {brief(err)}") from err
    try:
        found = table_graph.run(model, feed(model, cells, columns))
    except Exception:  # ONNX Runtime's exceptions have no common base class
        return 0.0
    names = [value.name for value in model.graph.output]
    outputs = dict(zip(names, found, strict=True))
    shares = []
    for what, wanted in expected.items():
        name = next((name for name in names if "prob" in name), "") if what == PROBABILITIES else names[0]
        shares.append(_alike(np.asarray(wanted), np.asarray(outputs[name])) if name else 0.0)
    return min(shares)


def same_in_fp32(estimator: Any, columns: Sequence[Column], cells: Sequence[Array]) -> bool:
    """Return whether the model itself answers alike if its cells are rounded to FP32."""
    rounded = [each.astype(np.float32).astype(float) if each.dtype == float else each for each in cells]
    wanted, found = (answers(estimator, each, columns) for each in (cells, rounded))
    return all(_alike(np.asarray(wanted[what]), np.asarray(found[what])) >= AGREEING for what in wanted)


def missing_columns(
    estimator: Any, model: onnx.ModelProto, columns: Sequence[Column], cells: Sequence[Array]
) -> list[int]:
    """Return the places of the columns in which the model and its ONNX file take missing cells alike."""

    def takes(places: Sequence[int]) -> bool:
        try:
            return agreement(estimator, model, columns, with_missing(cells, columns, places)) >= AGREEING
        except BuildError:
            return False

    able = [place for place, column in enumerate(columns) if column.datatype in ("FP32", "FP64", "BYTES")]
    if not able or takes(able):
        return able
    first = estimator.steps[0][1] if hasattr(estimator, "steps") else estimator
    apart = hasattr(first, "transformers_")  # else a number that may be missing is one that the model hardly reads
    found = [place for place in able if (apart or columns[place].datatype == "BYTES") and takes([place])]
    return found if len(found) < 2 or takes(found) else []


def feed(model: onnx.ModelProto, cells: Sequence[Array], columns: Sequence[Column]) -> dict[str, Array]:
    """Return the cells as the graph's one matrix, or a column for each input. A missing text is ""."""
    cells = [
        np.array(["" if is_missing(cell) else cell for cell in each], object) if column.datatype == "BYTES" else each
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
    wanted, got = (each.reshape(len(wanted), -1).astype(float) for each in (wanted, got))
    near = np.abs(wanted - got) <= CLOSE * float(np.nanstd(wanted))
    near |= np.abs(wanted - got) <= CLOSE * np.abs(wanted)
    return float(np.mean((near | (np.isnan(wanted) & np.isnan(got))).all(axis=1)))
