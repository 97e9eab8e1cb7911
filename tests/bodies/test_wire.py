"""JSON tensors as they travel to Triton; the reference are numpy's own bytes and struct's."""

import struct
from typing import Any

import numpy as np
import orjson
import pytest

from clients.base import Model, TensorSpec
from serving.bodies.invocation import FlatBody, TensorBody
from serving.bodies.wire import read_flat, read_tensors, write_flat
from serving.errors import InvalidRequest
from serving.triton.tensors import Reply

MODEL = Model(
    "model",
    path=None,  # type: ignore[arg-type]
    inputs=(TensorSpec("text", "BYTES", (1,)), TensorSpec("scale", "FP32", (-1,))),
    outputs=(),
)


def body(**tensor: Any) -> TensorBody:
    document = {"inputs": [{"name": "x", "shape": [2], **tensor}]}
    return TensorBody(orjson.dumps(document), None, document)


FORMATS = {
    "INT8": "b",
    "INT16": "h",
    "INT32": "i",
    "INT64": "q",
    "UINT8": "B",
    "UINT16": "H",
    "UINT32": "I",
    "UINT64": "Q",
    "FP16": "e",
    "FP32": "f",
    "FP64": "d",
}


@pytest.mark.parametrize(("datatype", "form"), FORMATS.items())
def test_numbers_travel_as_little_endian(datatype: str, form: str) -> None:
    (tensor,) = read_tensors(body(datatype=datatype, data=[1, 100])).inputs
    assert (tensor.name, tensor.datatype, tensor.shape) == ("x", datatype, (2,))
    assert tensor.raw == struct.pack(f"<2{form}", 1, 100)


def test_other_datatypes_travel_in_their_forms() -> None:
    assert read_tensors(body(datatype="BOOL", data=[True, False])).inputs[0].raw == b"\1\0"
    assert read_tensors(body(datatype="BYTES", data=["ä", ""])).inputs[0].raw == b"\2\0\0\0\xc3\xa4\0\0\0\0"
    assert read_tensors(body(datatype="BF16", data=[1, -2])).inputs[0].raw == b"\x80\x3f\x00\xc0"


def test_nested_data_are_flattened() -> None:
    (tensor,) = read_tensors(body(datatype="INT8", shape=[2, 2], data=[[1, 2], [3, 4]])).inputs
    assert tensor.raw == b"\1\2\3\4"


def test_binary_parts_are_taken_in_the_order_of_the_inputs() -> None:
    sizes = [{"parameters": {"binary_data_size": size}} for size in (2, 3)]
    document = {"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1], **size} for size in sizes]}
    header = orjson.dumps(document)
    found = read_tensors(TensorBody(header + b"abcde", len(header), document))
    assert [tensor.raw for tensor in found.inputs] == [b"ab", b"cde"]


WRONG: dict[str, dict[str, Any]] = {
    "a number too large": {"datatype": "INT8", "data": [1, 200]},
    "a negative one": {"datatype": "UINT8", "data": [1, -1]},
    "a fraction": {"datatype": "INT32", "data": [1, 1.5]},
    "a boolean as a number": {"datatype": "FP32", "data": [1, True]},
    "a number as a boolean": {"datatype": "BOOL", "data": [True, 1]},
    "a string as a number": {"datatype": "FP32", "data": [1, "1"]},
    "a number as a string": {"datatype": "BYTES", "data": ["1", 1]},
    "null": {"datatype": "FP32", "data": [1, None]},
    "no data": {"datatype": "FP32"},
    "one too few": {"datatype": "FP32", "data": [1]},
    "no datatype": {"data": [1, 2]},
    "an unknown one": {"datatype": "FP128", "data": [1, 2]},
    "a negative shape": {"datatype": "FP32", "shape": [-1], "data": [1]},
    "more binary data than there are": {"datatype": "FP32", "parameters": {"binary_data_size": 8}},
    "parameters that are none": {"datatype": "FP32", "data": [1, 2], "parameters": [1]},
}


@pytest.mark.parametrize("tensor", WRONG.values(), ids=WRONG)
def test_a_wrong_tensor_is_refused_by_name(tensor: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match=r"'x'|an input needs|parameters"):
        read_tensors(body(**tensor))


def test_a_flat_body_is_inputs_and_parameters() -> None:
    document = {"text": "a", "scale": [1, 2], "top": 3, "parameters": {"deep": True}, "id": "mine", "model_name": "m"}
    found = read_flat(FlatBody(document), MODEL)
    assert [(t.name, t.shape, t.raw) for t in found.inputs] == [
        ("text", (1,), b"\1\0\0\0a"),
        ("scale", (2,), np.array([1, 2], dtype="<f4").tobytes()),
    ]
    assert (found.parameters, found.id) == ({"top": 3, "deep": True}, "mine")


def test_a_flat_reply_has_one_value_or_a_list_per_output_in_the_order_of_the_keys() -> None:
    outputs = {"text": np.array([[b"a"]], dtype=object), "about": np.array([[1, 2]])}
    written = write_flat("m", Reply("3", outputs, {"sequence_end": False}), "mine")
    assert (
        written == b'{"about":[1,2],"id":"mine","model_name":"m","model_version":"3","sequence_end":false,"text":"a"}'
    )
