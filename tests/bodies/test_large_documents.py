"""Tests that simdjson, which parses large documents of tensors, gives the same results as orjson,
which parses small ones."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.bodies import documents
from serving.bodies.kserve import TensorBody, read_inputs
from serving.bodies.reading import read_body
from serving.errors import InvalidRequest, PayloadTooLarge
from serving.triton.tensors import Tensor

pytestmark = pytest.mark.unit

PADDING = b" " * documents.LARGE
FLOATS = st.floats(allow_nan=False, allow_infinity=False)
NUMBERS = st.one_of(st.integers(-(2**64), 2**66), FLOATS, st.integers(-200, 300))
ODD: st.SearchStrategy[Any] = st.one_of(
    NUMBERS, st.none(), st.booleans(), st.text(max_size=3), st.just({})
)
DATA = st.one_of(st.lists(NUMBERS), st.lists(st.lists(NUMBERS, max_size=3)), st.lists(ODD), ODD)
DATATYPES = st.sampled_from(
    [
        "BOOL",
        "INT8",
        "UINT8",
        "INT32",
        "UINT32",
        "INT64",
        "UINT64",
        "FP16",
        "BF16",
        "FP32",
        "FP64",
        "BYTES",
        "X",
    ]
)


def tensors(body: bytes) -> list[Tensor] | str:
    """Return the tensors of the body, or the kind of a body without tensors, or the text of the
    error."""
    try:
        read = read_body("application/json", body)
        if not isinstance(read, TensorBody):
            return type(read).__name__
        return [
            Tensor(tensor.name, tensor.datatype, tensor.shape, bytes(tensor.data))
            for tensor in read_inputs(read.document, read.binary, read.length)
        ]
    except InvalidRequest as err:
        return str(err)


def of_data(datatype: str, data: Any) -> bytes:
    return json.dumps(
        {"inputs": [{"name": "x", "datatype": datatype, "shape": [size(data)], "data": data}]}
    ).encode()


def size(data: Any) -> int:
    return sum(map(size, data)) if isinstance(data, list) else 1


@given(DATATYPES, DATA)
def test_parse_a_large_document_like_a_small_one(datatype: str, data: Any) -> None:
    body = of_data(datatype, data)
    # The length of a body limits its shapes, so the small body gets the length of the large one.
    assert tensors(body.ljust(1000)) == tensors(body + PADDING)


@pytest.mark.parametrize(
    "body",
    [
        b'{"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "shape": [2], '
        b'"data": [1, 2]}]}',
        b'{"inputs": [{"name": "x", "datatype": "INT64", "shape": [2], "data": [1], "data": '
        b"[1, 2]}]}",
        b'{"inputs": [], "inputs": [{"name": "x", "datatype": "INT64", "sh\\u0061pe": [2], '
        b'"data": [1, 2]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [1e400]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [NaN]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [1], '
        b'"parameters": {"a": {"b": 1}}}]}',
        b'{"inputs": [{"name": "\xff", "datatype": "FP64", "shape": [1], "data": [1]}]}',
        b'{"inputs": [{"name": "\\ud800", "datatype": "FP64", "shape": [1], "data": [1]}]}',
        b'{"inputs": [{"name": "x", "datatype": "FP64", "shape": [1], "data": [1], "further": 1}]}',
        b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": %b"a"%b}]}'
        % (b"[" * 500, b"]" * 500),
        b'["datatype"]',
        b'{"inputs": "datatype"}',
        b'{"instances": ["datatype"]}',
        b'{"inputs": [{"datatype": "FP32"}, {"text": 1}]}',
        b'{"inputs": [[1]], "datatype": 1}',
        b'{"inputs": [{"name": "x", "datatype": "FP32", "shape": [1], "data": [1]}, [1]]}',
    ],
)
def test_parse_unusual_large_documents_like_small_ones(body: bytes) -> None:
    assert tensors(body) == tensors(body + PADDING)


def test_refuse_a_truncated_large_document() -> None:
    body = of_data("FP64", [1.5] * 10_000)
    with pytest.raises(InvalidRequest):
        read_body("application/json", body[:-2])


def test_read_many_keys_in_one_pass() -> None:
    """simdjson searches for each key from the start, which takes minutes for 200,000 keys."""
    keys = b"".join(b'"%d": 1, ' % number for number in range(200_000))
    inputs = b'"inputs": [{"name": "x", "datatype": "INT64", "shape": [1], "data": [1]}]}'
    with pytest.raises(PayloadTooLarge):
        tensors(b"{" + keys + inputs)


def test_refuse_a_large_document_of_too_many_parts_before_reading_it() -> None:
    body = (
        b'{"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ['
        + b"[]," * 2_100_000
        + b"[]]}]}"
    )
    with pytest.raises(PayloadTooLarge):
        read_body("application/json", body)


@pytest.mark.parametrize(
    ("datatype", "numbers"),
    [
        ("FP64", [math.pi, 5e-324, 1.7976931348623157e308, 9007199254740993.0]),
        ("INT64", [2**63 - 1, -(2**63)]),
        ("UINT64", [2**64 - 1, 0]),
    ],
)
def test_keep_all_digits_of_numbers(datatype: str, numbers: list[float]) -> None:
    for tensor in tensors(of_data(datatype, numbers) + PADDING):
        assert isinstance(tensor, Tensor)
        assert tensor.array().tolist() == numbers
