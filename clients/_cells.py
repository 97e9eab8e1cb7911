"""Converts the cells of a table's rows, from JSON or CSV, to arrays of numbers, strings or
booleans."""

import math
from collections.abc import Collection, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from clients.base import Array
from serving.codecs import describe
from serving.errors import DecodingError

Row = Sequence[Any]
FLOATS: dict[str, Any] = {"FP16": np.float16, "FP32": np.float32, "FP64": np.float64}
INTEGERS: dict[str, Any] = {
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
}
DTYPES: dict[str, Any] = {**FLOATS, **INTEGERS, "BOOL": np.bool_, "BYTES": np.object_}
WORDS = {"true": True, "1": True, "false": False, "0": False}


def array_of(
    rows: Sequence[Row], datatype: str, missing: Sequence[bool], names: Sequence[str]
) -> Array:
    """Return rows of equal length as an array [rows, cells] of `datatype`. `missing` says for each
    column whether its cells may be empty, which has no effect on integers and booleans. `names` are
    the columns' names for error messages. Raise a DecodingError with the column's name and the
    row's number if a cell is invalid."""
    if datatype in FLOATS:
        floats = _floats(rows, FLOATS[datatype], missing)
        if floats is not None:
            return floats
    shape = (len(rows), len(rows[0]))
    array = np.empty(shape, DTYPES[datatype])
    for number, row in enumerate(rows):
        for index, cell in enumerate(row):
            try:
                array[number, index] = _parsed(cell, datatype, missing[index])
            except ValueError as err:
                raise DecodingError(str(err), field=names[index], instance=number) from err
    return array


def _floats(rows: Sequence[Row], dtype: Any, missing: Sequence[bool]) -> Array | None:
    """Return all cells as one array, which is faster than reading them one by one. Return None if
    one of them is invalid, or has a form that only `_number` reads, such as the string "true"."""
    texts = (cell for cell in chain.from_iterable(rows) if isinstance(cell, str))
    if any("_" in text for text in texts):
        return None  # Python and NumPy read 4_1 as 41
    try:
        with np.errstate(over="ignore"):
            array = np.array(rows, np.float64).astype(dtype)
    except (ValueError, TypeError, OverflowError):
        return None
    if array.ndim != 2:  # the cells are lists
        return None
    is_missing = np.isnan(array) & np.array(missing, bool)
    is_valid = np.isfinite(array) | is_missing
    return array if is_valid.all() else None


def categories_of(file: Path, datatypes: Sequence[str]) -> list[Collection[Any] | None]:
    """Return for each column its known categories, converted as `array_of` converts cells, or None
    if the column accepts any value. The build writes `file` if an encoder rejects unknown
    categories."""
    if not file.exists():
        return [None] * len(datatypes)
    categories: list[Collection[Any] | None] = []
    for values, datatype in zip(orjson.loads(file.read_bytes()), datatypes, strict=True):
        if values is None:
            categories.append(None)
            continue
        rows = [[value] for value in values]
        array = array_of(rows, datatype, [True], [file.name])
        categories.append(frozenset(array[:, 0].tolist()))
    return categories


def check_known(
    array: Array, known: Sequence[Collection[Any] | None], names: Sequence[str]
) -> None:
    """Raise DecodingError, as array_of does, for a cell that is not one of its column's `known`
    categories. NaN is an empty cell, which array_of has already checked."""
    for index, categories in enumerate(known):
        if categories is None:
            continue
        for number, cell in enumerate(array[:, index].tolist()):
            is_nan = cell != cell
            if is_nan or cell in categories:
                continue
            value = cell.decode() if isinstance(cell, bytes) else cell
            reason = (
                f"{describe(value)} is not a category that the model was trained with, and its "
                "encoder refuses others"
            )
            raise DecodingError(reason, field=names[index], instance=number)


def is_number(text: str) -> bool:
    """Return whether the text is a number. 4_1 is not, although Python's float accepts it."""
    try:
        float(text)
    except ValueError:
        return False
    return "_" not in text


def is_empty(cell: Any) -> bool:
    """Return whether the cell is null or a blank text."""
    return cell is None or (isinstance(cell, str) and not cell.strip())


def _parsed(cell: Any, datatype: str, missing: bool) -> Any:
    """Return the cell as a value of `datatype`. Raise a ValueError that says what was expected."""
    if datatype in FLOATS:
        return _float(cell, datatype, missing)
    if datatype in INTEGERS:
        return _integer(cell, datatype)
    if datatype == "BOOL":
        return _boolean(cell)
    return _text(cell, missing)


def _float(cell: Any, datatype: str, missing: bool) -> float:
    """Return the cell as a number that `datatype` can hold, or as NaN if it is empty and may be
    `missing`. Raise ValueError otherwise."""
    number = _number(cell)
    if math.isnan(number) and not missing:
        raise ValueError("it is empty, and the model does not take missing values there")
    with np.errstate(over="ignore"):
        # a number slightly above the type's maximum is rounded to it, and is accepted
        if np.isinf(FLOATS[datatype](number)):
            raise ValueError(f"{describe(cell)} is beyond {datatype}")
    return number


def _number(cell: Any) -> float:
    """Return the cell as a number. An empty cell is NaN. True and False are 1 and 0, because pandas
    writes booleans to CSV as these words."""
    if is_empty(cell):
        return math.nan
    is_text = isinstance(cell, str)
    if is_text:
        word = cell.strip().lower()
        if word in ("true", "false"):
            return float(WORDS[word])
    if isinstance(cell, bool | int | float) or (is_text and is_number(cell)):
        try:
            return float(cell)
        except OverflowError:
            return math.inf
    raise ValueError(f"expected a number, got {describe(cell)}")


def _integer(cell: Any, datatype: str) -> int:
    """Return the cell as an integer. Digits are not read as a float, because a float does not hold
    all integers above 2**53 exactly. 3.0 is read as 3."""
    may_be_digits = isinstance(cell, int) or (isinstance(cell, str) and "_" not in cell)
    try:
        value = int(cell) if may_be_digits else _number(cell)
    except ValueError:
        value = _number(cell)
    limits = np.iinfo(INTEGERS[datatype])
    is_whole = value % 1 == 0  # NaN and infinity are not
    if not is_whole or not limits.min <= value <= limits.max:
        raise ValueError(f"expected a whole number of {datatype}, got {describe(cell)}")
    return int(value)


def _boolean(cell: Any) -> bool:
    value = None
    if isinstance(cell, bool | int | float | str):
        value = WORDS.get(str(cell).strip().lower())
    if value is None:
        raise ValueError(f"expected true or false, got {describe(cell)}")
    return value


def _text(cell: Any, missing: bool) -> bytes:
    if cell is None and missing:
        return b""
    if not isinstance(cell, str):
        raise ValueError(f"expected a string, got {describe(cell)}")
    return cell.encode()
