"""Defines models that return their inputs without a Triton, and the bodies that the tests send to
them."""

import io
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from clients.base import Model, ModelClient, Names, Parameter, TensorSpec
from serving.bodies.reading import read_body
from serving.budget import NEVER, Budget, Deadline
from serving.codecs import JSON, Codec
from serving.errors import Overloaded
from serving.job import Reply
from serving.model_status.served_model import ServedModel
from serving.request import Request
from serving.request_memory import open_account
from serving.triton.gateway import TritonGateway
from serving.triton.tensors import InferReply, InferRequest
from tests.support.deadlines import within

LINES, JSON_TYPE, NPY = "application/jsonlines", "application/json", "application/x-npy"
BINARY = "application/vnd.sagemaker-triton.binary+json"
LARGEST = Budget().body_bytes


class Ones(ModelClient):
    """A client that sends a 1 for any JSON value."""

    codec: Codec = JSON
    example = b"1"
    parameters = (
        Parameter("flag", False, ""),
        Parameter("count", 1, ""),
        Parameter("share", 0.5, ""),
        Parameter("word", "a", ""),
        Parameter("kind", "a", "", choices=("a", "b")),
        Parameter("numbers", (0.5,), ""),
        Parameter("names", Names(), ""),
    )

    def prepare(self, instances: Any, parameters: Any) -> Any:
        return {"x": np.ones((len(instances), 1), np.float32)}

    def postprocess(self, outputs: Any, inputs: Any, instances: Any, parameters: Any) -> list[Any]:
        return [float(row[0]) for row in outputs["x"]]


class Echo(TritonGateway):
    """Answers each call with its inputs, instead of Triton."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", 1.0)

    def infer(self, request: InferRequest, deadline: Deadline = NEVER) -> Any:
        return Answer(request)

    def stream(self, request: InferRequest, deadline: Deadline = NEVER) -> Any:
        yield InferReply("1", request.inputs)


class Account:
    """An account with room for `most` bytes. It records the highest number of bytes that was
    reserved at a time."""

    def __init__(self, most: float = math.inf) -> None:
        self.most = most
        self.size = 0
        self.peak = 0

    def take(self, size: int, step: str) -> None:
        if self.size + size > self.most:
            raise Overloaded(step)
        self.size += size
        self.peak = max(self.peak, self.size)

    def give_back(self, size: int) -> None:
        self.size -= size


@contextmanager
def opened(account: Account) -> Iterator[None]:
    """Let requests in this context reserve memory from this account."""
    open_account(account)
    try:
        yield
    finally:
        open_account(None)


@dataclass
class Answer:
    request: InferRequest

    def send(self) -> None:
        pass

    def close(self) -> None:
        pass

    def __iter__(self) -> Iterator[InferReply]:
        yield InferReply("1", self.request.inputs)


def served(datatype: str = "FP32", client: bool = False) -> ServedModel:
    spec = (TensorSpec("x", datatype, (-1,)),)
    model = Model("m", Path("m"), spec, spec, 8)
    return ServedModel(model, Ones(model) if client else None)


@dataclass(frozen=True)
class Sent:
    """A body, its media type, and the model to which it is sent."""

    content_type: str
    data: bytes
    model: ServedModel
    accept: str = JSON_TYPE
    generates: bool = False

    def ask(self, deadline: Deadline = NEVER, budget: Budget = Budget()) -> Reply:  # noqa: B008
        """Answer the body as a request would be answered. Return the reply, or raise a
        ServingError."""
        with within(deadline):
            body = read_body(self.content_type, self.data, self.generates)
            request = Request("id", reply_deadline=deadline, budget=budget, accept=self.accept)
            return body.bind(self.model, request).answer(Echo())


def tensor(datatype: str, data: bytes, shape: bytes) -> bytes:
    head = b'{"inputs":[{"name":"x","datatype":"%b","shape":[%b],' % (datatype.encode(), shape)
    return head + b'"data":[%b]}]}' % data


def npy_file(descr: Any, shape: tuple[int, ...], data: bytes = b"") -> bytes:
    file = io.BytesIO()
    npy.write_array_header_1_0(file, {"descr": descr, "fortran_order": False, "shape": shape})
    return file.getvalue() + data


def many(each: bytes, count: int) -> bytes:
    return (each + b",") * (count - 1) + each


def strings(count: int) -> tuple[str, bytes]:
    """Return a binary tensor of empty strings, four bytes each."""
    input = b'{"name":"x","datatype":"BYTES","shape":[1,%d],"parameters":{"binary_data_size":%d}}'
    head = b'{"inputs":[%b]}' % (input % (count, 4 * count))
    return f"{BINARY};json-header-size={len(head)}", head + bytes(4 * count)


ONE = b'{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}'
NUMBERS, TEXTS, CLIENT = served(), served("BYTES"), served(client=True)
