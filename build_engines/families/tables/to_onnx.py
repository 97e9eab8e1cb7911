"""Converts trained models of scikit-learn, XGBoost and LightGBM to ONNX. The sums of trees, and the
results of the steps that steps.py itself converts, equal the library's exactly. Predictions that
are computed from the sums, such as probabilities, may differ in the last bit."""

import warnings
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from build_engines.errors import BuildError, UsageError
from build_engines.families.tables.by_skl2onnx import IF_UNIMPORTANT, TableGraph, insert
from build_engines.families.tables.columns import (
    Array,
    Column,
    active_steps,
    columns_of,
    models_within,
    names_of,
    unwrapped,
    with_inputs,
)
from build_engines.families.tables.repair import (
    BATCH_SIZE,
    INSTEAD,
    Class,
    drop_unused_inputs,
    set_shapes,
)
from build_engines.families.tables.rows import (
    EXACT,
    PREDICTIONS,
    USUAL,
    Limits,
    feed,
    nullable_columns,
    predictions_of,
    sample,
    share_alike,
)
from build_engines.families.tables.steps import (
    Table,
    TensorColumn,
    apply_step,
    matrix,
    nan_if_absent,
)
from build_engines.families.tables.trees import (
    Outputs,
    Trees,
    best_trees,
    kind_of,
    read_trees,
    write_trees,
)
from build_engines.onnx_writer import Graph
from clients.base import TensorSpec

MATRIX = "X"
BOOLEANS = [False, True]
LIBRARIES = ("sklearn", "xgboost", "lightgbm")
MOST_VALUES = 1 << 22  # maximum number of leaf values that one run adds up; each has up to 8 bytes
BOTH_DIRECTIONS = (-np.inf, np.inf)
# maximum number of rows on which trees are compared without the steps before them; if a column has
# more numbers to try (_numbers_near), only some are tried
MOST_ROWS = 50_000


@dataclass(frozen=True)
class Converted:
    """A converted model: its ONNX graph, its classes, and its largest batch size. `columns`
    describes its inputs, and `cells` has sample values for each column. `missing` is the client's
    setting of that name, or "" for none."""

    model: onnx.ModelProto
    classes: list[Class]
    columns: list[Column]
    cells: list[Array]
    batch_size: int
    missing: str


def convert(estimator: Any, inputs: Sequence[TensorSpec] = ()) -> Converted:
    """Convert a trained model to ONNX. `inputs` are the names and datatypes of its columns; by
    default they are read from the model. If the training of an XGBoost model stopped early, the
    model inside `estimator` is itself cut to its best round.

    The parts that skl2onnx converts compute in FP64 if skl2onnx supports it and the predictions
    match, and otherwise in FP32. Raise BuildError if the model cannot be converted, or if the ONNX
    file's predictions differ from the model's for too many of the rows like the training data.
    """
    estimator = unwrapped(estimator)
    _check_kind(estimator)
    if next(active_steps(estimator), None) is None:
        raise UsageError(
            "all steps of the pipeline do nothing, so there is nothing to predict with"
        )
    _, last = _parts(estimator)
    if hasattr(last, "get_booster"):
        # XGBoost's scikit-learn interface predicts with the rounds up to the best one; a Booster's
        # own predict uses all rounds.
        last._Booster = best_trees(last.get_booster())
    columns = columns_of(estimator)
    if inputs:
        columns = with_inputs(columns, inputs)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries warn about arrays without column names
        graph = TableGraph("FP64")
        try:
            return _converted(graph, estimator, columns)
        except BuildError:
            if not graph.skl2onnx_parts:
                raise
            return _converted(TableGraph("FP32"), estimator, columns)


def _converted(graph: TableGraph, estimator: Any, columns: Sequence[Column]) -> Converted:
    """Add the steps and the model after them to the graph, and return the result. Raise BuildError
    if that fails, or if the graph's predictions differ from the estimator's."""
    steps, last = _parts(estimator)
    first = [*steps, last][0]
    selects_columns = hasattr(first, "transformers_")
    have_names = all(column.name for column in columns)
    have_different_types = len({column.datatype for column in columns}) > 1
    # one matrix has one type, and a named column that no step selects can only be dropped if it is
    # an input of its own
    separate_inputs = have_different_types or (selects_columns and have_names)
    inputs = _add_inputs(graph, columns, separate_inputs)
    table = Table(inputs)
    for step in steps:
        table = apply_step(graph, step, table)
    trees = read_trees(last) if kind_of(last) else None
    if trees:
        columns = _with_thresholds(columns, inputs, table, trees)
    cells = sample(columns)
    expected = predictions_of(estimator, cells, columns)
    _check_labels(estimator, expected)
    if trees:
        _check_exact(graph)
        limits = EXACT
        batch_size = max(min(BATCH_SIZE, MOST_VALUES // trees.values_per_row), 1)
        compared_cells = _compared_cells(graph, steps, last, trees, table)
        outputs = write_trees(graph, last, trees, compared_cells)
        _check_trees(estimator, last, trees)
    else:
        limits, batch_size = USUAL, BATCH_SIZE
        values = matrix(graph, table.columns)
        outputs = insert(graph, last, values, len(table.columns))
    classes = _cast_if_boolean(graph, estimator, outputs)
    model = _model(graph, outputs)
    rows = feed(model, cells, columns)
    set_shapes(model, rows)
    share = share_alike(expected, model, rows, limits)
    _check_share(estimator, limits, share, len(cells[0]), "like those of training")
    nullable = nullable_columns(estimator, model, columns, cells, limits, selects_columns)
    kept = list(range(len(columns)))
    if separate_inputs and have_names:
        kept = drop_unused_inputs(model)
    return Converted(
        model=model,
        classes=classes,
        columns=[columns[index] for index in kept],
        cells=[cells[index] for index in kept],
        batch_size=batch_size,
        missing=_missing_setting([index in nullable for index in kept]),
    )


def _cast_if_boolean(graph: Graph, estimator: Any, outputs: Outputs) -> list[Class]:
    """Return the classes of a classifier, or [] for another model. If the classes are False and
    True, cast the prediction in `outputs`, the first of them, to Boolean, and return []."""
    classes = np.asarray(getattr(estimator, "classes_", ()))
    if classes.dtype != bool or classes.tolist() != BOOLEANS:
        return list(classes.tolist())
    prediction = next(iter(outputs))
    outputs[prediction] = graph.cast(outputs[prediction], TensorProto.BOOL)
    return []


def _missing_setting(nullable: Sequence[bool]) -> str:
    """Return the client's setting `missing`: "nan" if all columns are `nullable`, or else the
    indices of those that are, such as "0,3", or "" if none is."""
    if nullable and all(nullable):
        return "nan"
    return ",".join(str(index) for index, is_nullable in enumerate(nullable) if is_nullable)


def _check_share(estimator: Any, limits: Limits, share: float, count: int, which: str) -> None:
    """Print the share of the `count` rows whose predictions match. `which` describes the rows.
    Raise BuildError if the share is too small."""
    part = f"{share:.1%} of {count} rows {which}"
    print(f"the model and its ONNX file agree on {part}", flush=True)
    if share < limits.share:
        raise BuildError(
            f"the ONNX file answers differently from the {type(estimator).__name__} ({part} "
            "alike): its converter does not support something that the model does; "
            f"{INSTEAD}"
        )


def _check_labels(estimator: Any, expected: Mapping[str, Any]) -> None:
    """Raise UsageError for a classifier that predicts several labels at once."""
    if hasattr(estimator, "classes_") and np.ndim(expected[PREDICTIONS]) > 1:
        raise UsageError(
            f"a {type(estimator).__name__} with several labels at once cannot be built: train and "
            "build one classifier for each label (a MultiOutputClassifier has them in estimators_)"
        )


def _check_exact(graph: TableGraph) -> None:
    """Raise BuildError if the cells that trees compare with thresholds may differ from the
    library's in the last bits, because skl2onnx converted a step before the trees."""
    if graph.skl2onnx_parts:
        raise BuildError(
            f"a {graph.skl2onnx_parts[0]} before trees is not converted exactly, and the last bit "
            f"of a cell can decide at a threshold: {IF_UNIMPORTANT}"
        )


def _with_thresholds(
    columns: Sequence[Column], inputs: Sequence[TensorColumn], table: Table, trees: Trees
) -> list[Column]:
    """Return the columns. If trees read a column unchanged, their thresholds are added to its
    `points`. `inputs` are the columns as inputs of the graph, and `table` has the columns that the
    trees read."""
    changed = list(columns)
    for feature, thresholds in trees.thresholds().items():
        column = table.columns[feature]
        if column in inputs:
            index = inputs.index(column)
            changed[index] = changed[index].with_points(thresholds)
    return changed


def _compared_cells(
    graph: Graph, steps: Sequence[Any], last: Any, trees: Trees, table: Table
) -> str:
    """Return the FP64 matrix whose cells the trees compare with their thresholds."""
    integers_to_fp32 = _rounds_integers_to_fp32(steps, last, trees, table.columns)
    values = matrix(graph, table.columns, integers_to_fp32)
    if table.sparse and _library(last) == "xgboost":
        values = nan_if_absent(graph, values, table.columns)
    return values


def _model(graph: Graph, outputs: Outputs) -> onnx.ModelProto:
    """Return the graph as a model with these outputs. An output that has the name of a column is
    renamed."""
    for name, tensor in outputs.items():
        graph.output(graph.add("Identity", tensor, output=name))
    return graph.model("table")


def _rounds_integers_to_fp32(
    steps: Sequence[Any], last: Any, trees: Trees, columns: Sequence[TensorColumn]
) -> bool:
    """Return whether the library rounds integers to FP32 directly, rather than to FP64 first."""
    library = _library(last)
    # without steps, XGBoost reads each column of a data frame by itself
    if library == "xgboost" and not steps:
        return True
    # columns of different types are converted to FP64 together
    if any(column.datatype != "INT64" for column in columns):
        return False
    # LightGBM reads a data frame in FP64, but an array of integers, such as steps return, in FP32
    if library == "lightgbm":
        was_fitted_on_frame = bool(names_of(last)[0])
        return bool(steps) or not was_fitted_on_frame
    # other libraries convert integers to the type in which their trees compare
    return trees.in_fp32


def _add_inputs(
    graph: Graph, columns: Sequence[Column], separate_inputs: bool
) -> list[TensorColumn]:
    """Add an input for each column if `separate_inputs`, or else one input for all columns. Return
    the columns as columns of the inputs."""
    if not separate_inputs:
        datatype, width = columns[0].datatype, len(columns)
        name = graph.input(MATRIX, datatype, [None, width])
        return [TensorColumn(name, index, width, datatype) for index in range(width)]
    inputs = []
    for name, column in zip(_input_names(columns), columns, strict=True):
        graph.input(name, column.datatype, [None, 1])
        inputs.append(TensorColumn(name, datatype=column.datatype))
    return inputs


def _input_names(columns: Sequence[Column]) -> list[str]:
    return [column.name or f"column_{index}" for index, column in enumerate(columns)]


def _check_trees(estimator: Any, last: Any, trees: Trees) -> None:
    """Compare the predictions of the trees, without the steps before them, with the library's. The
    rows contain the numbers that `_numbers_near` returns for each column, but at most MOST_ROWS of
    them. Raise BuildError if the predictions differ."""
    rng = np.random.default_rng(0)
    columns = [Column(name) for name in names_of(last)]
    highest = trees.highest_category
    if highest is None:
        highest = np.full(len(columns), np.nan)
    numbers = {
        feature: _numbers_near(thresholds, highest[feature])
        for feature, thresholds in trees.thresholds().items()
    }
    longest = max(map(len, numbers.values()), default=1)
    count = min(longest, MOST_ROWS)
    rows = np.zeros((count, len(columns)))
    for feature, values in numbers.items():
        # columns with fewer numbers repeat them
        rows[:, feature] = np.resize(rng.permutation(values), count)
    graph = Graph()
    name = graph.input(MATRIX, "FP64", [None, len(columns)])
    model = _model(graph, write_trees(graph, last, trees, name))
    expected = predictions_of(last, list(rows.T), columns)
    share = share_alike(expected, model, {MATRIX: rows}, EXACT)
    _check_share(estimator, EXACT, share, count, "at the thresholds of its trees")


def _numbers_near(thresholds: Array, highest_category: float) -> Array:
    """Return the numbers at which to compare trees with these thresholds.

    If `highest_category` is NaN, the column has numbers: return the thresholds, and the nearest
    FP64 and FP32 numbers on both sides. Otherwise its categories are the integers from 0 to
    `highest_category`: return the integers on both sides of the thresholds, clipped to this range.
    """
    values = thresholds[np.isfinite(thresholds)]
    if not np.isnan(highest_category):
        sides = np.concatenate([np.floor(values), np.ceil(values)])
        return np.asarray(np.unique(np.clip(sides, 0, highest_category)))
    parts = [values, values.astype(np.float32)]
    for direction in BOTH_DIRECTIONS:
        parts += [np.nextafter(part, direction) for part in parts[:2]]
    return np.asarray(np.unique(np.concatenate(parts).astype(float)))


def _check_kind(estimator: Any) -> None:
    """Raise UsageError if the object is not a tabular model. Raise BuildError for a model whose
    conversion by skl2onnx would make other predictions."""
    if _library(estimator) not in LIBRARIES and not hasattr(estimator, "__sklearn_tags__"):
        raise UsageError(
            f"the file holds a {type(estimator).__name__}, which is not a model of scikit-learn, "
            "XGBoost or LightGBM"
        )
    for step in models_within(estimator):
        if hasattr(step, "vocabulary_") or type(step).__name__ == "HashingVectorizer":
            raise UsageError(
                f"a {type(step).__name__} takes texts, which are not columns of a table: serve the "
                f"model as a Python model ({INSTEAD})"
            )
        if type(step).__name__ in ("TunedThresholdClassifierCV", "FixedThresholdClassifier"):
            raise BuildError(
                f"skl2onnx ignores the threshold of a {type(step).__name__}: build its estimator_ "
                f"and compare the probability yourself, or {INSTEAD}"
            )


def _library(estimator: Any) -> str:
    return type(estimator).__module__.partition(".")[0]


def _parts(estimator: Any) -> tuple[list[Any], Any]:
    """Return the steps, without those that do nothing, and the model after them.
    HistGradientBoosting's own step for categorical columns becomes the last of the steps."""
    *steps, estimator = active_steps(estimator)
    if getattr(estimator, "_preprocessor", None) is not None:
        steps.append(estimator._preprocessor)
        estimator = copy(estimator)
        estimator._preprocessor = None
        # the columns that the step returns have another order, and no names
        vars(estimator).pop("feature_names_in_", None)
    return steps, estimator
