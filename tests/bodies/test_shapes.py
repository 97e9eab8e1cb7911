"""Shapes that no body of this size can fill, of which Triton would die, and memory that is not the caller's."""

import json
from pathlib import Path
from typing import Any

import pytest

from clients.base import Model, TensorSpec
from serving.bodies.invocation import TensorBody
from serving.bodies.tensors import to_triton
from serving.bodies.wire import read_tensors
from serving.errors import InvalidRequest

MODEL = Model("scale", Path("scale"), (TensorSpec("x", "FP32", (-1,)),), (TensorSpec("y", "FP32", (-1,)),), 8)


def body(shape: Any, data: list[float], **parameters: Any) -> TensorBody:
    document = {"inputs": [{"name": "x", "shape": shape, "datatype": "FP32", "data": data, "parameters": parameters}]}
    return TensorBody(json.dumps(document).encode(), None, document)


@pytest.mark.parametrize("shape", [[1, 2**40], [4, 2**62], [2**70], [0, 2**62], [2**32, 2**32, 2**32], [300]])
def test_a_shape_that_the_body_cannot_hold_is_refused_on_both_ways_to_triton(shape: list[int]) -> None:
    for read in (lambda tensors: to_triton(tensors, MODEL), read_tensors):
        with pytest.raises(InvalidRequest, match="cannot hold"):
            read(body(shape, [1]))


@pytest.mark.parametrize(("shape", "data"), [([1, 1], [1]), ([2, 2], [1, 2, 3, 4]), ([1, 0], []), ([0], [])])
def test_a_shape_that_fits_goes_to_triton_as_it_came(shape: list[int], data: list[float]) -> None:
    tensors = body(shape, data)
    assert to_triton(tensors, MODEL).body == tensors.body
    assert read_tensors(tensors).inputs[0].shape == tuple(shape)


def test_no_caller_reaches_shared_memory() -> None:
    with pytest.raises(InvalidRequest, match="shared memory"):
        to_triton(body([1], [1], shared_memory_region="secret"), MODEL)
