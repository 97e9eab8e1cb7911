"""Serves as the baseline of the comparison: a minimal Flask front for the same tritonserver, on
gunicorn, with one persistent channel per worker.

It trusts its callers. It has no limits, no versions, no error handling and no metrics, and serves
only the four models of the scenarios.
"""

import os
from functools import cache
from pathlib import Path
from typing import Any

import orjson
from flask import Flask, Response, request
from tritonclient.grpc import InferenceServerClient, InferInput, InferRequestedOutput

from bench.work import KINDS, Model

DATATYPES = {"float32": "FP32", "int64": "INT64", "uint8": "UINT8"}
OUTPUTS = {
    "efficientnet": "logits",
    "yolov4_tiny": "output0",
    "bert": "sentence_embedding",
    "mean": "y",
}
app = Flask(__name__)


@cache
def channel() -> InferenceServerClient:
    """Return this worker's channel, which is created at the first call, after the fork."""
    return InferenceServerClient(os.environ["BENCH_TRITON"])


@cache
def model(name: str) -> Model:
    """Return the code that prepares and finishes the model's requests, created once per worker."""
    return KINDS[name](Path(os.environ["BENCH_REPOSITORY"]) / name)


@app.get("/ping")
def ping() -> str:
    return ""


@app.post("/<name>")
def invoke(name: str) -> Response:
    inputs: list[Any] = []
    for key, array in model(name).prepare(request.get_data()).items():
        tensor = InferInput(key, list(array.shape), DATATYPES[array.dtype.name])
        tensor.set_data_from_numpy(array)
        inputs.append(tensor)
    output = OUTPUTS[name]
    reply = channel().infer(name, inputs, outputs=[InferRequestedOutput(output)])
    prediction = model(name).finish({output: reply.as_numpy(output)})
    return Response(orjson.dumps(prediction), mimetype="application/json")
