"""Collects what a trained model knows about its columns: their names, categories and missing cells,
and values that are likely in the training data."""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from build_engines.errors import UsageError
from build_engines.families.tables.trees import booster_of, kind_of
from clients.base import TensorSpec

Array = NDArray[Any]
LEARNED = (  # attributes of estimators: one value for each column, or rows of such values
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
IDLE = (None, "passthrough")  # steps that do nothing
# the attributes of scalers that hold the centre and the scale of each column
CENTERS = (("mean_", "scale_"), ("center_", "scale_"))


@dataclass(frozen=True)
class Column:
    """Describes a column of the model's input."""

    name: str  # "" if columns have no names
    datatype: str = "FP64"
    values: tuple[Any, ...] = ()  # the categories that the model knows, if any
    closed: bool = False  # whether an encoder rejects all other values
    filled: bool = False  # whether the encoder knows the value that an imputer before it fills in
    missing: Any = np.nan  # the value that means a missing cell to the model
    # the NumPy type of categories that are integers; sample cells get the same type, because
    # libraries compare integers of two different 64-bit types in FP64
    dtype: Any = None
    points: tuple[float, ...] = ()  # likely values of the column, or thresholds of trees

    @property
    def categories(self) -> list[Any] | None:
        """Return the only values that the column may have, with None for a missing cell. Return
        None if it may have other values too."""
        if not self.closed:
            return None
        values = [None if is_missing(value) else value for value in self.values]
        return [*values, None] if self.filled and self.datatype == "BYTES" else values

    def with_points(self, points: Array) -> "Column":
        """Return a copy of the column with these `points` added."""
        return replace(self, points=(*self.points, *points.tolist()))


# the index, in `columns_of`, of the Column that stands for the flags that imputers add
FLAG = -1


def is_missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def columns_of(estimator: Any) -> list[Column]:
    """Return the model's columns. Their names are those in training, and their other fields are
    collected from the steps that read them."""
    columns = [Column(name) for name in names_of(estimator)]
    count = len(columns)
    columns.append(Column(""))  # at index FLAG
    for step, indices, fills in _readers(estimator, range(count)):
        for index, points in zip(indices, _learned(step, len(indices)), strict=True):
            columns[index] = columns[index].with_points(points)
        if _fills_missing(step):
            for index in indices:
                columns[index] = replace(columns[index], missing=step.missing_values)
        closed = getattr(step, "handle_unknown", "") == "error"
        for position, categories in enumerate(getattr(step, "categories_", ())):
            index = indices[position]
            is_filled = bool(fills) and fills[position] in categories.tolist()
            columns[index] = _with_categories(columns[index], categories, closed, is_filled)
    return columns[:count]


def _readers(
    step: Any, indices: Sequence[int], fills: Sequence[Any] = ()
) -> Iterator[tuple[Any, Sequence[int], Sequence[Any]]]:
    """Yield each step that reads columns of the model's input as they are, or after an imputer has
    filled missing cells. With each step, yield for each of its columns the index among the model's
    columns, and the value that the imputer fills in (() without an imputer). A flag that an imputer
    adds has the index FLAG. `indices` and `fills` describe the columns that `step` reads in the
    same way."""
    step = unwrapped(step)
    if hasattr(step, "steps"):
        for _, each in step.steps:
            yield from _readers(each, indices, fills)
            if hasattr(each, "statistics_"):
                indices, fills = _after_imputer(each, indices, fills)
            elif each not in IDLE:
                break  # the steps after it read its results, not the columns
    elif hasattr(step, "transformers_"):
        for name, each, _ in step.transformers_:
            positions = step._transformer_to_input_indices[name]
            chosen = [indices[position] for position in positions]
            own_fills = [fills[position] for position in positions] if fills else ()
            yield from _readers(each, chosen, own_fills)
    elif hasattr(step, "transformer_list"):
        for _, each in step.transformer_list:
            yield from _readers(each, indices, fills)
    elif getattr(step, "_preprocessor", None) is not None:
        # HistGradientBoosting's own step for categorical columns
        yield from _readers(step._preprocessor, indices, fills)
    else:
        yield step, indices, fills


def _after_imputer(
    imputer: Any, indices: Sequence[int], fills: Sequence[Any]
) -> tuple[Sequence[int], Sequence[Any]]:
    """Return the indices and fills of the columns that the imputer passes on, including the flags
    that it adds. `indices` and `fills` describe the columns that it reads (see _readers)."""
    kept = kept_positions(imputer)
    indices = [indices[position] for position in kept]
    if fills:  # an imputer before this one has filled the cells
        fills = [fills[position] for position in kept]
    elif _fills_missing(imputer):
        fills = [imputer.statistics_[position] for position in kept]
    if imputer.add_indicator:
        flags = len(imputer.indicator_.features_)
        indices = [*indices, *[FLAG] * flags]
        fills = [*fills, *[None] * flags] if fills else ()
    return indices, fills


def _fills_missing(step: Any) -> bool:
    """Return whether the step is an imputer that fills cells of None or NaN."""
    return hasattr(step, "statistics_") and is_missing(step.missing_values)


def kept_positions(imputer: Any) -> list[int]:
    """Return which of its columns the imputer passes on, as positions among the columns that it
    reads. Unless it keeps empty features, it drops the columns that had no values in training."""
    return [
        position
        for position, value in enumerate(imputer.statistics_)
        if imputer.keep_empty_features or not is_missing(value)
    ]


def _with_categories(column: Column, categories: Array, closed: bool, is_filled: bool) -> Column:
    """Return the column with the `categories` of an encoder that reads it. `closed` means that the
    encoder rejects all other values. If several closed encoders read the column, it has only the
    categories that all of them accept. The categories of an encoder that is not closed are ignored
    if another one is closed."""
    if column.closed and not closed:
        return column
    values = tuple(categories.tolist())
    if column.closed:
        values = tuple(value for value in column.values if is_missing(value) or value in values)
        is_filled = is_filled and column.filled
    kind = categories.dtype.kind
    datatype = column.datatype
    if kind in "OSU":
        datatype = "BYTES"
    elif kind in "iu":
        datatype = "INT64"
    return replace(
        column,
        datatype=datatype,
        values=values,
        closed=closed,
        filled=is_filled,
        # the way in which the categories spell a missing cell: None or NaN
        missing=next(filter(is_missing, values), column.missing),
        dtype=categories.dtype if kind in "iu" else None,
    )


def names_of(estimator: Any) -> list[str]:
    """Return the name of each column, or "" for each column if they have no names. Raise UsageError
    if the model is not trained."""
    estimator = next(active_steps(estimator), estimator)  # the first step reads the columns
    booster = booster_of(estimator)
    if type(booster).__module__.startswith("xgboost"):
        return list(booster.feature_names or [""] * booster.num_features())
    # This is LightGBM's Booster. If columns have no names, it calls them Column_0, Column_1 ….
    if hasattr(booster, "num_feature"):
        names = list(booster.feature_name())
        are_numbers = all(re.fullmatch(r"Column_\d+", name) for name in names)
        return [""] * len(names) if are_numbers else names
    count = int(getattr(estimator, "n_features_in_", 0))
    if not count:
        raise UsageError(
            f"a {type(estimator).__name__} that is not trained, or not on rows, cannot be served"
        )
    return [str(name) for name in getattr(estimator, "feature_names_in_", [""] * count)]


def active_steps(model: Any) -> Iterator[Any]:
    """Yield the steps of a pipeline, and of the pipelines in it, that do something. A model that is
    not a pipeline is one step."""
    model = unwrapped(model)
    if hasattr(model, "steps"):
        for _, step in model.steps:
            yield from active_steps(step)
    # a FunctionTransformer whose `func` is None does nothing
    elif model not in IDLE and getattr(model, "func", model) is not None:
        yield model


def unwrapped(step: Any) -> Any:
    """Return the best model of a search over parameters, such as a GridSearchCV. Return any other
    step as it is."""
    while hasattr(step, "best_estimator_"):
        step = step.best_estimator_
    return step


def models_within(estimator: Any) -> list[Any]:
    """Return the model and all models inside it, except those inside tree models."""
    models: list[Any] = []
    pending, seen = [estimator], set()
    while pending:
        value = pending.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, list | tuple):
            pending += value
        elif isinstance(value, np.ndarray) and value.dtype == object:
            pending += value.ravel().tolist()
        # the models inside a CalibratedClassifierCV have calibrators, but not get_params
        elif hasattr(value, "get_params") or hasattr(value, "calibrators"):
            models.append(value)
            if not kind_of(value):
                pending += vars(value).values()
    return models


def _learned(model: Any, count: int) -> Array:
    """Return likely values of each of the model's `count` columns, [count, n]: the centre that a
    scaler has learned, minus and plus twice its scale, and the smallest and largest values of each
    attribute in LEARNED."""
    rows: list[Array] = []
    for center, scale in CENTERS:
        middle, size = getattr(model, center, None), getattr(model, scale, None)
        if middle is not None and np.shape(middle) == (count,):
            size = np.ones(count) if size is None else size
            rows += [middle - 2 * size, middle + 2 * size]
    for name in LEARNED:
        value = getattr(model, name, None)
        if not isinstance(value, np.ndarray) or value.dtype.kind not in "fiu":
            continue
        if value.shape[-1:] == (count,):
            stored = value.reshape(-1, count)
            rows += [stored.min(axis=0), stored.max(axis=0)]
    return np.array(rows, float).reshape(len(rows), count).T


def with_inputs(columns: Sequence[Column], inputs: Sequence[TensorSpec]) -> list[Column]:
    """Return the columns with the names and datatypes of the user's `inputs`. Raise UsageError if
    there are not as many inputs as columns."""
    if len(inputs) != len(columns):
        raise UsageError(f"{len(inputs)} times --input, but the model takes {len(columns)} columns")
    return [
        replace(column, name=spec.name, datatype=spec.datatype)
        for column, spec in zip(columns, inputs, strict=True)
    ]
