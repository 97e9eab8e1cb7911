"""Converts trained models of scikit-learn, XGBoost and LightGBM to ONNX.

table_trees and table_steps write models of trees and the steps before them, whose answers are the
library's own. skl2onnx converts all others.
"""

import re
import warnings
from collections.abc import Sequence
from contextlib import suppress
from copy import copy, deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from build_engines.errors import BuildError, UsageError, brief
from build_engines.families import table_repair, table_steps, table_trees
from build_engines.families.onnx_graph import OPSETS, Graph
from build_engines.families.table_rows import (
    EXACT,
    PREDICTIONS,
    PROBABILITIES,
    USUAL,
    Array,
    Column,
    Limits,
    agreement,
    answers,
    compared,
    feed,
    is_missing,
    missing_columns,
    of_file,
    points_of,
    sample,
)
from build_engines.families.table_steps import Cells, Table, UnknownStep
from clients.base import TensorSpec

MATRIX = "X"
BOOLEANS = (False, True)
LIBRARIES = ("sklearn", "xgboost", "lightgbm")
MOST_VALUES = 1 << 22  # values of leaves in a run of trees, 8 bytes each
OF_TREES = Limits(1.0, 1e-5)  # for trees in FP32, compared on the user's rows
FAR = (-np.inf, np.inf)
# rows on which trees are compared alone; if there are more thresholds, only some are tried
MOST_ROWS = 50_000


@dataclass(frozen=True)
class Converted:
    """A converted model: its graph, the largest batch, the columns' names (if they have any), the
    classes, the setting `missing` ("" for none), a row like those of training, and for each column
    its only categories, or None if it may have other cells."""

    model: onnx.ModelProto
    batch_size: int
    columns: tuple[str, ...]
    classes: tuple[table_repair.Class, ...]
    missing: str
    example: list[Any]
    categories: list[list[Any] | None]


@dataclass(frozen=True)
class Written:
    """A graph that is compared with its model: `limits` says how alike it must be."""

    model: onnx.ModelProto
    classes: tuple[table_repair.Class, ...]
    columns: list[Column]
    limits: Limits
    cells: list[Array]
    batch_size: int = table_repair.BATCH_SIZE


def convert(
    estimator: Any, inputs: Sequence[TensorSpec] = (), data: Path | None = None
) -> Converted:
    """Convert with the columns `inputs`, by default those of the model. Raise BuildError if the
    ONNX file answers differently from the model, for rows like those of training or for those of
    the file `data`."""
    estimator = _best(_chosen(estimator))
    _check_kind(estimator)
    columns = columns_of(estimator)
    if inputs:
        columns = _named(inputs, columns)
    own = of_file(data, columns) if data else None
    write = _skl2onnx
    if table_trees.kind_of(_last(estimator)):
        write = _exact
    elif _has_steps(estimator) and _inner_trees(estimator) and not data:
        last = type(_last(estimator)).__name__
        raise BuildError(
            f"steps before the trees within a {last} are not converted exactly; {OWN_ROWS}"
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the libraries warn about arrays without column names
        try:
            written = write(estimator, columns, own)
        except UnknownStep as err:
            if own is None:
                raise BuildError(f"{err}; {OWN_ROWS}") from err
            written = _skl2onnx(estimator, columns, own)
        return _described(estimator, written)


OWN_ROWS = "with --data rows.csv it is built if the ONNX file answers all these rows alike"


def _has_steps(estimator: Any) -> bool:
    """Return whether a step comes before the last one, also within it."""
    pipelines = [each for each in _within(estimator) if hasattr(each, "steps")]
    return any(len(each.steps) > 1 for each in pipelines)


def _described(estimator: Any, written: Written) -> Converted:
    columns, model, cells = written.columns, written.model, written.cells
    able = missing_columns(estimator, model, columns, cells, written.limits)
    kept = list(range(len(columns)))
    if are_apart(columns, estimator) and all(column.name for column in columns):
        kept = table_repair.drop_unused_inputs(model)
    able = [index for index, old in enumerate(kept) if old in able]
    missing = ",".join(map(str, able))
    if kept and len(able) == len(kept):
        missing = "nan"
    return Converted(
        model,
        written.batch_size,
        tuple(columns[index].name for index in kept if columns[index].name),
        written.classes,
        missing,
        [np.asarray(cells[index]).tolist()[0] for index in kept],
        [_categories(columns[index]) for index in kept],
    )


def _categories(column: Column) -> list[Any] | None:
    """Return the only categories that the column may have, or None if it may have others too."""
    if not column.closed:
        return None
    values = [None if is_missing(value) else value for value in column.values]
    return [*values, None] if column.filled and column.datatype == "BYTES" else values


def _check_share(estimator: Any, written: Written, share: float, rows: int, which: str) -> None:
    """Print the share of rows whose answers are alike. Raise BuildError if it is too small."""
    part = f"{share:.1%} of {rows} rows {which}"
    print(f"the model and its ONNX file agree on {part}", flush=True)
    if not written.limits(share):
        raise BuildError(
            f"the ONNX file answers differently from the {type(estimator).__name__} ({part} "
            "alike): its converter does not support something that the model does; "
            f"{table_repair.INSTEAD}"
        )


def _exact(estimator: Any, columns: list[Column], own: list[Array] | None) -> Written:
    """Convert a model of trees and the steps before it, node by node."""
    graph = Graph()
    cells = _inputs(graph, columns, estimator)
    steps, last = _parts(estimator)
    made = Table(cells)
    for step in steps:
        made = table_steps.apply(graph, step, made)
    trees = table_trees.read(last)
    in_fp32 = _are_whole_in_fp32(steps, last, trees, made.cells)
    values = table_steps.matrix(graph, made.cells, in_fp32)
    if made.sparse and _library(last) == "xgboost":
        values = table_steps.with_absent(graph, values, made.cells)
    model = _model(graph, table_trees.write(graph, last, trees, values))
    points = points_of(estimator, len(columns))
    for feature, thresholds in trees.thresholds().items():
        if made.cells[feature] in cells:  # the trees read the column as it comes
            points[cells.index(made.cells[feature])] += thresholds.tolist()
    rows = sample(columns, points)
    _check_answers(estimator, rows, columns)
    classes = _finished(estimator, model, rows, columns)
    batch_size = max(min(table_repair.BATCH_SIZE, MOST_VALUES // trees.values), 1)
    written = Written(model, classes, columns, EXACT, rows, batch_size)
    _compare_trees(estimator, written, last, trees)
    _compare(estimator, written, own)
    return written


def _model(graph: Graph, outputs: table_trees.Outputs) -> onnx.ModelProto:
    """Return the model with these outputs. A name that a column has is changed."""
    for name, tensor in outputs.items():
        graph.output(graph.add("Identity", tensor, output=name))
    return graph.model("table")


def _are_whole_in_fp32(
    steps: Sequence[Any], last: Any, trees: table_trees.Trees, cells: Sequence[Cells]
) -> bool:
    """Return whether the library rounds whole numbers to FP32 directly, not to FP64 first. XGBoost
    does, because it reads each column of a frame by itself. Otherwise columns of several types
    become FP64 first; LightGBM takes a frame as FP64, but an array of whole numbers as FP32."""
    library = _library(last)
    if library == "xgboost" and not steps:
        return True
    if any(cell.datatype != "INT64" for cell in cells):
        return False
    if library == "lightgbm":
        return bool(steps) or not _names(last)[0]
    return trees.in_fp32


def _compare(estimator: Any, written: Written, own: list[Array] | None) -> None:
    """Compare the whole model on rows like those of training, and on the user's."""
    asked = {"like those of training": written.cells} | ({"of --data": own} if own else {})
    for which, rows in asked.items():
        share = agreement(estimator, written.model, written.columns, rows, written.limits)
        _check_share(estimator, written, share, len(rows[0]), which)


def _inputs(graph: Graph, columns: Sequence[Column], estimator: Any) -> list[Cells]:
    """Add an input for each column, or one for all."""
    if not are_apart(columns, estimator):
        datatype, width = columns[0].datatype, len(columns)
        name = graph.input(MATRIX, datatype, [None, width])
        return [Cells(name, index, width, datatype) for index in range(width)]
    return [
        Cells(graph.input(name, column.datatype, [None, 1]), 0, 1, column.datatype)
        for name, column in zip(_input_names(columns), columns, strict=True)
    ]


def _input_names(columns: Sequence[Column]) -> list[str]:
    return [column.name or f"column_{index}" for index, column in enumerate(columns)]


def _compare_trees(estimator: Any, written: Written, last: Any, trees: table_trees.Trees) -> None:
    """Compare the trees alone, at every threshold and one step of FP32 and of FP64 to each side."""
    rng, width = np.random.default_rng(0), _width(last)
    asked = {
        feature: _near(values, np.nan if trees.most is None else trees.most[feature])
        for feature, values in trees.thresholds().items()
    }
    count = min(max(map(len, asked.values()), default=1), MOST_ROWS)
    matrix = np.zeros((count, width))
    for feature, values in asked.items():
        matrix[:, feature] = np.resize(rng.permutation(values), count)
    graph = Graph()
    name = graph.input(MATRIX, "FP64", [None, width])
    model = _model(graph, table_trees.write(graph, last, trees, name))
    names = getattr(last, "feature_names_in_", [""] * width)
    columns = [Column(str(name)) for name in names]
    expected = answers(last, list(matrix.T), columns)
    share = compared(expected, model, {MATRIX: matrix}, EXACT)
    _check_share(estimator, written, share, count, "at the thresholds of its trees")


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


def _width(last: Any) -> int:
    booster = booster_of(last)
    if hasattr(booster, "num_features"):
        return int(booster.num_features())
    return int(booster.num_feature() if hasattr(booster, "num_feature") else last.n_features_in_)


def _skl2onnx(estimator: Any, columns: list[Column], own: list[Array] | None) -> Written:
    """Convert with skl2onnx, in FP64 if that is supported and answers alike, otherwise in FP32.
    Trees within other models are converted in FP32."""
    if reason := _unconvertible(estimator):
        raise BuildError(f"a {type(estimator).__name__} cannot be converted to ONNX: {reason}")
    narrow = [
        replace(each, datatype="FP32") if each.datatype == "FP64" else each for each in columns
    ]
    trees = _inner_trees(estimator)
    limits = OF_TREES if trees and own else USUAL
    points = points_of(estimator, len(columns))
    for model in [] if _has_steps(estimator) else trees:
        for feature, values in table_trees.read(model).thresholds().items():
            points[feature] += values.tolist()

    def attempt(chosen: list[Column]) -> Written:
        rows = sample(chosen, points)
        _check_answers(estimator, rows, chosen)
        model, classes = _converted(estimator, chosen, rows)
        written = Written(model, classes, chosen, limits, rows)
        _compare(estimator, written, own)
        return written

    if not trees:
        with suppress(BuildError):
            return attempt(columns)
    return attempt(narrow)


def _converted(
    estimator: Any, columns: Sequence[Column], cells: Sequence[Array]
) -> tuple[onnx.ModelProto, tuple[table_repair.Class, ...]]:
    try:
        model = _sklearn(estimator, columns)
    except Exception as err:  # the converters' errors have no common base class
        unknown = re.search(r"shape calculator for type '<class '[\w.]*\.(\w+)'>", str(err))
        reason = f"skl2onnx does not know {unknown[1]}" if unknown else brief(err)
        raise BuildError(
            f"a {type(estimator).__name__} cannot be converted to ONNX: {reason}; "
            f"{table_repair.INSTEAD}"
        ) from err
    classes = _finished(estimator, model, cells, columns)
    # skl2onnx calls all scores of classes probabilities
    if PROBABILITIES not in answers(estimator, cells, columns):
        table_repair.rename_output(model, "prob", "scores")
    return model, classes


def _finished(
    estimator: Any, model: onnx.ModelProto, cells: Sequence[Array], columns: Sequence[Column]
) -> tuple[table_repair.Class, ...]:
    """Give the model's outputs their types and shapes. Return the classes, or none if they are
    booleans or 0, 1, 2 …."""
    classes = table_repair.mend(model, feed(model, cells, columns))
    known = np.asarray(getattr(estimator, "classes_", ()))
    if known.dtype == bool and len(known) == len(BOOLEANS):
        table_repair.answer_booleans(model)
        return ()
    return tuple(classes or known.tolist())


def _named(inputs: Sequence[TensorSpec], columns: Sequence[Column]) -> list[Column]:
    """Return the user's columns, with the categories that the model knows of each."""
    if len(inputs) != len(columns):
        raise UsageError(f"{len(inputs)} times --input, but the model takes {len(columns)} columns")
    return [
        replace(each, name=spec.name, datatype=spec.datatype)
        for spec, each in zip(inputs, columns, strict=True)
    ]


def _check_answers(estimator: Any, cells: Sequence[Array], columns: Sequence[Column]) -> None:
    """Raise UsageError for a classifier of several labels."""
    several = isinstance(getattr(estimator, "classes_", None), list)
    if not several and hasattr(estimator, "classes_") and hasattr(estimator, "__sklearn_tags__"):
        try:
            several = np.ndim(answers(estimator, cells, columns)[PREDICTIONS]) > 1
        except Exception as err:
            raise BuildError(
                "the model itself does not answer rows like those it was trained on: "
                f"{brief(err)}; if the types of its columns are the reason, name each in "
                "its order: --input NAME:FP32:1, NAME:BYTES:1 for strings"
            ) from err
    if several:
        raise UsageError(
            f"a {type(estimator).__name__} with several labels at once cannot be built: train and "
            "build one classifier for each label (a MultiOutputClassifier has them in estimators_)"
        )


def _unconvertible(estimator: Any) -> str:
    """Return why skl2onnx cannot convert the model, or "" if no reason is known."""
    for step in _within(estimator):
        if type(step).__name__ == "FunctionTransformer" and step.func is not None:
            name = getattr(step.func, "__name__", step.func)
            return (
                f"skl2onnx does not convert FunctionTransformer({name}): train without it and "
                f"compute {name} yourself, or {table_repair.INSTEAD}"
            )
        if type(step).__name__ in ("TunedThresholdClassifierCV", "FixedThresholdClassifier"):
            return (
                f"skl2onnx ignores the threshold of a {type(step).__name__}: build its estimator_ "
                f"and compare the probability yourself, or {table_repair.INSTEAD}"
            )
        if type(step).__name__ == "KNNImputer":
            return (
                "skl2onnx writes a KNNImputer with operators (opset 18) that older Tritons do not "
                "run: train SimpleImputer"
            )
        indicator = getattr(step, "indicator_", None)
        if indicator is not None and len(indicator.features_):
            return (
                f"skl2onnx does not convert {type(step).__name__}(add_indicator=True): train "
                "without add_indicator"
            )
        if any(isinstance(value, str) for value in getattr(step, "statistics_", ())):
            return (
                "skl2onnx does not convert a SimpleImputer of texts: train "
                "OneHotEncoder(handle_unknown='ignore') on the missing cells themselves"
            )
    return ""


def _convertible(estimator: Any) -> Any:
    """Return a copy that skl2onnx converts with the same answers. A missing text is the category
    ""."""
    copied = deepcopy(estimator)
    for step in _within(copied):
        if type(step).__name__ in ("VotingClassifier", "VotingRegressor"):
            step.flatten_transform = False  # matters only for transform(), which is not served
        if type(step).__name__ == "KBinsDiscretizer" and step.encode == "onehot":
            step.encode = "onehot-dense"
        if hasattr(step, "statistics_"):
            # their dtype is object if a whole number fills the gaps
            step.statistics_ = step.statistics_.astype(float)
        for index, categories in enumerate(getattr(step, "categories_", ())):
            missing = [is_missing(value) for value in categories.tolist()]
            if categories.dtype.kind == "O" and any(missing):
                if "" in categories:
                    raise BuildError(
                        "a column has the categories missing and '', which are the same in CSV"
                    )
                step.categories_[index] = np.where(missing, "", categories)
    return copied


def _check_kind(estimator: Any) -> None:
    """Raise UsageError if it is not a model."""
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


def _library(estimator: Any) -> str:
    return type(estimator).__module__.partition(".")[0]


def _chosen(estimator: Any) -> Any:
    """If the model is a search over parameters, return its best model, which gives the search's
    answers. Drop a pipeline's steps that do nothing."""
    while hasattr(estimator, "best_estimator_"):
        estimator = estimator.best_estimator_
    if not hasattr(estimator, "steps"):
        return estimator
    active = [each for each in estimator.steps if each[1] not in (None, "passthrough")]
    pipeline = copy(estimator)
    if active:
        pipeline.steps = [(name, _chosen(step)) for name, step in active]
    return pipeline


def _last(estimator: Any) -> Any:
    """Return a pipeline's last step."""
    while hasattr(estimator, "steps"):
        estimator = estimator.steps[-1][1]
    return estimator


def _parts(estimator: Any) -> tuple[list[Any], Any]:
    """Return the steps, and the model of trees after them. HistGradientBoosting has a step of its
    own for categorical columns."""
    steps: list[Any] = []
    while hasattr(estimator, "steps"):
        steps += [step for _, step in estimator.steps[:-1]]
        estimator = estimator.steps[-1][1]
    if getattr(estimator, "_preprocessor", None) is not None:
        steps.append(estimator._preprocessor)
        estimator = copy(estimator)
        estimator._preprocessor = None
        vars(estimator).pop("feature_names_in_", None)
    return steps, estimator


def _within(estimator: Any) -> list[Any]:
    """Return the model and all models within it, without those within models of trees."""
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


def _inner_trees(estimator: Any) -> list[Any]:
    """Return the trained models of trees within the last step of a model."""
    within = _within(_last(estimator))
    return [each for each in within if table_trees.kind_of(each) and _is_trained(each)]


def _is_trained(model: Any) -> bool:
    return bool(getattr(model, "n_features_in_", 0))


def _best(estimator: Any) -> Any:
    """Keep the trees up to the best one after early stopping, as predict in XGBoost's scikit-learn
    interface does. A Booster's own predict uses all trees."""
    last = _last(estimator)
    if hasattr(last, "get_booster"):
        last._Booster = best_trees(last.get_booster())
    return estimator


def _sklearn(estimator: Any, columns: Sequence[Column]) -> onnx.ModelProto:
    from skl2onnx import to_onnx
    from skl2onnx.common import data_types

    _register_boosters()
    _register_scorers()
    types = {
        "FP32": data_types.FloatTensorType,
        "FP64": data_types.DoubleTensorType,
        "INT64": data_types.Int64TensorType,
        "BYTES": data_types.StringTensorType,
        "BOOL": data_types.BooleanTensorType,
    }
    initial = [(MATRIX, types[columns[0].datatype]([None, len(columns)]))]
    if are_apart(columns, estimator):
        singles = [types[column.datatype]([None, 1]) for column in columns]
        initial = list(zip(_input_names(columns), singles, strict=True))
    return to_onnx(_convertible(estimator), initial_types=initial, target_opset=OPSETS)


def _register_boosters() -> None:
    """Register onnxmltools' converters with skl2onnx, so that it can convert boosters in
    pipelines."""
    import lightgbm
    import xgboost
    from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm
    from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost
    from skl2onnx import update_registered_converter
    from skl2onnx.common import shape_calculator as shapes

    classifier, regressor = (
        shapes.calculate_linear_classifier_output_shapes,
        shapes.calculate_linear_regressor_output_shapes,
    )
    options = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    for model, shape, converter, choices in (
        (xgboost.XGBClassifier, classifier, convert_xgboost, options),
        (xgboost.XGBRegressor, regressor, convert_xgboost, None),
        (lightgbm.LGBMClassifier, classifier, convert_lightgbm, options),
        (lightgbm.LGBMRegressor, regressor, convert_lightgbm, {"split": None}),
    ):
        library = model.__module__.partition(".")[0]
        alias = f"{'XGBoost' if library == 'xgboost' else 'LightGbm'}{model.__name__}"
        update_registered_converter(model, alias, shape, converter, options=choices, overwrite=True)


def _register_scorers() -> None:
    """Add the option zipmap, which skl2onnx sets in every pipeline, to the one converter that lacks
    it."""
    from skl2onnx.common._registration import get_converter

    get_converter("SklearnLinearSVC")._options["zipmap"] = [True, False, "columns"]


def columns_of(estimator: Any) -> list[Column]:
    """Return the columns with their names in training and the categories that the encoders know."""
    return _known(estimator, [Column(name) for name in _names(estimator)])


def _known(step: Any, columns: list[Column]) -> list[Column]:
    """Return the columns with what the first encoder in the step knows of them. It is the first
    step, or comes after imputers only."""
    if hasattr(step, "steps"):
        for _, each in step.steps:
            columns = _known(each, columns)
            if not _keeps(each):
                break
        return columns
    if hasattr(step, "transformers_"):
        merged = list(columns)
        for name, transformer, _ in step.transformers_:
            indices = step._transformer_to_input_indices[name]
            known = _known(transformer, [columns[index] for index in indices])
            for index, column in zip(indices, known, strict=True):
                merged[index] = _merged(merged[index], column)
        return merged
    if hasattr(step, "transformer_list"):
        merged = columns
        for _, each in step.transformer_list:
            merged = list(map(_merged, merged, _known(each, columns)))
        return merged
    if getattr(step, "_preprocessor", None) is not None:
        return _known(step._preprocessor, columns)
    if hasattr(step, "statistics_") and is_missing(step.missing_values):
        return [replace(each, filled=True, missing=step.missing_values) for each in columns]
    if hasattr(step, "categories_"):
        closed = getattr(step, "handle_unknown", "") == "error"
        pairs = zip(columns, step.categories_, strict=True)
        return [_with_categories(each, values, closed) for each, values in pairs]
    return columns


def _merged(first: Column, second: Column) -> Column:
    """Return a column with what two steps know of it. A category that one of them refuses is
    refused."""
    if first.closed and second.closed:
        values = [each for each in first.values if is_missing(each) or each in second.values]
        return replace(first, values=tuple(values), filled=first.filled and second.filled)
    return max(second, first, key=lambda each: (each.closed, bool(each.values), each.filled))


def _keeps(step: Any) -> bool:
    """Return whether a step leaves the cells that are not missing as they are."""
    return step in (None, "passthrough") or hasattr(step, "statistics_")


def _with_categories(column: Column, categories: Array, closed: bool) -> Column:
    kind, values = categories.dtype.kind, tuple(categories.tolist())
    datatype = "BYTES" if kind in "OSU" else "INT64" if kind in "iu" else column.datatype
    missing = next((value for value in values if is_missing(value)), column.missing)
    dtype = categories.dtype if kind in "iu" else None
    return replace(
        column, datatype=datatype, values=values, closed=closed, missing=missing, dtype=dtype
    )


def _names(estimator: Any) -> list[str]:
    """Return a name for each column: "" if the columns have no names."""
    booster = booster_of(estimator)
    if type(booster).__module__.startswith("xgboost"):
        return list(booster.feature_names or [""] * booster.num_features())
    # LightGBM's, which calls columns without names Column_0 …
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


def are_apart(columns: Sequence[Column], estimator: Any) -> bool:
    """Return whether each column is its own input: types differ, or a step selects columns by
    name."""
    first = _first(estimator)
    return len({column.datatype for column in columns}) > 1 or (
        hasattr(first, "transformers_") and all(column.name for column in columns)
    )


def _first(estimator: Any) -> Any:
    """Return the first step of a pipeline."""
    return estimator.steps[0][1] if hasattr(estimator, "steps") else estimator


def best_trees(booster: Any) -> Any:
    """Return XGBoost's Booster up to its best round; the whole Booster if it did not stop early."""
    best = booster.attr("best_iteration")
    return booster[: int(best) + 1] if best else booster


def booster_of(estimator: Any) -> Any:
    """Return XGBoost's or LightGBM's inner Booster, or any other estimator itself."""
    if hasattr(estimator, "get_booster"):
        return estimator.get_booster()
    return getattr(estimator, "booster_", estimator)
