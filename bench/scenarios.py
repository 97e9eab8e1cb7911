"""The eight scenarios: each is a model, a body, and the number of callers that send it."""

import json
from base64 import b64encode
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PHOTO = ROOT / "model_repository" / "efficientnet" / "example.jpg"
SHORT = "A man is eating food."  # 8 tokens
LONG = " ".join(["food"] * 126)  # 128 tokens with [CLS] and [SEP]
# as many floats as a 224x224 image has
ROW = np.random.default_rng(0).random(150_528, dtype=np.float32)
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="


@dataclass(frozen=True)
class Scenario:
    """One scenario. `plain` is the body for the bare server, the peers and the limit. For tensors,
    `body` and `media_type` follow KServe's protocol; otherwise `body` is the same as `plain`."""

    name: str
    model: str
    callers: int
    media_type: str
    body: bytes
    plain: bytes

    @property
    def is_tensor(self) -> bool:
        return self.model == "mean"

    def as_base64(self) -> bytes:
        """Return the body for the peers, which accept base64."""
        return json.dumps({"body": b64encode(self.plain).decode()}).encode()


def scenarios() -> list[Scenario]:
    """Return all scenarios."""
    photo = PHOTO.read_bytes()
    return [
        _same("photo, 1 caller", "efficientnet", 1, "image/jpeg", photo),
        _same("photo, 8 callers", "efficientnet", 8, "image/jpeg", photo),
        _same("boxes on a photo, 8 callers", "yolov4_tiny", 8, "image/jpeg", photo),
        _same("text of 8 tokens, 1 caller", "bert", 1, "text/plain", SHORT.encode()),
        _same("text of 8 tokens, 16 callers", "bert", 16, "text/plain", SHORT.encode()),
        _same("text of 128 tokens, 16 callers", "bert", 16, "text/plain", LONG.encode()),
        _json("4 floats as JSON, 8 callers", ROW[:4]),
        _binary("150,528 floats in binary, 8 callers", ROW),
    ]


def _same(name: str, model: str, callers: int, media_type: str, body: bytes) -> Scenario:
    return Scenario(name, model, callers, media_type, body, body)


def _spec(row: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"name": "x", "shape": [1, row.size], "datatype": "FP32"}


def _json(name: str, row: np.ndarray[Any, Any]) -> Scenario:
    tensor = _spec(row) | {"data": row.tolist()}
    body = json.dumps({"inputs": [tensor]}).encode()
    return Scenario(name, "mean", 8, "application/json", body, body)


def _binary(name: str, row: np.ndarray[Any, Any]) -> Scenario:
    blob = row.tobytes()
    spec = _spec(row) | {"parameters": {"binary_data_size": len(blob)}}
    header = json.dumps({"inputs": [spec]}).encode()
    return Scenario(name, "mean", 8, f"{BINARY}{len(header)}", header + blob, blob)
