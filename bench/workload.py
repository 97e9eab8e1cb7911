"""The work for a model: the instances, and the request that each kind of server takes."""

import io
import json
from base64 import b64encode
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

BINARY = "application/vnd.sagemaker-triton.binary+json"
SIDES = (768, 576)  # of a photo as a web page sends it
TWELVE_MEGAPIXELS = (4000, 3000)
SHORT = "A man is eating food."
WORDS = (
    "the",
    "man",
    "is",
    "eating",
    "food",
    "on",
    "a",
    "table",
    "and",
    "then",
    "he",
    "goes",
    "home",
    "to",
    "read",
    "a",
)


@dataclass(frozen=True)
class Workload:
    """`instances` are raw (image files, texts), or rows of a tensor; `binary`: send the tensor as bytes."""

    model: str
    media_type: str
    instances: tuple[bytes, ...] = ()
    tensor: NDArray[np.float32] | None = field(default=None, compare=False)
    binary: bool = False


@dataclass(frozen=True)
class Request:
    """One POST."""

    path: str
    body: bytes
    headers: dict[str, str]


@cache
def photo(width: int, height: int, seed: int = 0) -> bytes:
    """A JPEG with as many bytes as a photo of that size: smooth shapes with some noise."""
    rng = np.random.default_rng(seed)
    coarse = Image.fromarray(rng.integers(0, 255, (12, 16, 3), dtype=np.uint8))
    smooth = np.asarray(coarse.resize((width, height), Image.Resampling.BICUBIC), np.int16)
    noisy = (smooth + rng.integers(-9, 10, smooth.shape, dtype=np.int16)).clip(0, 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(noisy).save(buffer, "JPEG", quality=85)
    return buffer.getvalue()


def images(model: str, count: int = 1, size: tuple[int, int] = SIDES) -> Workload:
    """Different JPEGs."""
    return Workload(model, "image/jpeg", tuple(photo(*size, seed) for seed in range(count)))


def text(tokens: int) -> Workload:
    """A sentence of about ten tokens, or one of exactly so many ([CLS] and [SEP] among them)."""
    long = " ".join(WORDS[i % len(WORDS)] for i in range(tokens - 2))
    return Workload("bert", "text/plain", ((long if tokens > 16 else SHORT).encode(),))


def tensor(count: int, binary: bool = False) -> Workload:
    """One row of floats for `mean`."""
    row = np.random.default_rng(0).random((1, count), dtype=np.float32)
    return Workload("mean", "application/json", tensor=row, binary=binary)


def instances_json(work: Workload) -> list[Any]:
    """The instances for {"instances": …}."""
    if work.tensor is not None:
        return list(work.tensor.tolist())
    if work.media_type == "text/plain":
        return [body.decode() for body in work.instances]
    return [{"b64": b64encode(body).decode()} for body in work.instances]


def kserve(work: Workload, length_header: Callable[[int], dict[str, str]]) -> tuple[bytes, dict[str, str]]:
    """Body and headers for a tensor in KServe v2; `length_header` makes the headers of the binary form."""
    if work.tensor is None:
        raise TypeError(f"{work.model} is not asked for a tensor here")
    spec: dict[str, Any] = {"name": "x", "shape": list(work.tensor.shape), "datatype": "FP32"}
    if not work.binary:
        body = json.dumps({"inputs": [spec | {"data": work.tensor.ravel().tolist()}]}).encode()
        return body, {"Content-Type": "application/json"}
    blob = work.tensor.tobytes()
    output = {"name": "y", "parameters": {"binary_data": True}}
    header = json.dumps(
        {"inputs": [spec | {"parameters": {"binary_data_size": len(blob)}}], "outputs": [output]}
    ).encode()
    return header + blob, length_header(len(header))


def sagemaker(work: Workload) -> tuple[bytes, dict[str, str]]:
    """A tensor for Triton's SageMaker endpoint."""
    return kserve(work, lambda size: {"Content-Type": f"{BINARY};json-header-size={size}"})


def triton_http(work: Workload) -> tuple[bytes, dict[str, str]]:
    """A tensor for Triton's HTTP endpoint."""
    return kserve(
        work, lambda size: {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(size)}
    )
