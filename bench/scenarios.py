"""Defines the scenarios: their requests, and how many callers send them."""

import json
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
PHOTO = ROOT / "model_repository" / "efficientnet" / "example.jpg"
SHORT = "A man is eating food."  # 8 tokens
LONG = " ".join(["food"] * 126)  # 128 tokens with [CLS] and [SEP]
# as many floats as an image of 224×224 pixels has
ROW = np.random.default_rng(0).random(150_528, dtype=np.float32)
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size="


# The mean lengths in words of the queries and of the documents of BEIR's data sets (Thakur et al.
# 2021, arXiv:2104.08663, table 1)
QUERIES = (6, 11, 3, 9, 18, 11, 193, 7, 9, 10, 5, 9, 8, 20, 12)
DOCUMENTS = (56, 161, 232, 79, 46, 132, 167, 292, 129, 11, 50, 176, 85, 85, 214)
BEIR = (*QUERIES, *DOCUMENTS)
Value = TypeVar("Value")


@dataclass(frozen=True)
class Request:
    """A request. `plain` is the body for the bare server, the other servers and the limit (the
    networks alone, without a server). For tensors, `body` and `media_type` follow KServe's
    protocol; otherwise `body` is the same as `plain`. `version` is sent only to servers that have
    versions."""

    model: str
    media_type: str
    body: bytes
    plain: bytes
    version: str = ""

    def as_base64(self) -> bytes:
        """Return the body for the servers that accept only base64."""
        return json.dumps({"body": b64encode(self.plain).decode()}).encode()


@dataclass(frozen=True)
class Scenario:
    """Defines a scenario: `callers` concurrent callers send the `requests` in turns. If `share` is
    not 0, the requests are sent in an open loop, at this share of the rate that the server reached
    in a closed loop."""

    name: str
    callers: int
    requests: tuple[Request, ...]
    share: float = 0.0

    @property
    def is_tensor(self) -> bool:
        return self.requests[0].model == "mean"

    def models(self) -> set[str]:
        return {request.model for request in self.requests}


def scenarios() -> list[Scenario]:
    """Return all scenarios."""
    photo = _same("efficientnet", "image/jpeg", PHOTO.read_bytes())
    boxes = replace(photo, model="yolov4_tiny")
    short = _text(SHORT)
    texts = tuple(_text(" ".join(["food"] * count)) for count in _shuffled(BEIR))
    mixed = _shuffled([photo] * 8 + [boxes] + [short] * 4)
    floats = _json(ROW[:4])
    return [
        Scenario("photo, 1 caller", 1, (photo,)),
        Scenario("photo, 8 callers", 8, (photo,)),
        Scenario("boxes on a photo, 8 callers", 8, (boxes,)),
        Scenario("text of 8 tokens, 1 caller", 1, (short,)),
        Scenario("text of 8 tokens, 16 callers", 16, (short,)),
        Scenario("text of 128 tokens, 16 callers", 16, (_text(LONG),)),
        *(
            Scenario(f"texts of mixed lengths, {name}", callers, texts)
            for callers, name in ((1, "1 caller"), (16, "16 callers"), (64, "64 callers"))
        ),
        Scenario("8 photos, 1 with boxes and 4 short texts, 16 callers", 16, tuple(mixed)),
        *(
            Scenario(f"photo, open loop at {share:.0%}", 64, (photo,), share)
            for share in (0.5, 0.8, 0.95)
        ),
        Scenario("4 floats as JSON, 8 callers", 8, (floats,)),
        Scenario("4 floats as JSON, version 1, 8 callers", 8, (replace(floats, version="1"),)),
        Scenario("150,528 floats in binary, 8 callers", 8, (_binary(ROW),)),
    ]


def _shuffled(values: Sequence[Value]) -> list[Value]:
    """Return the values in an order that is random but always the same."""
    return Random(0).sample(values, len(values))


def _same(model: str, media_type: str, body: bytes) -> Request:
    """Return a request with the same body for all servers."""
    return Request(model, media_type, body, body)


def _text(text: str) -> Request:
    return _same("bert", "text/plain", text.encode())


def _spec(row: np.ndarray[Any, Any]) -> dict[str, Any]:
    return {"name": "x", "shape": [1, row.size], "datatype": "FP32"}


def _json(row: np.ndarray[Any, Any]) -> Request:
    tensor = _spec(row) | {"data": row.tolist()}
    return _same("mean", "application/json", json.dumps({"inputs": [tensor]}).encode())


def _binary(row: np.ndarray[Any, Any]) -> Request:
    blob = row.tobytes()
    spec = _spec(row) | {"parameters": {"binary_data_size": len(blob)}}
    header = json.dumps({"inputs": [spec]}).encode()
    return Request("mean", f"{BINARY}{len(header)}", header + blob, blob)
