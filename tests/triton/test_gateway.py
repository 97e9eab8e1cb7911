"""Tests that every error of Triton and gRPC is translated to an error of this project."""

import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import grpc
import numpy as np
import pytest
from tritonclient.grpc import model_config_pb2, service_pb2

from serving.errors import (
    InferenceFailed,
    InvalidRequest,
    ModelNotReady,
    ServingError,
    TritonTimeout,
    TritonUnavailable,
)
from serving.repository.model_config import datatype_name
from serving.triton.connection import ERRORS, BackendDied, translated, translated_text
from serving.triton.gateway import Responses, TritonGateway
from serving.triton.tensors import InferRequest, Tensor, numpy_dtype
from tests.support.harness import PATIENCE

pytestmark = pytest.mark.unit


class Failure(grpc.RpcError):  # type: ignore[misc]
    def __init__(self, code: grpc.StatusCode, details: str) -> None:
        self._code, self._details = code, details

    def code(self) -> grpc.StatusCode:
        return self._code

    def details(self) -> str:
        return self._details


@pytest.mark.parametrize(
    "code", [code for code in grpc.StatusCode if code is not grpc.StatusCode.OK]
)
def test_translate_every_grpc_code(code: grpc.StatusCode) -> None:
    assert type(translated(Failure(code, "the reason"))) is ERRORS.get(code, InferenceFailed)


@pytest.mark.parametrize("code", ["UNAVAILABLE", "NOT_FOUND", "INVALID_ARGUMENT"])
def test_tell_an_unknown_model_from_a_dead_server(code: str) -> None:
    message = "[request id: a] Request for unknown model: 'm' is not found"
    assert isinstance(translated(Failure(grpc.StatusCode[code], message)), ModelNotReady)
    assert isinstance(translated_text(message), ModelNotReady)


@pytest.mark.parametrize(
    "message",
    [
        "Add node. Name:'Add_5' Status Message: "
        "/onnxruntime_src/onnxruntime/core/providers/cpu/math/element_wise_ops.h:583 void "
        "onnxruntime::BroadcastIterator::Append(ptrdiff_t, ptrdiff_t) axis == largest was "
        "false. Attempting to broadcast an axis by a dimension other than 1. 512 by 600\n",
        "Reshape node. Name:'r' Status Message: "
        "/onnxruntime_src/onnxruntime/core/providers/cpu/tensor/reshape_helper.h:45 the "
        "input tensor cannot be reshaped to the requested shape. Input shape:{1,0}\n",
    ],
)
@pytest.mark.parametrize("before", ["onnx runtime error 1: ", "[ONNXRuntimeError] : 1 : FAIL : "])
def test_blame_the_caller_for_tensors_that_do_not_fit_the_network(
    before: str, message: str
) -> None:
    text = f"{before}Non-zero status code returned while running {message}"
    assert type(translated(Failure(grpc.StatusCode.INTERNAL, text))) is InvalidRequest
    assert type(translated_text(text)) is InvalidRequest


@pytest.mark.parametrize(
    "message",
    [
        "The size of tensor a (6) must match the size of tensor b (5) at non-singleton dimension 0",
        "index out of range in self",
        "shape '[-1, 7]' is invalid for input of size 6",
        "mat1 and mat2 shapes cannot be multiplied (1x6 and 4x2)",
        "Calculated padded input size per channel: (2 x 2). Kernel size: (3 x 3).",
        "Given groups=1, weight of size [2, 3, 3, 3], expected input[1, 4, 9, 9] to have 3 "
        "channels, but got 4",
    ],
)
def test_blame_the_caller_for_tensors_that_do_not_fit_torchscript(message: str) -> None:
    torch = (
        "The following operation failed in the TorchScript interpreter.\nTraceback of "
        "TorchScript\n    x.view(7)\n"
    )
    error = translated(Failure(grpc.StatusCode.INTERNAL, f"{torch}RuntimeError: {message}\n"))
    assert type(error) is InvalidRequest
    assert (
        type(translated(Failure(grpc.StatusCode.INTERNAL, f"RuntimeError: {message}\n")))
        is InferenceFailed
    )


@pytest.mark.parametrize(
    "reason", ["CUDA failure 700: an illegal memory access", "CUDNN_STATUS_EXECUTION_FAILED"]
)
def test_do_not_blame_the_caller_if_the_network_fails_by_itself(reason: str) -> None:
    for error, number in ((InferenceFailed, 1), (InvalidRequest, 2)):
        text = (
            f"onnx runtime error {number}: Non-zero status code returned while running Conv "
            f"node. {reason}"
        )
        assert type(translated(Failure(grpc.StatusCode.INTERNAL, text))) is error


@pytest.mark.parametrize(
    "message", ["Stub process is not healthy.", "Failed to obtain the health mutex."]
)
def test_recognize_a_process_that_died_holding_a_lock(message: str) -> None:
    error = translated(Failure(grpc.StatusCode.INTERNAL, f"in ensemble 'chain', {message}"))
    assert isinstance(error, BackendDied)
    assert str(error) == message.removesuffix(".")


@pytest.mark.parametrize(
    "text",
    [
        "Server not ready",
        "Server is stopping, scheduler for model has stopped accepting new inference requests",
    ],
)
def test_answer_503_to_a_stream_if_the_server_is_stopped(text: str) -> None:
    for whole in (text, f"[request id: 7] in ensemble 'chain', {text}"):
        assert type(translated_text(whole)) is TritonUnavailable


def test_blame_the_caller_of_a_stream_for_the_request_of_an_ensemble_s_part() -> None:
    text = "inference request to model 'part' must specify a non-zero or non-empty correlation ID"
    for whole in (text, f"[request id: 7] in ensemble 'outer', in ensemble 'inner', {text}"):
        assert type(translated_text(whole)) is InvalidRequest


def test_declare_no_backend_dead_because_of_a_caller_s_words() -> None:
    message = "unexpected inference input 'Stub process 'a' is not healthy' for model 'scale'"
    assert type(translated(Failure(grpc.StatusCode.INVALID_ARGUMENT, message))) is InvalidRequest
    assert type(translated_text(message)) is InvalidRequest


def test_leave_out_triton_s_advice_about_max_batch_size() -> None:
    text = "unexpected shape for input 'x' for model 'm'. Expected [-1,4], got [1,3]."
    for whole in (text, f"[request id: 7] {text} NOTE: Setting a non-zero max_batch_size in the"):
        error = translated(Failure(grpc.StatusCode.INVALID_ARGUMENT, whole))
        assert str(error) == str(translated_text(whole)) == text


def test_report_a_missing_server_at_once() -> None:
    asked = InferRequest("m", "", (Tensor.of("x", np.zeros(1, np.float32)),))
    gateway = TritonGateway("127.0.0.1:1", timeout=5)
    for call in (gateway.is_live, gateway.index, lambda: next(gateway.stream(asked))):
        with pytest.raises((TritonUnavailable, TritonTimeout)) as caught:
            call()
        assert isinstance(caught.value, ServingError)
    with pytest.raises(TritonUnavailable):
        gateway.repeat(
            Failure(grpc.StatusCode.UNAVAILABLE, "the model failed to connect to a database"),
            pytest.fail,
        )
    inference = gateway.infer(asked)
    with pytest.raises(TritonUnavailable):
        inference.result()
    inference.send()
    with pytest.raises(TritonUnavailable):
        inference.result()
    gateway.close()


def test_translate_every_datatype_to_the_protocol_s_name() -> None:
    names = {datatype_name(number) for number in model_config_pb2.DataType.values()} - {"INVALID"}
    assert {"FP32", "FP16", "BF16", "BYTES", "BOOL", "UINT8"} <= names
    assert all(numpy_dtype(name) is not None for name in names)


def test_round_bfloat16_to_the_nearest_even() -> None:
    exact = np.array([1.0, -2.5, 0.0, 3.3895314e38], np.float32)
    assert Tensor.of("x", exact, "BF16").array().tolist() == exact.tolist()
    halfway = np.array([0x3F808000, 0x3F818000], np.uint32).view(np.float32)
    assert Tensor.of("x", halfway, "BF16").array().view(np.uint32).tolist() == [
        0x3F800000,
        0x3F820000,
    ]


class Stream:
    """A stream of `count` responses, which either ends then or is silent until it is cancelled."""

    def __init__(self, count: int, ends: bool) -> None:
        self.left = count
        self.ends = ends
        self.cancelled = threading.Event()

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        if self.left:
            self.left -= 1
            return service_pb2.ModelStreamInferResponse()
        if self.ends:
            raise StopIteration
        assert self.cancelled.wait(PATIENCE)
        raise Failure(grpc.StatusCode.CANCELLED, "cancelled")

    def is_active(self) -> bool:
        return not self.cancelled.is_set()

    def cancel(self) -> None:
        self.cancelled.set()


def responses_of(stream: Stream) -> Responses:
    gateway = TritonGateway("unix:/nonexistent", timeout=1.0)
    gateway.__dict__["stub"] = SimpleNamespace(ModelStreamInfer=lambda *_, **__: stream)
    return gateway.stream(InferRequest("m", "", (Tensor.of("x", np.zeros(1)),)))


def test_read_a_stream_to_its_end_instead_of_cancelling_it_while_it_sends() -> None:
    stream = Stream(5, ends=True)
    responses = responses_of(stream)
    next(responses)
    responses.give_up()
    with pytest.raises(TritonUnavailable):
        next(responses)
    assert stream.left == 3
    responses.close()
    assert (stream.left, stream.cancelled.is_set()) == (0, False)


def test_cancel_a_stream_that_is_quiet_when_it_is_closed() -> None:
    stream = Stream(2, ends=False)
    responses = responses_of(stream)
    next(responses)
    responses.close()
    assert stream.cancelled.is_set()
