"""Compares a trained model with its ONNX file on rows near the values that the model learned:
means, thresholds, categories and others.

A converter may silently leave out features that it does not support, as skl2onnx does with the
categorical features of HistGradientBoosting.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import helper

from build_engines.errors import BuildError, UsageError, brief, first_line
from build_engines.families.table import run

Array = NDArray[Any]
Reader = Callable[[Any, int], Iterator[tuple[int, float]]]
# the share of rows whose answers are the same, up to that part of their spread
AGREEING, CLOSE = 0.99, 1e-3
PREDICTIONS, PROBABILITIES = "predictions", "probabilities"
ROWS = 200
EMPTY = 0.5  # the share of missing cells in columns that take them
ROUNDING = 1e-6  # of the points' spread
MOST_VALUES = 1000  # of a column
INNER = (  # attributes with the models inside of a model
    "estimators_",
    "estimator_",
    "best_estimator_",
    "regressor_",
    "final_estimator_",
    "estimator",
    "calibrated_classifiers_",
)
LEARNED = (  # attributes with a value, or a row of values, for each column
    "statistics_",
    "data_min_",
    "data_max_",
    "max_abs_",
    "theta_",
    "means_",
    "xbar_",
    "quantiles_",
    "cluster_centers_",
    "support_vectors_",
    "_fit_X",
    "X_train_",
)
CENTERS = (("mean_", "scale_"), ("center_", "scale_"))


@dataclass(frozen=True)
class Column:
    """`name` is "" if columns have no names; `values` are the categories that the model knows, ()
    for numbers. `closed`: its encoder refuses all other values."""

    name: str
    datatype: str = "FP32"
    values: tuple[Any, ...] = ()
    closed: bool = False

    @property
    def missing(self) -> Any:
        """The category of a missing text; NaN if the model has none."""
        return next((value for value in self.values if is_missing(value)), np.nan)


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def sample(estimator: Any, columns: Sequence[Column]) -> list[Array]:
    """Return ROWS cells for each column, as the model itself takes them, none of them missing."""
    rng = np.random.default_rng(0)
    learned, deciding = (_points(estimator, len(columns), read) for read in (_learned, _deciding))
    cells = [
        _cells(column, _apart(np.array(own, float)), rng)
        for column, own in zip(columns, learned, strict=True)
    ]
    free = [index for index, own in enumerate(learned) if not own and deciding[index]]
    turns = rng.permutation(np.resize(free, ROWS)) if free else ()
    # of a linear model: in each row, one column is near where it decides, the others are near 0
    for index in free:
        points = np.array(deciding[index])
        near = rng.normal(0, points.std() or 1.0, ROWS)
        if columns[index].datatype in ("FP32", "FP64"):
            cells[index] = np.where(turns == index, rng.choice(points, ROWS) + near / 10, near)
    return cells


def _points(estimator: Any, count: int, read: Reader) -> list[list[float]]:
    """Return the `known` values; none if they cannot be read from the model: its rows then have
    numbers of all sizes."""
    try:
        return known(estimator, count, read)
    except Exception:  # of any library
        return [[] for _ in range(count)]


def _apart(points: Array) -> Array:
    """Return the sorted points, without those that differ only by rounding: answers between them
    may differ."""
    points = np.unique(points)
    return (
        points[np.diff(points, prepend=-np.inf) > ROUNDING * float(points.std())]
        if len(points) > 1
        else points
    )


def with_missing(
    cells: Sequence[Array], columns: Sequence[Column], indices: Sequence[int]
) -> list[Array]:
    """Return the cells with some missing in the columns at `indices`."""
    rng = np.random.default_rng(1)
    changed = list(cells)
    for index in indices:
        empty = rng.random(len(cells[index])) < EMPTY
        empty[0] = True
        changed[index] = np.where(empty, np.array(columns[index].missing, object), cells[index])
        if columns[index].datatype != "BYTES":
            changed[index] = changed[index].astype(float)
    return changed


def of_file(file: Path, columns: Sequence[Column]) -> list[Array]:
    """Return the cells of a CSV file, by the names in its header or in the order of the columns.
    Raise UsageError."""
    import pandas as pd

    names = [column.name for column in columns]
    try:
        frame = pd.read_csv(file, keep_default_na=False, na_values=[""], dtype=object)
        if set(names) <= set(frame.columns):
            frame = frame[names]
        elif list(frame.columns) != [str(index) for index in range(len(names))]:
            frame = pd.read_csv(
                file, header=None, keep_default_na=False, na_values=[""], dtype=object
            )
        if frame.shape[1] != len(columns) or not len(frame):
            raise UsageError(
                f"--data {file}: it has {frame.shape[1]} columns, and the model takes "
                f"{len(columns)}"
            )
        pairs = zip(columns, (frame.iloc[:, index] for index in range(len(columns))), strict=True)
        return [_typed(column, series) for column, series in pairs]
    except (OSError, ValueError) as err:
        raise UsageError(f"--data {file}: {first_line(err)}") from err


def _typed(column: Column, series: Any) -> Array:
    if column.datatype == "BYTES":
        return np.array([column.missing if is_missing(cell) else cell for cell in series], object)
    return np.asarray(
        series.replace({"True": 1, "False": 0}).astype(
            np.int64 if column.datatype == "INT64" else float
        )
    )


def _cells(column: Column, points: Array, rng: np.random.Generator) -> Array:
    """Return categories in equal shares, or numbers between and around `points`, or of all sizes
    without points."""
    if values := [value for value in column.values if not is_missing(value)]:
        return np.asarray(
            rng.choice(np.array(values, object if column.datatype == "BYTES" else None), ROWS)
        )
    if column.datatype in ("BYTES", "BOOL"):
        return np.asarray(
            rng.choice(np.array(["", "a"] if column.datatype == "BYTES" else [False, True]), ROWS)
        )
    numbers = rng.choice([-1, 1], ROWS) * 10 ** rng.uniform(-2, 4, ROWS)
    if len(points):
        spread = float(points.std()) or abs(float(points[0])) or 1.0
        start = rng.integers(0, max(len(points) - 1, 1), ROWS)
        between = points[start] + rng.uniform(0.01, 0.99, ROWS) * (
            points[start - len(points) + 1] - points[start]
        )
        numbers = np.where(
            (rng.random(ROWS) < 0.5) & (len(points) > 1),
            between,
            points[start] + rng.normal(0, spread / 2, ROWS),
        )
    return np.asarray(numbers.round(), np.int64) if column.datatype == "INT64" else numbers


def known(model: Any, count: int, read: Reader) -> list[list[float]]:
    """Return the values of each of the model's `count` columns that `read` finds in it and its
    steps."""
    collected: list[list[float]] = [[] for _ in range(count)]
    if hasattr(model, "steps"):
        steps = [step for _, step in model.steps if step not in (None, "passthrough")]
        if steps:
            _add(collected, range(count), known(steps[0], count, read))
        if len(steps) > 1:
            rest = type(model)([(str(index), step) for index, step in enumerate(steps[1:])])
            width = int(getattr(steps[1], "n_features_in_", 0))
            _add(collected, range(count), _before(steps[0], known(rest, width, read), count))
        return collected
    if hasattr(model, "transformers_"):
        for name, transformer, _ in model.transformers_:
            indices = model._transformer_to_input_indices[name]
            if not isinstance(transformer, str):
                _add(collected, indices, known(transformer, len(indices), read))
        return collected
    for index, value in read(model, count):
        if np.isfinite(value) and len(collected[index]) < MOST_VALUES:
            collected[index].append(float(value))
    for inner in _inner(model):
        if getattr(inner, "n_features_in_", count) == count:
            _add(collected, range(count), known(inner, count, read))
    return collected


def _add(
    collected: list[list[float]], indices: Sequence[int], more: Sequence[Sequence[float]]
) -> None:
    for index, values in zip(indices, more, strict=False):
        collected[index] += values[: MOST_VALUES - len(collected[index])]


def _before(step: Any, values: Sequence[Sequence[float]], count: int) -> list[list[float]]:
    """Return values of the step's output columns as values of its `count` input columns, if it
    keeps columns apart."""
    if hasattr(step, "transformers_"):
        collected: list[list[float]] = [[] for _ in range(count)]
        for name, transformer, _ in step.transformers_:
            indices = step._transformer_to_input_indices[name]
            part = values[step.output_indices_.get(name, slice(0, 0))]
            _add(
                collected,
                indices,
                part if transformer == "passthrough" else _before(transformer, part, len(indices)),
            )
        return collected
    if hasattr(step, "steps"):
        for _, inner in reversed(step.steps):
            values = _before(inner, values, int(getattr(inner, "n_features_in_", count)))
        return list(map(list, values))
    from sklearn.base import OneToOneFeatureMixin

    if len(values) != count or not count or hasattr(step, "categories_"):
        return [[] for _ in range(count)]
    if hasattr(step, "statistics_"):
        return list(map(list, values))
    if not hasattr(step, "inverse_transform") or not isinstance(step, OneToOneFeatureMixin):
        return [[] for _ in range(count)]
    longest = max(map(len, values))
    matrix = np.array([np.resize(each or [0.0], longest) for each in values], float).T
    return step.inverse_transform(matrix).T.tolist() if longest else [[] for _ in range(count)]


def _inner(model: Any) -> Iterator[Any]:
    yield from (inner for _, inner in getattr(model, "transformer_list", ()))
    for name in INNER:
        value = getattr(model, name, None)
        for each in (
            np.ravel(np.array(value, object)) if isinstance(value, list | np.ndarray) else [value]
        ):
            if hasattr(each, "get_params") or hasattr(each, "calibrators"):
                yield each


def _learned(model: Any, count: int) -> Iterator[tuple[int, float]]:
    """Yield pairs of a column and a value."""
    for center, scale in CENTERS:
        middle, size = getattr(model, center, None), getattr(model, scale, None)
        if middle is not None and np.shape(middle) == (count,):
            size = np.ones(count) if size is None else size
            for factor in (-1.5, -0.5, 0.5, 1.5):
                yield from enumerate(middle + factor * size)
    for name in LEARNED:
        value = getattr(model, name, None)
        if (
            isinstance(value, np.ndarray)
            and value.dtype.kind in "fiu"
            and value.shape[-1:] == (count,)
        ):
            for row in value.reshape(-1, count)[:MOST_VALUES]:
                yield from enumerate(row)
    if hasattr(model, "bin_edges_"):
        yield from ((index, edge) for index, edges in enumerate(model.bin_edges_) for edge in edges)
    yield from _thresholds(model)


def _deciding(model: Any, count: int) -> Iterator[tuple[int, float]]:
    """Yield pairs of a column and a value at which the column alone decides, of a linear model."""
    coefficients = getattr(model, "coef_", None)
    if not isinstance(coefficients, np.ndarray) or coefficients.shape[-1:] != (count,):
        return
    offsets = np.ravel(getattr(model, "intercept_", 0.0))
    for row, offset in zip(
        coefficients.reshape(-1, count), np.resize(offsets, coefficients.size), strict=False
    ):
        for index in np.flatnonzero(row):
            yield from ((int(index), (goal - offset) / row[index]) for goal in (-1, 0, 1))


def _thresholds(model: Any) -> Iterator[tuple[int, float]]:
    """Yield pairs of a column and a threshold of the model's trees."""
    if hasattr(model, "tree_"):
        yield from zip(
            *(array[model.tree_.feature >= 0].tolist() for array in _splits(model.tree_)),
            strict=True,
        )
    for iteration in getattr(model, "_predictors", ()):
        for predictor in iteration:
            nodes = predictor.nodes[predictor.nodes["is_leaf"] == 0]
            yield from zip(
                nodes["feature_idx"].tolist(), nodes["num_threshold"].tolist(), strict=True
            )
    booster = (
        model.get_booster() if hasattr(model, "get_booster") else getattr(model, "booster_", model)
    )
    if hasattr(booster, "trees_to_dataframe"):
        if hasattr(booster, "num_features"):  # XGBoost
            table = booster.trees_to_dataframe().dropna(subset=["Split"])
            names = booster.feature_names or [
                f"f{index}" for index in range(booster.num_features())
            ]
            yield from (
                (names.index(name), split)
                for name, split in zip(table.Feature, table.Split, strict=True)
            )
        else:
            table = booster.trees_to_dataframe().dropna(subset=["threshold"])
            names = booster.feature_name()
            pairs = zip(table.split_feature, table.threshold, strict=True)
            yield from ((names.index(name), float(value)) for name, value in pairs)


def _splits(tree: Any) -> tuple[Array, Array]:
    return tree.feature, tree.threshold


def agreement(
    estimator: Any, model: onnx.ModelProto, columns: Sequence[Column], cells: Sequence[Array]
) -> float:
    """Return the share of rows whose answers are alike. Raise BuildError if the model itself does
    not answer them."""
    try:
        expected = answers(estimator, cells, columns)
    except Exception as err:  # of any library
        raise BuildError(
            f"the model itself does not answer rows like those it was trained on: {brief(err)}"
        ) from err
    try:
        arrays = run(model, feed(model, cells, columns))
    except Exception:  # ONNX Runtime's exceptions have no common base class
        return 0.0
    names = [value.name for value in model.graph.output]
    outputs = dict(zip(names, arrays, strict=True))
    shares = []
    for what, wanted in expected.items():
        name = (
            next((name for name in names if "prob" in name), "")
            if what == PROBABILITIES
            else names[0]
        )
        shares.append(_alike(np.asarray(wanted), np.asarray(outputs[name])) if name else 0.0)
    return min(shares)


def same_in_fp32(estimator: Any, columns: Sequence[Column], cells: Sequence[Array]) -> bool:
    """Return whether the model itself answers alike if its cells are rounded to FP32."""
    rounded = [
        each.astype(np.float32).astype(float) if each.dtype == float else each for each in cells
    ]
    wanted, actual = (answers(estimator, each, columns) for each in (cells, rounded))
    return all(
        _alike(np.asarray(wanted[what]), np.asarray(actual[what])) >= AGREEING for what in wanted
    )


def missing_columns(
    estimator: Any, model: onnx.ModelProto, columns: Sequence[Column], cells: Sequence[Array]
) -> list[int]:
    """Return the indices of the columns in which the model and its ONNX file take missing cells
    alike."""

    def takes(indices: Sequence[int]) -> bool:
        try:
            return (
                agreement(estimator, model, columns, with_missing(cells, columns, indices))
                >= AGREEING
            )
        except BuildError:
            return False

    able = [
        index
        for index, column in enumerate(columns)
        if column.datatype in ("FP32", "FP64", "BYTES")
    ]
    if not able or takes(able):
        return able
    first = estimator.steps[0][1] if hasattr(estimator, "steps") else estimator
    # else a number that may be missing is one that the model hardly reads
    apart = hasattr(first, "transformers_")
    accepting = [
        index for index in able if (apart or columns[index].datatype == "BYTES") and takes([index])
    ]
    return accepting if len(accepting) < 2 or takes(accepting) else []


def feed(
    model: onnx.ModelProto, cells: Sequence[Array], columns: Sequence[Column]
) -> dict[str, Array]:
    """Return the cells as the graph's one matrix, or a column for each input. A missing text is
    ""."""
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
    """Return the answers of the model itself."""
    matrix = np.stack(cells, axis=1)
    if hasattr(estimator, "inplace_predict"):
        objective = json.loads(estimator.save_config())["learner"]["objective"]["name"]
        return _of_booster(estimator.inplace_predict(matrix), objective)
    if hasattr(estimator, "num_feature"):
        return _of_booster(
            estimator.predict(matrix), str(estimator.dump_model(num_iteration=1)["objective"])
        )
    rows: Any = matrix
    if hasattr(estimator, "feature_names_in_") and all(column.name for column in columns):
        import pandas as pd

        rows = pd.DataFrame(dict(zip((column.name for column in columns), cells, strict=True)))
    outputs = {
        PREDICTIONS: estimator.predict(rows)
        if hasattr(estimator, "predict")
        else estimator.transform(rows)
    }
    return outputs | (
        {PROBABILITIES: estimator.predict_proba(rows)}
        if hasattr(estimator, "predict_proba")
        else {}
    )


def _of_booster(values: Array, objective: str) -> Mapping[str, Any]:
    """Return a Booster's only answer, under the name that its objective gives it."""
    word = objective.partition(" ")[0]
    return {PROBABILITIES if word in _PROBABLE else PREDICTIONS: values}


_PROBABLE = ("binary:logistic", "multi:softprob", "binary", "multiclass", "multiclassova")


def _alike(wanted: Array, got: Array) -> float:
    """Return the share of rows that are the same."""
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
