"""Small bodies that would become large or take long, and the models that they are sent to."""

import gzip
import io
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy

from clients.base import Model, ModelClient, Names, Parameter, TensorSpec
from serving.bodies.packed import unpacked
from serving.bodies.reading import read_body
from serving.budget import NEVER, Budget, Deadline
from serving.codecs import JSON, Codec
from serving.job import Reply
from serving.model_status.served_model import ServedModel
from serving.request import Request
from serving.triton.gateway import TritonGateway
from serving.triton.tensors import InferReply, InferRequest
from tests.support.deadlines import within

LINES, JSON_TYPE, NPY = "application/jsonlines", "application/json", "application/x-npy"
BINARY = "application/vnd.sagemaker-triton.binary+json"
LARGEST = Budget().body_bytes


class Ones(ModelClient):
    """A client that turns any JSON value into a 1."""

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
    """Return every call's inputs."""

    def __init__(self) -> None:
        super().__init__("127.0.0.1:1", 1.0)

    def infer(self, request: InferRequest, deadline: Deadline = NEVER) -> Any:
        return Answer(request)

    def stream(self, request: InferRequest, deadline: Deadline = NEVER) -> Any:
        yield InferReply("1", request.inputs)


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
class Hostile:
    """A body, its type, and the model that it goes to."""

    content_type: str
    data: bytes
    model: ServedModel
    encoding: str = ""
    accept: str = JSON_TYPE
    generates: bool = False

    def ask(self, deadline: Deadline = NEVER, budget: Budget = Budget()) -> Reply:  # noqa: B008
        """Return the reply as to a request; raise a ServingError."""
        with within(deadline):
            data = unpacked(self.data, self.encoding, LARGEST)
            body = read_body(self.content_type, data, self.generates)
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


def numbered(count: int) -> bytes:
    return b",".join(b'"%x":1' % number for number in range(count))


def strings(count: int) -> tuple[str, bytes]:
    """Return a binary tensor of empty strings, four bytes each."""
    input = b'{"name":"x","datatype":"BYTES","shape":[1,%d],"parameters":{"binary_data_size":%d}}'
    head = b'{"inputs":[%b]}' % (input % (count, 4 * count))
    return f"{BINARY};json-header-size={len(head)}", head + bytes(4 * count)


ONE = b'{"name":"x","datatype":"FP32","shape":[1,1],"data":[1]}'
NUMBERS, TEXTS, CLIENT = served(), served("BYTES"), served(client=True)
CASES: dict[str, Callable[[], Hostile]] = {
    "instances: numbers": lambda: Hostile(
        JSON_TYPE, b'{"instances":[%b]}' % many(b"0", 12_000_000), CLIENT
    ),
    "instances: objects": lambda: Hostile(
        JSON_TYPE, b'{"instances":[%b]}' % many(b"{}", 8_000_000), CLIENT
    ),
    "instances: lists in one": lambda: Hostile(
        JSON_TYPE, b'{"instances":[[%b]]}' % many(b"[]", 8_000_000), CLIENT
    ),
    "inputs": lambda: Hostile(JSON_TYPE, b'{"inputs":[%b]}' % many(ONE, 400_000), NUMBERS),
    "some inputs": lambda: Hostile(JSON_TYPE, b'{"inputs":[%b]}' % many(ONE, 20_000), NUMBERS),
    "outputs": lambda: Hostile(
        JSON_TYPE,
        b'{"inputs":[%b],"outputs":[%b]}' % (ONE, many(b'{"name":"x"}', 100_000)),
        NUMBERS,
    ),
    "parameters": lambda: Hostile(
        JSON_TYPE, b'{"inputs":[%b],"parameters":{%b}}' % (ONE, numbered(100_000)), NUMBERS
    ),
    "keys beside tensors": lambda: Hostile(
        JSON_TYPE, b'{"inputs":[%b],%b}' % (ONE, numbered(500_000)), NUMBERS
    ),
    "a flat body of keys": lambda: Hostile(JSON_TYPE, b"{%b}" % numbered(2_000_000), NUMBERS),
    "strings in JSON": lambda: Hostile(
        JSON_TYPE, tensor("BYTES", many(b'""', 1_500_000), b"1,1500000"), TEXTS
    ),
    "binary strings": lambda: Hostile(*strings(6_500_000), TEXTS),
    "npy: bytes": lambda: Hostile(NPY, npy_file("|S1", (1, 25_000_000), bytes(25_000_000)), TEXTS),
    "npy: unicode": lambda: Hostile(NPY, npy_file("<U1", (1, 6_000_000), bytes(24_000_000)), TEXTS),
    "npy: numbers for strings": lambda: Hostile(
        NPY, npy_file("|u1", (1, 25_000_000), bytes(25_000_000)), TEXTS
    ),
    "npy: no width": lambda: Hostile(NPY, npy_file("|S0", (1, 30_000_000)), TEXTS),
    "npy: a trillion": lambda: Hostile(NPY, npy_file("<f4", (1, 10**12)), NUMBERS),
    "npy: dimensions": lambda: Hostile(NPY, npy_file("<f4", (1,) * 2000, bytes(4)), NUMBERS),
    "npy: negative": lambda: Hostile(NPY, npy_file("<f4", (-1, -1), bytes(4)), NUMBERS),
    "npy: records": lambda: Hostile(NPY, npy_file([("a", "<f4")], (1, 1), bytes(4)), NUMBERS),
    "npy: arrays in an array": lambda: Hostile(
        NPY, npy_file(("<f4", (2, 2)), (1, 1), bytes(16)), NUMBERS
    ),
    "npy: dates": lambda: Hostile(NPY, npy_file("<M8[s]", (1, 1), bytes(8)), served("INT64")),
    "npy: brackets": lambda: Hostile(NPY, b"\x93NUMPY\x01\x00\x00\x20" + b"(" * 0x2000, NUMBERS),
    "npz": lambda: Hostile(NPY, b"PK\x03\x04" + bytes(100), NUMBERS),
    "a shape of nines": lambda: Hostile(
        JSON_TYPE, tensor("FP32", b"1", many(b"9", 12_000_000)), NUMBERS
    ),
    "data too deep": lambda: Hostile(
        JSON_TYPE, tensor("FP32", b"[" * 500 + b"]" * 500 + b"," + many(b"0", 10**5), b"1"), NUMBERS
    ),
    "brackets": lambda: Hostile(JSON_TYPE, b"[" * 300_000, NUMBERS),
    "braces": lambda: Hostile(JSON_TYPE, b'{"a":' * 300_000, NUMBERS),
    "empty gzip members": lambda: Hostile(JSON_TYPE, gzip.compress(b"") * 200_000, NUMBERS, "gzip"),
    "packed zeros": lambda: Hostile(
        JSON_TYPE, gzip.compress(bytes(20 * LARGEST), 1), NUMBERS, "gzip"
    ),
}
