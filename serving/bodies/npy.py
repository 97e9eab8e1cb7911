"""Reads bodies that are NumPy's npy files. Such a file contains one array, which is sent to a model
with one input."""

import io
import math
from typing import Any, Literal

import numpy as np
from numpy.lib import format as npy

from clients.base import TensorSpec
from serving.bodies import schemas
from serving.bodies.kserve import TensorBody, only_input
from serving.bodies.values import fitted, out_of_range
from serving.bodies.writing import KINDS
from serving.budget import MOST_DIMENSIONS, MOST_STRINGS, check_count
from serving.errors import DecodingError, InvalidRequest
from serving.job import Job
from serving.named_value import INT64
from serving.request_memory import INPUT, reserve, strings_memory
from serving.triton.tensors import Array, Tensor, numpy_dtype

NPY_MAGIC = b"\x93NUMPY"
ZIP = b"PK"


class NpyBody(TensorBody):
    """A body that is an npy file, whose array is the model's only input."""

    @classmethod
    def of(cls, data: bytes) -> "NpyBody":
        return cls(schemas.Tensors(inputs=[]), len(data), data)

    def inputs(self, job: Job) -> list[Tensor]:
        model = job.served.model
        spec = only_input(model, "an npy body", "KServe v2 tensors")
        array = _input_array(read_npy(bytes(self.binary)), spec, model.max_batch_size)
        return [Tensor.of(spec.name, array, spec.datatype)]


def read_npy(data: bytes) -> Array:
    """Return the array in an npy file, without copying its data. Check that the header fits the
    length of the data, because NumPy would allocate as much memory as the header claims. Raise
    DecodingError if it does not, if the array has no elements, or if the file is not an npy file of
    booleans, numbers or strings."""
    file = io.BytesIO(data)
    try:
        version = npy.read_magic(file)
        # NumPy has no public function for version 3.0, whose header differs from that of version
        # 2.0 only in its encoding
        read: Any = npy.read_array_header_1_0 if version == (1, 0) else npy.read_array_header_2_0
        shape, fortran, dtype = read(file)
    # NumPy parses the header as a Python literal, which may raise ValueError, TokenError,
    # RecursionError and others
    except Exception as err:
        zip_hint = "this is an npz or another zip file; " if data.startswith(ZIP) else ""
        raise DecodingError(
            f"not an npy file that can be read without pickle ({err}): "
            f"{zip_hint}numpy.save(file, array) writes one",
            field="body",
        ) from err
    if 0 in shape:
        raise DecodingError("the npy file's array has no elements", field="body")
    left = len(data) - file.tell()
    if dtype.kind not in KINDS or not _fills(shape, dtype.itemsize, left):
        # str() refuses integers with too many digits, which a header can contain in hexadecimal
        can_be_shown = all(size in INT64 for size in shape)
        dimensions = str(shape)[:100] if can_be_shown else "a dimension beyond INT64"
        raise DecodingError(
            f"not an npy file of numbers or strings that can be read without pickle ({left} "
            f"bytes as {dtype} {dimensions}): numpy.save(file, array) writes one",
            field="body",
        )
    array = np.frombuffer(data, dtype=dtype, offset=file.tell())
    order: Literal["F", "C"] = "F" if fortran else "C"
    # convert the sizes to int, because a header may contain True instead of 1
    return array.reshape(list(map(int, shape)), order=order)


def _fills(shape: tuple[int, ...], itemsize: int, size: int) -> bool:
    """Return whether an array of this shape, whose elements take `itemsize` bytes each, takes
    exactly `size` bytes and has at most MOST_DIMENSIONS dimensions."""
    if len(shape) > MOST_DIMENSIONS or not itemsize:
        return False
    # check each length, because the product of two negative ones is positive
    if not all(0 <= length <= size for length in shape):
        return False
    return math.prod(shape) * itemsize == size


def _input_array(array: Array, spec: TensorSpec, max_batch_size: int) -> Array:
    """Convert the array to the input's datatype. If only the batch dimension is missing, add it.
    Raise a ServingError if a value does not fit the datatype or the array takes too much memory."""
    dtype = numpy_dtype(spec.datatype)
    if spec.datatype == "BYTES" and array.dtype.kind in "SU":
        check_count(array.size, MOST_STRINGS, "strings")
        reserve(strings_memory(array.size, array.nbytes), "the strings of the npy file")
        array = _encoded(array) if array.dtype.kind == "U" else array
    elif spec.datatype == "BYTES" or not np.can_cast(array.dtype, dtype, casting="same_kind"):
        raise InvalidRequest(
            f"input '{spec.name}' is {spec.datatype}, the npy file holds {array.dtype}"
        )
    reserve(INPUT * array.size * dtype.itemsize, "the array of the npy file")
    if max_batch_size and array.ndim == len(spec.shape):
        array = array[np.newaxis]
    numbers = fitted(array, dtype)
    if numbers is None:
        raise InvalidRequest(f"input '{spec.name}': {out_of_range(spec.datatype, dtype)}")
    return numbers


def _encoded(array: Array) -> Array:
    """Encode an array of Unicode strings as UTF-8. Raise DecodingError if it contains a value that
    is not a character."""
    try:
        return np.char.encode(array, "utf-8")
    # raised for a surrogate and for a number beyond Unicode's range
    except (UnicodeEncodeError, SystemError) as err:
        raise DecodingError(f"its strings are not Unicode ({err})", field="body") from err
