"""Writes predictions and tensors as CSV or as an npy file, for callers whose header Accept asks for
one of these."""

import csv
import io
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import orjson

from serving.bodies.values import json_values, reserve_json, write_items
from serving.budget import Budget, in_time
from serving.errors import NotAcceptable
from serving.headers import CSV, NPY_TYPE
from serving.job import Reply
from serving.model_status.served_model import ServedModel
from serving.request_memory import WRITTEN, reserve, strings_memory
from serving.triton.tensors import Array, InferReply, Tensor

# kinds of dtypes that an npy file can contain without pickle: booleans, numbers and strings
KINDS = "biufSU"
JSON_INSTEAD = "ask for application/json"
NOT_ONE = f"the model's predictions are not one array; {JSON_INSTEAD}"


def predictions_as_csv(predictions: Sequence[Any]) -> bytes:
    """Return one line of CSV for each prediction, with the prediction's values in order. Lists and
    objects are flattened."""
    rows = (list(_cells(prediction)) for prediction in predictions)
    return _csv(rows)


def predictions_as_array(predictions: Sequence[Any]) -> Array:
    """Return the predictions as one array. If a prediction is an object, as those of table models
    are, use its field `prediction`. Raise NotAcceptable if they do not form one array of booleans,
    numbers or strings."""
    values = [
        prediction.get("prediction") if isinstance(prediction, dict) else prediction
        for prediction in predictions
    ]
    try:
        array = np.array(values)
    except ValueError as err:  # raised for lists of different lengths
        raise NotAcceptable(NOT_ONE) from err
    if array.dtype.kind not in KINDS:
        raise NotAcceptable(NOT_ONE)
    return array


def joined(arrays: Sequence[Array]) -> Array:
    """Concatenate the arrays of all batches. Raise NotAcceptable if the shapes of their rows
    differ."""
    if len({array.shape[1:] for array in arrays}) > 1:
        raise NotAcceptable(NOT_ONE)
    return np.concatenate(arrays)


def tensor_reply(served: ServedModel, result: InferReply, kind: str, budget: Budget) -> Reply:
    """Return a reply with the outputs as CSV or as an npy file, depending on the media type `kind`.
    An npy file holds one array: the only output or, if there are several, the client's main output.
    Raise NotAcceptable if the outputs do not fit into the format, and PayloadTooLarge or Overloaded
    if they take too much memory."""
    if kind == CSV:
        return Reply(_tensors_as_csv(result.outputs, budget), CSV, result.version)
    outputs = result.outputs
    if len(outputs) > 1 and served.client and served.client.main_output:
        main_output = served.client.main_output
        outputs = tuple(output for output in outputs if output.name == main_output)
    if len(outputs) != 1:
        raise NotAcceptable(
            f"model '{served.name}' has {len(result.outputs)} outputs; {JSON_INSTEAD}"
        )
    (output,) = outputs
    strings = 0
    if output.datatype == "BYTES":
        strings = strings_memory(math.prod(output.shape), len(output.data))
    with reserve(strings, f"the strings of output '{output.name}'"):
        return Reply(write_npy(output.array(), budget), NPY_TYPE, result.version)


def write_npy(array: Array, budget: Budget) -> bytes:
    """Return the array as an npy file. A tensor's strings, which are objects, become bytes that are
    padded to the length of the longest one. Raise PayloadTooLarge or Overloaded if the file takes
    too much memory."""
    size = array.nbytes
    if array.dtype == np.object_:
        size = array.size * max(map(len, array.flat), default=0)
        budget.check_output(size)
    with reserve(WRITTEN * size, "the npy file"):
        if array.dtype == np.object_:
            array = array.astype(np.bytes_)
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=False)
        return buffer.getvalue()


def _tensors_as_csv(tensors: Sequence[Tensor], budget: Budget) -> bytes:
    """Return one line of CSV for each row, with the values of all tensors in that row. Raise
    NotAcceptable if the tensors have different numbers of rows, and PayloadTooLarge or Overloaded
    if they take too much memory."""
    counts = {_count(tensor) for tensor in tensors}
    if len(counts) != 1:
        raise NotAcceptable(f"the outputs have different numbers of rows; {JSON_INSTEAD}")
    written = io.BytesIO()
    with reserve_json(tensors, budget):
        for cells in in_time(zip(*map(_rows, tensors), strict=True)):
            written.write(b",".join(filter(None, cells)))  # a tensor may have no cells in a row
            written.write(b"\n")
        return written.getvalue()


def _count(tensor: Tensor) -> int:
    """Return the number of rows of a tensor, which is 1 for a tensor without dimensions."""
    return tensor.shape[0] if tensor.shape else 1


def _rows(tensor: Tensor) -> Iterator[bytes]:
    """Yield each row of a tensor as CSV without the line end, or b"" if the row has no cells."""
    width = math.prod(tensor.shape[1:])
    values = json_values(tensor)
    for number in range(_count(tensor)):
        cells = values[number * width : (number + 1) * width]
        if tensor.datatype == "BYTES":
            yield _csv([cells])[:-1]
        else:
            row = io.BytesIO()
            write_items(row, cells)
            yield row.getvalue()


def _cells(value: Any) -> Iterator[str]:
    """Yield the cells of a prediction, or of a part of it, as text."""
    if isinstance(value, np.ndarray):
        yield from map(str, value.flat)
    elif isinstance(value, dict):
        yield from _cells(list(value.values()))
    elif isinstance(value, list):
        for item in value:
            yield from _cells(item)
    elif isinstance(value, str):
        yield value
    else:
        yield _text_of(value)


def _text_of(value: Any) -> str:
    """Return a number, a boolean or None as JSON. The number or boolean may be NumPy's."""
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY).decode()


def _csv(rows: Iterable[Sequence[str]]) -> bytes:
    text = io.StringIO(newline="")
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue().encode()
