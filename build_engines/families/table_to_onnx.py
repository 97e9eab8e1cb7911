"""Converts trained models of scikit-learn, XGBoost and LightGBM to ONNX.

table_steps writes the steps before a model, and table_trees writes models of trees; both answer
exactly as the library does. skl2onnx converts all other steps and models (table_skl2onnx).
"""

import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from build_engines.errors import BuildError, UsageError
from build_engines.families import table_repair, table_skl2onnx, table_steps, table_trees
from build_engines.families.table_rows import (
    EXACT,
    PREDICTIONS,
    USUAL,
    Array,
    Column,
    Limits,
    answers,
    compared,
    feed,
    is_missing,
    learned,
    missing_columns,
    sample,
)
from build_engines.families.table_skl2onnx import TableGraph
from build_engines.families.table_steps import Cells, Table
from build_engines.onnx_writer import Graph
from clients.base import TensorSpec

MATRIX = "X"
BOOLEANS = [False, True]
LIBRARIES = ("sklearn", "xgboost", "lightgbm")
MOST_VALUES = 1 << 22  # most values of leaves in a run of trees, 8 bytes each
FAR = (-np.inf, np.inf)
# most rows on which trees alone are compared; if there are more thresholds, only some are tried
MOST_ROWS = 50_000


@dataclass(frozen=True)
class Converted:
    """A model's ONNX graph and its largest batch. `columns` describes its inputs, and `cells` are
    rows for them like those of training. `missing` is the client's setting, or "" for none."""

    model: onnx.ModelProto
    classes: tuple[table_repair.Class, ...]
    columns: list[Column]
    cells: list[Array]
    batch_size: int
    missing: str


def convert(estimator: Any, inputs: Sequence[TensorSpec] = ()) -> Converted:
    """Convert with the columns `inputs`, by default those of the model. Raise BuildError if the
    ONNX file answers rows like those of training differently from the model.

    What skl2onnx converts computes in FP64 if that is supported and gives the same answers, and
    otherwise in FP32. Trees within other models always compute in FP32.
    """
    estimator = _unwrapped(estimator)
    _check_kind(estimator)
    _, last = _parts(estimator)
    if hasattr(last, "get_booster"):
        # XGBoost's scikit-learn interface predicts with the trees up to the best one, if training
        # stopped early; a Booster's own predict uses all trees
        last._Booster = best_trees(last.get_booster())
    columns = columns_of(estimator)
    if inputs:
        columns = _named(inputs, columns)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries warn about arrays without column names
        graph = TableGraph("FP32" if _inner_trees(last) else "FP64")
        try:
            return _converted(graph, estimator, columns)
        except BuildError:
            if graph.datatype == "FP32" or not graph.parts:
                raise
            return _converted(TableGraph("FP32"), estimator, columns)


def _converted(graph: TableGraph, estimator: Any, columns: Sequence[Column]) -> Converted:
    """Write the steps, and the model after them, into the graph. Compare the graph's answers with
    those of the estimator."""
    steps, last = _parts(estimator)
    first = [*steps, last][0]
    selects_columns = hasattr(first, "transformers_")
    have_names = all(column.name for column in columns)
    have_other_types = len({column.datatype for column in columns}) > 1
    are_apart = have_other_types or (selects_columns and have_names)
    cells = _inputs(graph, columns, are_apart)
    table = Table(cells)
    for step in steps:
        table = table_steps.apply(graph, step, table)
    is_of_trees = bool(table_trees.kind_of(last))
    inner = [last] if is_of_trees else _inner_trees(last)
    ensembles = [table_trees.read(each) for each in inner]
    known = _with_thresholds(columns, cells, table, ensembles)
    rows = sample(known)
    expected = answers(estimator, rows, known)
    _check_labels(estimator, expected)
    if inner:
        _check_exact(graph, last, table, ensembles)
    if is_of_trees:
        limits = EXACT
        batch_size = max(min(table_repair.BATCH_SIZE, MOST_VALUES // ensembles[0].values), 1)
        values = _values_of_trees(graph, steps, last, ensembles[0], table)
        outputs = table_trees.write(graph, last, ensembles[0], values)
    else:
        limits, batch_size = USUAL, table_repair.BATCH_SIZE
        values = table_steps.matrix(graph, table.cells)
        outputs = table_skl2onnx.insert(graph, last, values, len(table.cells))
    classes = np.asarray(getattr(estimator, "classes_", ()))
    if classes.tolist() == BOOLEANS and classes.dtype == bool:
        prediction = next(iter(outputs))
        outputs[prediction] = graph.cast(outputs[prediction], TensorProto.BOOL)
        classes = np.array(())
    model = _model(graph, outputs)
    inputs = feed(model, rows, known)
    table_repair.set_shapes(model, inputs)
    if is_of_trees:
        _compare_trees(estimator, last, ensembles[0])
    share = compared(expected, model, inputs, limits)
    _check_share(estimator, limits, share, len(rows[0]), "like those of training")
    able = missing_columns(estimator, model, known, rows, limits, selects_columns)
    kept = list(range(len(known)))
    if are_apart and have_names:
        kept = table_repair.drop_unused_inputs(model)
    return Converted(
        model=model,
        classes=tuple(classes.tolist()),
        columns=[known[index] for index in kept],
        cells=[rows[index] for index in kept],
        batch_size=batch_size,
        missing=_missing([index in able for index in kept]),
    )


def _missing(able: Sequence[bool]) -> str:
    """Return the client's setting `missing` for the columns that are able to have missing cells."""
    if able and all(able):
        return "nan"
    return ",".join(str(index) for index, is_able in enumerate(able) if is_able)


def _check_share(estimator: Any, limits: Limits, share: float, rows: int, which: str) -> None:
    """Print the share of rows whose answers are alike. Raise BuildError if the share is too
    small."""
    part = f"{share:.1%} of {rows} rows {which}"
    print(f"the model and its ONNX file agree on {part}", flush=True)
    if share < limits.share:
        raise BuildError(
            f"the ONNX file answers differently from the {type(estimator).__name__} ({part} "
            "alike): its converter does not support something that the model does; "
            f"{table_repair.INSTEAD}"
        )


def _check_labels(estimator: Any, expected: Mapping[str, Any]) -> None:
    """Raise UsageError for a classifier that gives several labels at once."""
    if hasattr(estimator, "classes_") and np.ndim(expected[PREDICTIONS]) > 1:
        raise UsageError(
            f"a {type(estimator).__name__} with several labels at once cannot be built: train and "
            "build one classifier for each label (a MultiOutputClassifier has them in estimators_)"
        )


def _check_exact(
    graph: TableGraph, last: Any, table: Table, ensembles: Sequence[table_trees.Trees]
) -> None:
    """Raise BuildError if the cells that trees compare may differ in their last bits from those of
    the library. Trees within another model are converted by skl2onnx, and compare in FP32."""
    name, where = type(last).__name__, ""
    if graph.parts:
        where = f"a {graph.parts[0]} before trees is"
    elif table_trees.kind_of(last):
        return
    elif table.sparse or _has_steps(last):
        where = f"steps before the trees within a {name} are"
    elif not all(each.in_fp32 for each in ensembles):
        where = f"trees within a {name} that compare in FP64 are"
    if where:
        raise BuildError(
            f"{where} not converted exactly, and the last bit of a cell can decide at a threshold: "
            "if that does not matter, convert the model with skl2onnx and build the ONNX file"
        )


def _has_steps(model: Any) -> bool:
    """Return whether a step comes before another one within the model."""
    return any(len(getattr(each, "steps", ())) > 1 for each in _within(model))


def _with_thresholds(
    columns: Sequence[Column],
    cells: Sequence[Cells],
    table: Table,
    ensembles: Sequence[table_trees.Trees],
) -> list[Column]:
    """Return the columns, with the thresholds of the trees that read them unchanged. The columns
    enter the graph as `cells`, and the trees read `table`."""
    known = list(columns)
    for trees in ensembles:
        for feature, thresholds in trees.thresholds().items():
            if table.cells[feature] in cells:
                index = cells.index(table.cells[feature])
                known[index] = known[index].near(thresholds)
    return known


def _values_of_trees(
    graph: Graph, steps: Sequence[Any], last: Any, trees: table_trees.Trees, table: Table
) -> str:
    """Return the FP64 matrix whose cells the trees compare with their thresholds."""
    in_fp32 = _are_whole_in_fp32(steps, last, trees, table.cells)
    values = table_steps.matrix(graph, table.cells, in_fp32)
    if table.sparse and _library(last) == "xgboost":
        values = table_steps.with_absent(graph, values, table.cells)
    return values


def _model(graph: Graph, outputs: table_trees.Outputs) -> onnx.ModelProto:
    """Return the model with these outputs. If a column has an output's name, the output's is
    changed."""
    for name, tensor in outputs.items():
        graph.output(graph.add("Identity", tensor, output=name))
    return graph.model("table")


def _are_whole_in_fp32(
    steps: Sequence[Any], last: Any, trees: table_trees.Trees, cells: Sequence[Cells]
) -> bool:
    """Return whether the library rounds whole numbers to FP32 directly, rather than to FP64 first.
    XGBoost does if no steps come before it, because it reads each column of a frame by itself.
    Otherwise, columns of several types become FP64 first. LightGBM reads a frame as FP64, but an
    array of whole numbers, such as the output of steps, as FP32. Other libraries read whole numbers
    as the type in which their trees compare."""
    library = _library(last)
    if library == "xgboost" and not steps:
        return True
    if any(cell.datatype != "INT64" for cell in cells):
        return False
    if library == "lightgbm":
        was_fitted_on_frame = bool(_names(last)[0])
        return bool(steps) or not was_fitted_on_frame
    return trees.in_fp32


def _inputs(graph: Graph, columns: Sequence[Column], are_apart: bool) -> list[Cells]:
    """Add an input for each column if they `are_apart`, or else one input for all columns."""
    if not are_apart:
        datatype, width = columns[0].datatype, len(columns)
        name = graph.input(MATRIX, datatype, [None, width])
        return [Cells(name, index, width, datatype) for index in range(width)]
    return [
        Cells(graph.input(name, column.datatype, [None, 1]), 0, 1, column.datatype)
        for name, column in zip(_input_names(columns), columns, strict=True)
    ]


def _input_names(columns: Sequence[Column]) -> list[str]:
    return [column.name or f"column_{index}" for index, column in enumerate(columns)]


def _compare_trees(estimator: Any, last: Any, trees: table_trees.Trees) -> None:
    """Compare the trees without the steps before them, at every threshold and at the nearest
    numbers on both sides of it, in FP32 and in FP64."""
    rng = np.random.default_rng(0)
    columns = [Column(name) for name in _names(last)]
    asked = {
        feature: _near(values, np.nan if trees.most is None else trees.most[feature])
        for feature, values in trees.thresholds().items()
    }
    count = min(max(map(len, asked.values()), default=1), MOST_ROWS)
    matrix = np.zeros((count, len(columns)))
    for feature, values in asked.items():
        matrix[:, feature] = np.resize(rng.permutation(values), count)
    graph = Graph()
    name = graph.input(MATRIX, "FP64", [None, len(columns)])
    model = _model(graph, table_trees.write(graph, last, trees, name))
    expected = answers(last, list(matrix.T), columns)
    share = compared(expected, model, {MATRIX: matrix}, EXACT)
    _check_share(estimator, EXACT, share, count, "at the thresholds of its trees")


def _near(thresholds: Array, most: float) -> Array:
    """Return the thresholds and their neighbors or, for categories, the whole numbers next to them
    from 0 to `most`."""
    values = thresholds[np.isfinite(thresholds)]
    if not np.isnan(most):
        sides = np.concatenate([np.floor(values), np.ceil(values)])
        return np.asarray(np.unique(np.clip(sides, 0, most)))
    parts = [values, values.astype(np.float32)]
    parts += [np.nextafter(each, limit) for each in parts for limit in FAR]
    return np.asarray(np.unique(np.concatenate(parts).astype(float)))


def _named(inputs: Sequence[TensorSpec], columns: Sequence[Column]) -> list[Column]:
    """Return the user's columns, with the categories that the model knows of each."""
    if len(inputs) != len(columns):
        raise UsageError(f"{len(inputs)} times --input, but the model takes {len(columns)} columns")
    return [
        replace(each, name=spec.name, datatype=spec.datatype)
        for spec, each in zip(inputs, columns, strict=True)
    ]


def _check_kind(estimator: Any) -> None:
    """Raise UsageError if the object is not a model of tables, and BuildError for a model that
    skl2onnx would convert to a different one."""
    name = type(estimator).__name__
    if _library(estimator) == "catboost":
        raise UsageError(f"the file holds a {name}: {table_repair.OF_CATBOOST}")
    if _library(estimator) not in LIBRARIES and not hasattr(estimator, "__sklearn_tags__"):
        raise UsageError(
            f"the file holds a {name}, which is not a model of scikit-learn, XGBoost or LightGBM"
        )
    for step in _within(estimator):
        if hasattr(step, "vocabulary_") or type(step).__name__ == "HashingVectorizer":
            raise UsageError(
                f"a {type(step).__name__} takes texts, which are not columns of a table: serve the "
                f"model as a Python model ({table_repair.INSTEAD})"
            )
        if type(step).__name__ in ("TunedThresholdClassifierCV", "FixedThresholdClassifier"):
            raise BuildError(
                f"skl2onnx ignores the threshold of a {type(step).__name__}: build its estimator_ "
                f"and compare the probability yourself, or {table_repair.INSTEAD}"
            )


def _library(estimator: Any) -> str:
    return type(estimator).__module__.partition(".")[0]


def _unwrapped(step: Any) -> Any:
    """Return the best model of a search over parameters, which gives the search's answers, or else
    the step itself."""
    while hasattr(step, "best_estimator_"):
        step = step.best_estimator_
    return step


def _parts(estimator: Any) -> tuple[list[Any], Any]:
    """Return the steps that do something, and the model after them. HistGradientBoosting has a step
    of its own for categorical columns."""
    steps: list[Any] = []
    while hasattr(estimator, "steps"):
        before = [_unwrapped(step) for _, step in estimator.steps[:-1]]
        steps += [step for step in before if step not in (None, "passthrough")]
        estimator = _unwrapped(estimator.steps[-1][1])
    if getattr(estimator, "_preprocessor", None) is not None:
        steps.append(estimator._preprocessor)
        estimator = copy(estimator)
        estimator._preprocessor = None
        vars(estimator).pop("feature_names_in_", None)
    return steps, estimator


def _within(estimator: Any) -> list[Any]:
    """Return the model and all models within it, except those within models of trees."""
    found: list[Any] = []
    pending, seen = [estimator], set()
    while pending:
        each = pending.pop()
        if id(each) in seen:
            continue
        seen.add(id(each))
        if isinstance(each, list | tuple):
            pending += each
        elif isinstance(each, np.ndarray) and each.dtype == object:
            pending += each.ravel().tolist()
        elif hasattr(each, "get_params") or hasattr(each, "calibrators"):
            found.append(each)
            pending += [] if table_trees.kind_of(each) else vars(each).values()
    return found


def _inner_trees(model: Any) -> list[Any]:
    """Return the trained models of trees within a model of another kind."""
    inner = [each for each in _within(model) if each is not model and table_trees.kind_of(each)]
    return [each for each in inner if getattr(each, "n_features_in_", 0)]


def columns_of(estimator: Any) -> list[Column]:
    """Return the columns, with their names in training and with what is known about them from the
    steps that read them."""
    columns = [Column(name) for name in _names(estimator)]
    for step, indices, is_filled in _readers(estimator, range(len(columns))):
        for index, points in zip(indices, learned(step, len(indices)), strict=True):
            columns[index] = columns[index].near(points)
        for index in indices if _fills(step) else ():
            columns[index] = replace(columns[index], missing=step.missing_values)
        for index, categories in zip(indices, getattr(step, "categories_", ()), strict=False):
            closed = getattr(step, "handle_unknown", "") == "error"
            columns[index] = _with_categories(columns[index], categories, closed, is_filled)
    return columns


def _readers(
    step: Any, indices: Sequence[int], is_filled: bool = False
) -> Iterator[tuple[Any, Sequence[int], bool]]:
    """Yield each step that reads columns as the model gets them, except that an imputer may have
    filled missing cells. Yield the columns' indices with it, and whether an imputer has."""
    step = _unwrapped(step)
    if hasattr(step, "steps"):
        for _, each in step.steps:
            yield from _readers(each, indices, is_filled)
            is_filled = is_filled or _fills(each)
            if each not in (None, "passthrough") and not hasattr(each, "statistics_"):
                break
    elif hasattr(step, "transformers_"):
        for name, each, _ in step.transformers_:
            chosen = [indices[place] for place in step._transformer_to_input_indices[name]]
            yield from _readers(each, chosen, is_filled)
    elif hasattr(step, "transformer_list"):
        for _, each in step.transformer_list:
            yield from _readers(each, indices, is_filled)
    elif getattr(step, "_preprocessor", None) is not None:
        yield from _readers(step._preprocessor, indices, is_filled)
    else:
        yield step, indices, is_filled


def _fills(step: Any) -> bool:
    """Return whether the step is an imputer that fills cells without a value."""
    return hasattr(step, "statistics_") and is_missing(step.missing_values)


def _with_categories(column: Column, categories: Array, closed: bool, is_filled: bool) -> Column:
    """Return the column with the categories of an encoder. If several encoders read the column, it
    has those of the ones that refuse all other values, without those that one of them refuses."""
    if column.closed and not closed:
        return column
    values = tuple(categories.tolist())
    if column.closed:
        values = tuple(each for each in column.values if is_missing(each) or each in values)
        is_filled = is_filled and column.filled
    kind = categories.dtype.kind
    datatype = "BYTES" if kind in "OSU" else "INT64" if kind in "iu" else column.datatype
    return replace(
        column,
        datatype=datatype,
        values=values,
        closed=closed,
        filled=is_filled,
        missing=next(filter(is_missing, values), column.missing),
        dtype=categories.dtype if kind in "iu" else None,
    )


def _names(estimator: Any) -> list[str]:
    """Return a name for each column: "" if the columns have no names."""
    booster = booster_of(estimator)
    if type(booster).__module__.startswith("xgboost"):
        return list(booster.feature_names or [""] * booster.num_features())
    # LightGBM's Booster, which calls columns without names Column_0 …
    if hasattr(booster, "num_feature"):
        names = booster.feature_name()
        return (
            [""] * len(names)
            if all(re.fullmatch(r"Column_\d+", name) for name in names)
            else list(names)
        )
    count = int(getattr(estimator, "n_features_in_", 0))
    if not count:
        raise UsageError(
            f"a {type(estimator).__name__} that is not trained, or not on rows, cannot be served"
        )
    return [str(name) for name in getattr(estimator, "feature_names_in_", [""] * count)]


def best_trees(booster: Any) -> Any:
    """Return XGBoost's Booster up to its best round, or the whole Booster if it did not stop
    early."""
    best = booster.attr("best_iteration")
    return booster[: int(best) + 1] if best else booster


def booster_of(estimator: Any) -> Any:
    """Return XGBoost's or LightGBM's inner Booster, or any other estimator itself."""
    if hasattr(estimator, "get_booster"):
        return estimator.get_booster()
    return getattr(estimator, "booster_", estimator)
