"""Tests the conversion of tensors to Triton's format and back. The expected bytes come from
NumPy."""

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from clients.base import Model, TensorSpec
from serving.bodies import schemas
from serving.bodies.documents import FlatBody, read_binary, read_object
from serving.bodies.kserve import TensorBody
from serving.bodies.npy import NpyBody, read_npy
from serving.bodies.reading import Body
from serving.bodies.values import WIDTHS, write_items
from serving.errors import DecodingError, InvalidRequest
from serving.job import Step
from serving.model_status.served_model import ServedModel
from serving.request import Request
from serving.triton.tensors import InferReply, Tensor, numpy_dtype
from tests.support.harness import npy

pytestmark = pytest.mark.unit

REQUEST = Request("id")


def served(*inputs: TensorSpec, batch: int = 0) -> ServedModel:
    return ServedModel(Model("model", Path("model"), inputs, (), batch))


MODEL = served(TensorSpec("text", "BYTES", (1,)), TensorSpec("scale", "FP32", (-1,)))


def step(body: Body, model: ServedModel = MODEL) -> Step:
    only = body.bind(model, REQUEST).prepare()
    assert only.is_last
    return only


def body(length: int = 100, **tensor: Any) -> Body:
    return read_object(
        json.dumps({"inputs": [{"name": "x", "shape": [2], **tensor}]}).encode().ljust(length)
    )


def test_send_bf16_as_the_upper_half_of_fp32() -> None:
    """tests/conformance covers the other datatypes. No ONNX model can have this one."""
    assert step(body(datatype="BF16", data=[1, -2])).inputs[0].data == b"\x80\x3f\x00\xc0"
    tensor = Tensor.of("y", np.array([-2.0], np.float32), "BF16")
    job = TensorBody(schemas.Tensors(inputs=[]), length=10).bind(MODEL, REQUEST)
    written = job.reply(iter([reply(tensor)]))
    (output,) = orjson.loads(written.content)["outputs"]
    assert output == {"name": "y", "datatype": "BF16", "shape": [1], "data": [-2.0]}


@pytest.mark.parametrize(
    ("datatype", "number"),
    [("FP16", -0.0000010728836), ("FP32", -7929156000000.0), ("FP64", -3.5499250995519746e300)],
)
def test_know_the_longest_number_of_a_datatype(datatype: str, number: float) -> None:
    written = io.BytesIO()
    write_items(written, np.array([number], numpy_dtype(datatype)))
    assert len(written.getvalue() + b",") == WIDTHS[datatype]


@pytest.mark.parametrize("data", [[[1, 2], [3, 4]], [1, [2, [3]], 4], [[[[1], [2]], [[3], [4]]]]])
def test_flatten_nested_data(data: Any) -> None:
    (tensor,) = step(body(datatype="INT8", shape=[2, 2], data=data)).inputs
    assert bytes(tensor.data) == b"\1\2\3\4"


def binary(sizes: list[Any], data: bytes, shape: list[int] | None = None) -> TensorBody:
    inputs = [
        {
            "name": f"x{i}",
            "datatype": "UINT8",
            "shape": shape or [size],
            "parameters": {"binary_data_size": size},
        }
        for i, size in enumerate(sizes)
    ]
    header = orjson.dumps({"inputs": inputs})
    return read_binary(str(len(header)), "json-header-size", header + data)


@pytest.mark.parametrize("size", ["2", 2.0])
def test_refuse_a_binary_data_size_that_is_not_an_integer(size: Any) -> None:
    with pytest.raises(InvalidRequest):
        step(binary([size], b"ab", [2]))


# tests/conformance has further ones.
WRONG: dict[str, dict[str, Any]] = {
    "a boolean as a number": {"datatype": "FP32", "data": [1, True]},
    "a number beyond FP32": {"datatype": "FP32", "data": [1, 1e39]},
    "an object": {"datatype": "FP32", "data": [1, {}]},
    "no data": {"datatype": "FP32"},
    "no datatype": {"data": [1, 2]},
    "a shape of fractions": {"datatype": "FP32", "shape": [2.0], "data": [1, 2]},
    "a shape of booleans": {"datatype": "FP32", "shape": [True], "data": [1]},
    "no shape": {"datatype": "FP32", "shape": None, "data": [1]},
    "more binary data than there are": {"datatype": "FP32", "parameters": {"binary_data_size": 8}},
    "parameters that are none": {"datatype": "FP32", "data": [1, 2], "parameters": [1]},
}


@pytest.mark.parametrize("tensor", WRONG.values(), ids=WRONG)
def test_refuse_a_wrong_tensor(tensor: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        step(body(**tensor))


@pytest.mark.parametrize("shape", [[2**70], [0, 2**62], [2**32, 2**32, 2**32], [300]])
def test_refuse_a_shape_that_the_body_cannot_hold(shape: list[int]) -> None:
    with pytest.raises(InvalidRequest):
        step(body(datatype="FP32", shape=shape, data=[1]))


def test_derive_the_shape_of_raw_input_from_its_bytes() -> None:
    def raw(spec: TensorSpec, data: bytes, batch_size: int = 0) -> tuple[tuple[int, ...], bytes]:
        (tensor,) = step(
            read_binary("0", "json-header-size", data), served(spec, batch=batch_size)
        ).inputs
        return tensor.shape, bytes(tensor.data)

    assert raw(TensorSpec("x", "INT16", (-1, 2)), b"12345678") == ((2, 2), b"12345678")
    assert raw(TensorSpec("x", "INT16", (4,)), b"12345678", 8) == ((1, 4), b"12345678")
    assert raw(TensorSpec("x", "BYTES", (1,)), b"abc") == ((1,), b"\3\0\0\0abc")
    for wrong in (
        TensorSpec("x", "INT16", (3,)),
        TensorSpec("x", "INT16", (-1, -1)),
        TensorSpec("x", "BYTES", (2,)),
    ):
        with pytest.raises(InvalidRequest, match="'x'"):
            raw(wrong, b"12345678")


@pytest.mark.parametrize(
    "single",
    [read_binary("0", "json-header-size", b"1234"), NpyBody.of(npy(np.zeros(1, np.float32)))],
)
def test_name_the_inputs_of_a_model_that_takes_more_than_one_tensor(single: Body) -> None:
    with pytest.raises(InvalidRequest, match=r"has 2 inputs \(text, scale\); send"):
        step(single)


def test_read_a_flat_body_as_inputs_and_parameters() -> None:
    document = {
        "text": "a",
        "scale": [1, 2],
        "top": 3,
        "parameters": {"deep": True},
        "id": "mine",
        "model_name": "m",
    }
    flat = step(FlatBody(document, generates=True))
    assert [(t.name, t.shape, bytes(t.data)) for t in flat.inputs] == [
        ("text", (1,), b"\1\0\0\0a"),
        ("scale", (2,), np.array([1, 2], dtype="<f4").tobytes()),
    ]
    assert flat.parameters == {"top": 3, "deep": True}


@pytest.mark.parametrize("digits", [25, 400])
def test_read_or_refuse_a_flat_value_of_very_many_digits(digits: int) -> None:
    asked = read_object(b'{"text": "a", "scale": %b}' % (b"9" * digits), generates=True)
    if digits < 308:
        assert step(asked).inputs[1].array().tolist() == [np.float32(1e25)]
    else:
        with pytest.raises(InvalidRequest, match="scale"):
            step(asked)


def test_give_a_flat_value_the_declared_shape() -> None:
    """NVIDIA's own tests call large language models in this way."""
    model = served(TensorSpec("PROMPT", "BYTES", (1, 1)), TensorSpec("STREAM", "BOOL", (1, 1)))
    flat = step(FlatBody({"PROMPT": "hello world", "STREAM": False}, generates=True), model)
    assert [tensor.shape for tensor in flat.inputs] == [(1, 1), (1, 1)]


def reply(*outputs: Tensor, **parameters: bool) -> InferReply:
    return InferReply("3", outputs, parameters)


def test_write_a_flat_reply_with_a_value_or_list_per_output() -> None:
    outputs = [
        Tensor("text", "BYTES", (1, 1), b"\1\0\0\0a"),
        Tensor.of("about", np.array([[1, 2]])),
    ]
    job = FlatBody({"id": "mine"}, generates=True).bind(
        ServedModel(Model("m", Path(), (), ())), REQUEST
    )
    line = job.line(reply(*outputs, end=False))
    assert (
        line == b'{"about":[1,2],"end":false,"id":"mine",'
        b'"model_name":"m","model_version":"3","text":"a"}'
    )


@pytest.mark.parametrize("order", ["C", "F"])
def test_read_an_npy_file_as_the_model_s_input(order: Any) -> None:
    array = np.asarray(np.arange(6, dtype=np.float64).reshape(2, 3), order=order)
    assert np.array_equal(read_npy(npy(array)), array)
    (tensor,) = step(
        NpyBody.of(npy(array)), served(TensorSpec("x", "FP32", (2, 3)), batch=4)
    ).inputs
    assert (tensor.shape, bytes(tensor.data)) == ((1, 2, 3), array.astype(np.float32).tobytes())


@pytest.mark.parametrize(
    ("values", "own", "datatype", "fits"),
    [
        ([127, -128], "i8", "INT8", True),
        ([128, 0], "i8", "INT8", False),
        ([0, -(2**31) - 1], "i8", "INT32", False),
        ([300, 0], "u8", "UINT8", False),
        ([2**63, 0], "u8", "INT64", False),
        ([2**64 - 1, 0], "u8", "INT64", False),
        ([2**62, 0], "u8", "INT64", True),
        ([1e39, 0], "f8", "FP32", False),
        ([np.inf, 0], "f8", "FP32", True),
        ([70000, 0], "i8", "FP16", False),
    ],
)
def test_refuse_npy_numbers_that_do_not_fit_the_datatype(
    values: list[float], own: str, datatype: str, fits: bool
) -> None:
    array = np.array([values], own)
    asked, model = NpyBody.of(npy(array)), served(TensorSpec("x", datatype, (2,)), batch=4)
    if fits:
        (tensor,) = step(asked, model).inputs
        assert np.array_equal(tensor.array(), array)
    else:
        with pytest.raises(InvalidRequest, match=datatype):
            step(asked, model)


@pytest.mark.parametrize("cut", [6, 10, 60, -1])
def test_refuse_a_truncated_npy_file(cut: int) -> None:
    with pytest.raises(DecodingError):
        read_npy(npy(np.zeros(3, np.float32))[:cut])
