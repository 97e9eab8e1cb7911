"""Converts JSON values to tensors and tensors to JSON values. Checks all values and parameters from
JSON before they are sent to Triton."""

import io
import math
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any, Literal

import numpy as np
import orjson
import simdjson

from serving.budget import (
    AT_ONCE,
    MOST_DIMENSIONS,
    MOST_NAMED,
    MOST_STRINGS,
    Budget,
    check_count,
    check_time,
    in_time,
    portions,
    turn,
)
from serving.codecs import describe
from serving.errors import InvalidRequest
from serving.job import Job
from serving.named_value import INT64, quoted
from serving.request_memory import ESCAPED, WRITTEN, Reservation, reserve, strings_memory
from serving.sessions import SEQUENCE_PARAMETERS
from serving.triton.tensors import Array, Parameters, Tensor, numpy_dtype

TOO_DEEP = f"its data are nested more than {MOST_DIMENSIONS} deep"
# The types of JSON values that are allowed for a datatype, keyed by the kind of its NumPy dtype.
TYPES: dict[str, set[type]] = {"b": {bool}, "i": {int}, "u": {int}, "f": {int, float}, "O": {str}}


def flat_array(datatype: str, data: Any) -> Array:
    """Convert JSON values, nested or flat, to a flat array of the datatype. Raise InvalidRequest if
    a value does not fit it or is nested too deep, PayloadTooLarge or Overloaded for too many
    strings, and TooLate if the request has no time left."""
    dtype = numpy_dtype(datatype)
    if isinstance(data, simdjson.Array):
        copied = _copied(data, dtype)
        if copied is not None:
            return copied
        data = data.as_list()
    if not isinstance(data, list):
        data = [data]
    values, types = _flat(data)
    wrong_types = types - TYPES[dtype.kind]
    if wrong_types:
        value = next(value for value in values if type(value) in wrong_types)
        raise InvalidRequest(f"its data do not fit {datatype} ({describe(value)})")
    if datatype == "BYTES":
        check_count(len(values), MOST_STRINGS, "strings")
        reserve(strings_memory(len(values), sum(map(len, values))), "the strings of a tensor")
        return np.array([value.encode() for value in values], dtype=np.object_)
    numbers = _numbers(values, dtype)
    if numbers is None:
        raise InvalidRequest(out_of_range(datatype, dtype))
    return numbers


# The 8-byte type to which simdjson copies numbers before they are converted to a dtype, keyed by
# the kind of that dtype.
COPIES: dict[str, Literal["d", "i", "u"]] = {"f": "d", "i": "i", "u": "u"}


def _copied(data: simdjson.Array, dtype: np.dtype[Any]) -> Array | None:
    """Convert the numbers in a simdjson array, nested or flat, to a flat NumPy array. Return None
    if the dtype is not numeric, or if a value in the simdjson array does not fit the dtype."""
    if dtype.kind not in COPIES:
        return None
    try:
        copied = data.as_buffer(of_type=COPIES[dtype.kind])
        return fitted(np.frombuffer(copied, dtype=f"{dtype.kind}8"), dtype)
    except (TypeError, ValueError):
        return None


def fitted(numbers: Array, dtype: np.dtype[Any]) -> Array | None:
    """Convert an array to the dtype. Return None if one of its numbers does not fit. Infinity and
    NaN fit any float type."""
    try:
        with np.errstate(over="raise"):
            cast = numbers.astype(dtype, copy=False)
    except FloatingPointError:
        return None
    if dtype.kind not in "iu":  # floats may be rounded
        return cast
    is_same = cast is numbers or np.array_equal(cast, numbers)
    return cast if is_same else None


def _numbers(values: list[Any], dtype: np.dtype[Any]) -> Array | None:
    """Convert Python numbers to an array of the dtype. Return None if one of them does not fit."""
    limits = np.iinfo(dtype) if dtype.kind in "iu" else None
    numbers = np.empty(len(values), dtype)
    start = 0
    try:
        with np.errstate(over="raise"):
            for portion in portions(values):
                if limits and not limits.min <= min(portion) <= max(portion) <= limits.max:
                    return None
                numbers[start : start + len(portion)] = np.array(portion, dtype=dtype)
                start += len(portion)
            return numbers
    # NumPy raises OverflowError if Python cannot convert an integer to a float
    except (FloatingPointError, OverflowError):
        return None


def out_of_range(datatype: str, dtype: np.dtype[Any]) -> str:
    """Return the error message for numbers that do not fit their datatype."""
    limits = np.iinfo(dtype) if dtype.kind in "iu" else np.finfo(dtype)
    holds = f"it holds {limits.min} to {limits.max}"
    return f"its data do not fit {datatype} ({holds})"


def _flat(values: list[Any]) -> tuple[list[Any], set[type]]:
    """Flatten nested lists. Return the values that are not lists, and the types of these values.
    While all values are lists, each pass removes one level of nesting, which is fast. If only some
    of them are lists, they are flattened recursively. Raise InvalidRequest if the lists are nested
    more than MOST_DIMENSIONS deep."""
    for depth in range(MOST_DIMENSIONS):
        types = types_of(values)
        if list not in types:
            return values, types
        if types != {list}:
            leaves: list[Any] = []
            _add_leaves(values, MOST_DIMENSIONS - depth, leaves)
            return leaves, types_of(leaves)
        values = flattened(values)
    raise InvalidRequest(TOO_DEEP)


def types_of(values: list[Any]) -> set[type]:
    """Return the set of the values' types. Raise TooLate if the request has no time left."""
    types: set[type] = set()
    for portion in portions(values):
        types.update(map(type, portion))
    return types


def flattened(lists: list[list[Any]]) -> list[Any]:
    """Concatenate the lists. Raise TooLate if the request has no time left."""
    values: list[Any] = []
    for portion in portions(chain.from_iterable(lists)):
        values += portion
    return values


def _add_leaves(values: list[Any], depth: int, leaves: list[Any]) -> None:
    """Append all values that are not lists to `leaves`, including those inside nested lists. Raise
    InvalidRequest if the lists are nested more than `depth` deep."""
    if not depth:
        raise InvalidRequest(TOO_DEEP)
    for value in in_time(values):
        if type(value) is list:
            _add_leaves(value, depth - 1, leaves)
        else:
            leaves.append(value)


# The number of characters of the longest value of each datatype in JSON, including a comma.
WIDTHS = {
    "BOOL": 6,
    "INT8": 5,
    "UINT8": 4,
    "INT16": 7,
    "UINT16": 6,
    "INT32": 12,
    "UINT32": 11,
    "INT64": 21,
    "UINT64": 21,
    "FP16": 17,
    "BF16": 17,
    "FP32": 17,
    "FP64": 25,
}


def reserve_json(tensors: Sequence[Tensor], budget: Budget) -> Reservation:
    """Reserve the memory for writing the tensors as JSON. Raise PayloadTooLarge if the JSON would
    be longer than `budget` allows or take too much memory."""
    budget.check_output(sum(map(_json_length, tensors)))
    return reserve(sum(map(_json_memory, tensors)), "the JSON of the answer")


def _json_memory(tensor: Tensor) -> int:
    """Return how many bytes of memory writing a tensor as JSON takes."""
    if tensor.datatype == "BYTES":
        length = len(tensor.data)
        return strings_memory(math.prod(tensor.shape), length) + ESCAPED * length
    return WRITTEN * _json_length(tensor)


def _json_length(tensor: Tensor) -> int:
    """Estimate how many bytes a tensor's elements take in JSON. Numbers and booleans take at most
    this many. Strings may take more, because escapes are not counted."""
    if tensor.datatype in WIDTHS:
        return WIDTHS[tensor.datatype] * math.prod(tensor.shape)
    return len(tensor.data)


def json_values(tensor: Tensor) -> Any:
    """Return a tensor's elements in a form that orjson accepts: a flat array, or a flat list of
    strings. Raise PayloadTooLarge if there are too many strings."""
    if tensor.datatype != "BYTES":
        return tensor.array().reshape(-1)
    check_count(
        math.prod(tensor.shape),
        MOST_STRINGS,
        f"strings of output '{tensor.name}'",
        "ask for binary data",
    )
    strings = tensor.array().reshape(-1).tolist()
    return [string.decode("utf-8", "replace") for string in strings]


def write_items(text: io.BytesIO, values: Any) -> None:
    """Write `values`, a flat array or a list of strings, to `text` as JSON without brackets. Write
    in pieces, because orjson holds the GIL while it writes, for 0.3 s if it gets 12 million numbers
    at once. If there are many values, only one thread of a worker writes a piece at a time. Raise
    TooLate if the request has no time left."""
    for start in range(0, len(values), AT_ONCE):
        check_time()
        portion = values[start : start + AT_ONCE]
        with turn(len(values)):
            piece = orjson.dumps(portion, option=orjson.OPT_SERIALIZE_NUMPY)
        if start:
            text.write(b",")
        text.write(memoryview(piece)[1:-1])


def check_shape(shape: Sequence[int], length: int) -> tuple[int, ...]:
    """Check that a body of `length` bytes is large enough for a tensor of this shape, whose
    elements take at least one byte each. Return the shape as a tuple. Raise InvalidRequest."""
    # a dimension may be huge although the product is 0
    if max(shape, default=0) > length or math.prod(shape) > length:
        raise InvalidRequest(
            f"the body of {length} bytes cannot hold a tensor of shape {quoted(shape)}"
        )
    return tuple(shape)


# The request parameters that Triton itself defines, besides SEQUENCE_PARAMETERS: TRITON_NUMBERS
# maps numeric parameters to their maximum values (`timeout` is in microseconds, `priority` is a
# level), and TRITON_FLAG is a boolean. Triton reserves all names that begin with TRITON_PREFIX.
TRITON_NUMBERS = {"timeout": 10**15, "priority": 2**63 - 1}
TRITON_PREFIX = "triton_"
TRITON_FLAG = "triton_enable_empty_final_response"


def request_parameters(job: Job, parameters: Mapping[str, Any]) -> Parameters:
    """Check a request's parameters, and return the parameters to send to Triton. Add the parameters
    of the job's session. If the model has no sequences, leave out SEQUENCE_PARAMETERS. Raise
    InvalidRequest if a parameter is invalid, and PayloadTooLarge if there are too many."""
    check_count(len(parameters), MOST_NAMED, "parameters")
    sequencing = job.served.sequencing
    checked: dict[str, bool | int | float | str] = {}
    for name, value in parameters.items():
        if name not in SEQUENCE_PARAMETERS:
            _check_parameter(name, value)
            checked[name] = value
        elif sequencing:
            checked[name] = sequencing.parse_parameter(name, value)
    if job.session:
        checked |= job.session.parameters()
    return checked


def _check_parameter(name: str, value: object) -> None:
    """Raise InvalidRequest if Triton does not accept the parameter, or would receive a different
    value."""
    subject = f"parameter {quoted(name)}"
    if not isinstance(value, bool | int | float | str):
        raise InvalidRequest(
            f"{subject} must be a number, a string, true or false; got {describe(value)}"
        )
    if isinstance(value, int) and value not in INT64:
        raise InvalidRequest(f"{subject}: {quoted(value)} is not in the range of INT64")
    if isinstance(value, float) and not math.isfinite(value):
        raise InvalidRequest(f"{subject}: {value} is not a finite number")
    if "\0" in name or (isinstance(value, str) and "\0" in value):
        raise InvalidRequest(
            f"{subject} has a NUL character, where Triton would cut it; leave the character out"
        )
    most = TRITON_NUMBERS.get(name)
    if most is not None and not (type(value) is int and 0 <= value <= most):
        raise InvalidRequest(
            f"{subject} must be a whole number from 0 to {most}; got {quoted(value)}"
        )
    if name == TRITON_FLAG and not isinstance(value, bool):
        raise InvalidRequest(f"{subject} must be true or false; got {quoted(value)}")
    if name.startswith(TRITON_PREFIX) and name != TRITON_FLAG:
        raise InvalidRequest(
            f"{subject}: names that begin with '{TRITON_PREFIX}' are Triton's own, and it has only "
            f"'{TRITON_FLAG}'; choose another name"
        )
