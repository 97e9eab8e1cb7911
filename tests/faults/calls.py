"""Makes requests of every kind, each with its own id and an answer that is known in advance.

Numbers and words differ between requests, so that another request's answer counts as wrong.
"""

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import requests

from tests.support.harness import (
    EXITS,
    ROOT,
    Server,
    link_model,
    make_both_scales,
    make_python_model,
    make_sleeper,
    npy,
)
from tests.support.streaming_models import make_teller

ID = "X-Amzn-SageMaker-Inference-Id"
IMAGE = ROOT / "model_repository/resnet/example.png"
TEXT = "Faults are found, told and mended."
LARGE = 3000  # numbers: more than 2 kB of JSON, which a different parser reads
IN_SHARED_MEMORY = 300_000  # numbers: more than 1 MB, which is sent through /dev/shm
NPY = "application/x-npy"
EXITER = """input { name: "x" data_type: TYPE_FP32 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""


@dataclass(frozen=True)
class Call:
    """A request. `right` returns whether a reply with status 200 is the expected answer."""

    kind: str
    path: str
    headers: dict[str, str]
    body: bytes
    right: Callable[[requests.Response], bool]


def make_models(repository: Path) -> None:
    for name in ("resnet", "bert"):
        link_model(ROOT / "model_repository" / name, repository)
    make_both_scales(repository)
    make_sleeper(repository)
    make_teller(repository)
    make_exiter(repository)


def make_exiter(repository: Path) -> None:
    make_python_model(repository / "exiter", EXITER, EXITS)


def learn(server: Server) -> list[Callable[[int], Call]]:
    """Return a function for each kind of call that makes such calls. The answers of the real models
    are recorded from a healthy server first."""
    image = Learnt(
        "image", "/invocations?model_name=resnet", {"Content-Type": "image/png"}, IMAGE.read_bytes()
    )
    text = Learnt(
        "text", "/invocations?model_name=bert", {"Content-Type": "text/plain"}, TEXT.encode()
    )
    for each in (image, text):
        each.ask(server)
    return [image, text, _small, _large, _shared, _kserve, _stream]


class Learnt:
    """A call whose right answer was recorded from a healthy server. The last digits of its numbers
    may differ."""

    def __init__(self, kind: str, path: str, headers: dict[str, str], body: bytes) -> None:
        self._parts = (kind, path, headers, body)
        self._truth: Any = None

    def ask(self, server: Server) -> None:
        _kind, path, headers, body = self._parts
        reply = server.post(path, headers=headers, data=body)
        reply.raise_for_status()
        self._truth = reply.json()

    def __call__(self, _number: int) -> Call:
        return Call(*self._parts, right=lambda reply: same(reply.json(), self._truth))


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON documents are equal. Numbers are compared to three digits."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and isinstance(other, int | float):
        return bool(np.isclose(one, other, rtol=1e-3, atol=1e-3))
    return bool(one == other)


def _tensor(kind: str, path: str, numbers: Sequence[float], factor: float) -> Call:
    tensor = {"name": "x", "shape": [1, len(numbers)], "datatype": "FP32", "data": list(numbers)}

    def right(reply: requests.Response) -> bool:
        outputs: list[float] = reply.json()["outputs"][0]["data"]
        return outputs == [factor * each for each in numbers]

    return Call(
        kind,
        path,
        {"Content-Type": "application/json"},
        json.dumps({"inputs": [tensor]}).encode(),
        right,
    )


def _small(number: int) -> Call:
    return _tensor("tensor", "/invocations?model_name=scale", [number, number + 1], 3.0)


def _large(number: int) -> Call:
    return _tensor("tensor, large", "/invocations?model_name=scale", [number, *range(LARGE)], 3.0)


def _shared(number: int) -> Call:
    numbers = np.full((1, IN_SHARED_MEMORY), number, dtype=np.float32)

    def right(reply: requests.Response) -> bool:
        return bool(np.array_equal(np.load(io.BytesIO(reply.content)), 3 * numbers))

    headers = {"Content-Type": NPY, "Accept": NPY}
    return Call(
        "tensor, in /dev/shm", "/invocations?model_name=scale", headers, npy(numbers), right
    )


def _kserve(number: int) -> Call:
    return _tensor("/v2", "/v2/models/scale/versions/1/infer", [number], 2.0)


def _stream(number: int) -> Call:
    words = [f"{number}-{word}" for word in ("one", "two", "three")]

    def right(reply: requests.Response) -> bool:
        return [json.loads(line)["text_output"] for line in reply.text.splitlines()] == words

    headers = {"Content-Type": "application/json", "Accept": "application/jsonlines"}
    body = json.dumps({"text_input": " ".join(words), "delay": 0.02}).encode()
    return Call("stream", "/invocations?model_name=teller", headers, body, right)
