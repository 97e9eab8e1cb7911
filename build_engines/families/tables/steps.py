"""Converts the preprocessing steps in STEPS to ONNX nodes that compute in FP64. Their results equal
those of scikit-learn's transform to the last bit.

A step takes columns and returns columns. Steps that only select columns add no node. skl2onnx
converts all other steps.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
from onnx import TensorProto

from build_engines.errors import BuildError
from build_engines.families.tables.by_skl2onnx import TableGraph, insert
from build_engines.families.tables.columns import IDLE, Array, is_missing, kept_positions
from build_engines.families.tables.repair import INSTEAD
from build_engines.onnx_writer import ML, Graph

INT64_MAX = np.iinfo(np.int64).max


@dataclass(frozen=True)
class TensorColumn:
    """The column `index` of a tensor that has `width` columns. `fill` replaces a missing string. In
    a sparse Table, `stored` is the column as it was when it entered the sparse matrix, which stored
    only the cells that were not 0. None means that the column has not changed since then."""

    tensor: str
    index: int = 0
    width: int = 1
    datatype: str = "FP64"
    fill: Any = None
    stored: "TensorColumn | None" = None


@dataclass(frozen=True)
class Table:
    """The columns that a step returns. `sparse` means that scikit-learn holds them in a sparse
    matrix. Some steps then round differently, and XGBoost treats a cell that is not stored as
    missing."""

    columns: Sequence[TensorColumn]
    sparse: bool = False


def _source(column: TensorColumn) -> tuple[str, str, int]:
    """Return the column's tensor, with its datatype and width."""
    return column.tensor, column.datatype, column.width


def matrix(graph: Graph, columns: Sequence[TensorColumn], integers_to_fp32: bool = False) -> str:
    """Return the columns as one FP64 tensor. With `integers_to_fp32`, integers are rounded to FP32
    directly, because rounding them to FP64 first would change some of those above 2^53. Raise
    BuildError for a column of strings."""
    parts: list[str] = []
    for (tensor, datatype, width), neighbors in groupby(columns, _source):
        indices = [column.index for column in neighbors]
        if datatype == "BYTES":
            raise BuildError("a column of texts reaches the model without an encoder")
        if datatype == "INT64" and integers_to_fp32:
            tensor = graph.cast(tensor, TensorProto.FLOAT)
        if datatype != "FP64":
            tensor = graph.cast(tensor, TensorProto.DOUBLE)
        if indices != list(range(width)):
            tensor = graph.add("Gather", tensor, indices, axis=1)
        parts.append(tensor)
    if len(parts) == 1:
        return parts[0]
    return graph.add("Concat", *parts, axis=1)


def _columns_of(tensor: str, count: int) -> list[TensorColumn]:
    return [TensorColumn(tensor, index, count) for index in range(count)]


def _changed_columns(table: Table, tensor: str) -> list[TensorColumn]:
    """Return the columns of `tensor`, each of which a step computed from the column of `table` with
    the same index. Cells that a sparse matrix stores remain stored, even if they become 0."""
    pairs = zip(_columns_of(tensor, len(table.columns)), table.columns, strict=True)
    return [replace(new, stored=old.stored or old) for new, old in pairs]


def nan_if_absent(graph: Graph, values: str, columns: Sequence[TensorColumn]) -> str:
    """Return the values of a sparse matrix's columns, with NaN for cells that the matrix does not
    store."""
    stored = matrix(graph, [column.stored or column for column in columns])
    is_absent = graph.add("Equal", stored, 0.0)
    return graph.add("Where", is_absent, np.nan, values)


def _joined(parts: Sequence[Table], sparse: bool) -> Table:
    """Return the columns of several tables as one table. If it is sparse, zeros are not stored in
    the columns of tables that were not sparse."""
    columns: list[TensorColumn] = []
    for part in parts:
        if part.sparse:
            columns += part.columns
        else:
            columns += [replace(column, stored=None) for column in part.columns]
    return Table(columns, sparse)


def apply_step(graph: TableGraph, step: Any, table: Table) -> Table:
    """Return the columns that the fitted step computes from `table`. Raise BuildError if the step
    cannot be converted."""
    if step in IDLE:
        return table
    if hasattr(step, "get_support"):  # the step only selects columns
        selected = step.get_support(indices=True)
        return replace(table, columns=[table.columns[index] for index in selected])
    convert = STEPS.get(type(step).__name__, _by_skl2onnx)
    return convert(graph, step, table)


def _by_skl2onnx(graph: TableGraph, step: Any, table: Table) -> Table:
    """Convert a step with skl2onnx. The results may differ from the step's own in the last bits."""
    width = len(table.columns)
    outputs = insert(graph, step, matrix(graph, table.columns), width)
    if len(outputs) > 1:
        raise BuildError(
            f"skl2onnx does not convert what a {type(step).__name__} gives to the next step"
        )
    (tensor,) = outputs.values()
    # the step's own result shows how many columns it has, and whether it is sparse
    result = step.transform(np.ones((1, width)))
    columns = _columns_of(graph.cast(tensor, TensorProto.DOUBLE), result.shape[1])
    return Table(columns, hasattr(result, "toarray"))


def _pipeline(graph: TableGraph, step: Any, table: Table) -> Table:
    for _, each in step.steps:
        table = apply_step(graph, each, table)
    return table


def _column_transformer(graph: TableGraph, step: Any, table: Table) -> Table:
    parts: list[Table] = []
    for name, transformer, _ in step.transformers_:
        if isinstance(transformer, str) and transformer == "drop":
            continue
        chosen = [table.columns[index] for index in step._transformer_to_input_indices[name]]
        if chosen:
            result = apply_step(graph, transformer, Table(chosen, table.sparse))
            parts.append(_weighted(graph, result, step.transformer_weights, name))
    return _joined(parts, step.sparse_output_)


def _feature_union(graph: TableGraph, step: Any, table: Table) -> Table:
    parts: list[Table] = []
    for name, transformer in step.transformer_list:
        if transformer != "drop":
            result = apply_step(graph, transformer, table)
            parts.append(_weighted(graph, result, step.transformer_weights, name))
    return _joined(parts, any(part.sparse for part in parts))


def _weighted(
    graph: TableGraph, table: Table, weights: Mapping[str, float] | None, name: str
) -> Table:
    """Return the columns multiplied by the weight of the transformer `name`, if it has one."""
    if not weights or name not in weights:
        return table
    values = graph.add("Mul", matrix(graph, table.columns), float(weights[name]))
    return replace(table, columns=_changed_columns(table, values))


def _function_transformer(_: TableGraph, step: Any, table: Table) -> Table:
    """Return the table if `func` is None or check_array, which change nothing. Otherwise, raise
    BuildError."""
    function = getattr(step.func, "func", step.func)  # the function inside a functools.partial
    if step.func is None or getattr(function, "__name__", "") == "check_array":
        return table
    name = getattr(function, "__name__", function)
    raise BuildError(
        f"FunctionTransformer({name}) is not converted: train without it and compute {name} "
        f"yourself, or {INSTEAD}"
    )


def _scaled(graph: Graph, table: Table, center: Any, scale: Any, clip: Any = None) -> Table:
    """Return (column - center) / scale, clipped; None leaves out an operation. As scikit-learn
    does, multiply the columns of a sparse matrix by 1 / scale instead, which rounds differently."""
    values = matrix(graph, table.columns)
    if center is not None:
        values = graph.add("Sub", values, np.float64(center))
    if scale is not None and table.sparse:
        values = graph.add("Mul", values, 1.0 / np.float64(scale))
    elif scale is not None:
        values = graph.add("Div", values, np.float64(scale))
    return _clipped(graph, values, clip, table)


def _clipped(graph: Graph, values: str, clip: Any, table: Table) -> Table:
    """Return the table with these `values` in its columns, clipped unless `clip` is None."""
    if clip is not None:
        values = graph.add("Clip", values, *map(np.float64, clip))
    return replace(table, columns=_changed_columns(table, values))


def _standard(graph: Graph, step: Any, table: Table) -> Table:
    center = step.mean_ if step.with_mean else None
    return _scaled(graph, table, center, step.scale_)


def _robust(graph: Graph, step: Any, table: Table) -> Table:
    return _scaled(graph, table, step.center_, step.scale_)


def _max_abs(graph: Graph, step: Any, table: Table) -> Table:
    clip = (-1, 1) if step.clip else None
    return _scaled(graph, table, None, step.scale_, clip)


def _min_max(graph: Graph, step: Any, table: Table) -> Table:
    values = matrix(graph, table.columns)
    scaled = graph.add("Mul", values, np.float64(step.scale_))
    moved = graph.add("Add", scaled, np.float64(step.min_))
    clip = step.feature_range if step.clip else None
    return _clipped(graph, moved, clip, table)


def _imputed(graph: Graph, step: Any, table: Table) -> Table:
    """Return the columns with their missing cells filled, and the flags that the imputer adds. In
    columns of strings, the fill is only recorded, and the encoder after the imputer treats an empty
    string as the fill. Raise BuildError if an imputer of strings does more than that."""
    kept = kept_positions(step)
    if any(column.datatype == "BYTES" for column in table.columns):
        if not is_missing(step.missing_values) or step.add_indicator:
            raise BuildError("a SimpleImputer of texts replaces missing cells only")
        texts = [_filled(table.columns[index], step.statistics_[index]) for index in kept]
        return replace(table, columns=texts)
    values = matrix(graph, table.columns)
    missing = _mask(graph, values, step.missing_values)
    filled = graph.add("Where", missing, step.statistics_.astype(np.float64), values)
    every = _changed_columns(table, filled)
    columns = [every[index] for index in kept]
    if step.add_indicator:
        flags = _columns_of(graph.cast(missing, TensorProto.DOUBLE), len(table.columns))
        columns += [flags[index] for index in step.indicator_.features_]
    return replace(table, columns=columns)


def _filled(column: TensorColumn, value: Any) -> TensorColumn:
    """Return the column with `value` as its fill, unless an earlier imputer has set one."""
    return column if column.fill is not None else replace(column, fill=value)


def _mask(graph: Graph, values: str, value: Any) -> str:
    """Return a mask of the FP64 values that equal `value`, or are NaN if `value` is."""
    if is_missing(value):
        return graph.add("IsNaN", values)
    return graph.add("Equal", values, np.float64(value))


def _encoded(graph: Graph, step: Any, table: Table) -> Table:
    """Return the columns that the encoder makes from each column. Their values are the encoder's
    own results for each category."""
    columns: list[TensorColumn] = []
    # only a OneHotEncoder has this attribute; other encoders make the same number of columns from
    # each column
    widths = getattr(step, "_n_features_outs", None)
    start = 0
    for index, column in enumerate(table.columns):
        results = _results_by_code(step, index)
        width = widths[index] if widths else results.shape[1] // len(table.columns)
        end = start + width
        own = np.ascontiguousarray(results[:, start:end], np.float64)
        codes = _codes(graph, column, step.categories_[index])
        columns += _columns_of(graph.add("Gather", own, codes), width)
        start = end
    return Table(columns, getattr(step, "sparse_output", False))


def _results_by_code(step: Any, index: int) -> Array:
    """Return the encoder's results for one row per category of the column at `index`. If the
    encoder accepts unknown categories, the last row is the result for one of those. In other
    columns, all rows have the first category."""
    import pandas as pd

    values = step.categories_[index]
    # a TargetEncoder does not have this attribute, and accepts unknown categories
    if getattr(step, "handle_unknown", "value") != "error":
        values = _with_other(values)
    columns = [np.repeat(categories[:1], len(values)) for categories in step.categories_]
    columns[index] = values
    names = getattr(step, "feature_names_in_", range(len(columns)))
    # a data frame keeps the type of each column; a single array would round large integers
    series = [pd.Series(column, dtype=column.dtype) for column in columns]
    frame = pd.DataFrame(dict(zip(names, series, strict=True)))
    results = step.transform(frame)
    return np.asarray(results.toarray() if hasattr(results, "toarray") else results)


def _with_other(categories: Array) -> Array:
    """Return the categories, followed by a value that is not one of them."""
    known = [each for each in categories.tolist() if not is_missing(each)]
    if any(isinstance(each, str) for each in known):
        longer_than_all = "".join(known) + "?"
        return np.array([*categories, longer_than_all], object)
    # of n + 1 numbers, at least one is not among n categories; all of them are exact in FP64
    numbers = set(range(len(known) + 1))
    other = min(numbers.difference(known))
    dtype = np.result_type(categories.dtype, np.min_scalar_type(other))
    return np.array([*categories.tolist(), other], dtype)


def _codes(graph: Graph, column: TensorColumn, categories: Array) -> str:
    """Return the index [rows] of each cell among the categories, or len(categories) for a cell that
    is not one of them. Raise BuildError for categories that are not supported."""
    values = categories.tolist()
    if column.datatype == "BYTES":
        return _codes_of_texts(graph, column, values)
    cells = graph.add("Gather", column.tensor, [column.index], axis=1)
    if column.datatype == "INT64" and categories.dtype.kind in "iu":
        if max(values) > INT64_MAX:
            raise BuildError(
                f"a column has the category {max(values)}, and INT64 ends at {INT64_MAX}"
            )
        categories = categories.astype(np.int64)
    else:
        if column.datatype != "FP64":
            cells = graph.cast(cells, TensorProto.DOUBLE)
        categories = categories.astype(np.float64)
    known = [value for value in values if not is_missing(value)]
    is_category = graph.add("Equal", cells, categories[: len(known)])
    if len(known) < len(values):  # NaN is the last category
        is_nan = graph.add("IsNaN", cells)
        is_category = graph.add("Concat", is_category, is_nan, axis=1)
    # append a column of ones, which ArgMax finds for a cell that is not one of the categories
    numbers = graph.cast(is_category, TensorProto.FLOAT)
    with_ones = graph.add("Pad", numbers, [0, 0, 0, 1], np.float32(1))
    return graph.add("ArgMax", with_ones, axis=1, keepdims=0)


def _codes_of_texts(graph: Graph, column: TensorColumn, categories: Sequence[Any]) -> str:
    """Return what `_codes` returns, for a column of strings. A missing string is ""."""
    texts = ["" if is_missing(value) else value for value in categories]
    if not all(isinstance(text, str) for text in texts):
        raise BuildError("a column has categories that are neither texts nor numbers alone")
    if len(set(texts)) < len(texts):
        raise BuildError("a column has the categories missing and '', which are the same in CSV")
    codes = {text: index for index, text in enumerate(texts)}
    if column.fill is not None:
        if "" in codes and column.fill != "":
            raise BuildError(
                "a column has a category None or '', which its imputer does not fill, but an "
                "empty cell of a CSV is filled: train with NaN instead"
            )
        codes[""] = codes.get(column.fill, len(texts))
    cells = graph.add("Gather", column.tensor, [column.index], axis=1)
    indices = graph.add(
        "LabelEncoder",
        cells,
        domain=ML,
        keys_strings=list(codes),
        values_int64s=list(codes.values()),
        default_int64=len(texts),
    )
    return graph.add("Squeeze", indices, [1])


STEPS: Mapping[str, Callable[[TableGraph, Any, Table], Table]] = {
    "StandardScaler": _standard,
    "MinMaxScaler": _min_max,
    "MaxAbsScaler": _max_abs,
    "RobustScaler": _robust,
    "SimpleImputer": _imputed,
    "OneHotEncoder": _encoded,
    "OrdinalEncoder": _encoded,
    "TargetEncoder": _encoded,
    "ColumnTransformer": _column_transformer,
    "Pipeline": _pipeline,
    "FeatureUnion": _feature_union,
    "FunctionTransformer": _function_transformer,
}
