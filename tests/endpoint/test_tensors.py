"""Tensor requests to any model, with or without a client; compared with what was sent and with Triton itself."""

import io
from typing import Any

import numpy as np
import pytest
import requests
from numpy.typing import NDArray

from tests.support.harness import Server

pytestmark = pytest.mark.stack

BINARY = "application/vnd.sagemaker-triton.binary+json"


def outputs(reply: requests.Response) -> dict[str, Any]:
    assert reply.status_code == 200, reply.text
    return {tensor["name"].removeprefix("out_"): tensor for tensor in reply.json()["outputs"]}


def test_the_latest_version_answers_unless_one_is_named(server: Server) -> None:
    body = {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]}]}
    latest = server.post(json={"model_name": "scale", **body})
    first = server.post(json={"model_name": "scale", "model_version": 1, **body})
    assert (latest.headers["X-Model-Version"], latest.json()["outputs"][0]["data"]) == ("2", [3])
    assert (first.headers["X-Model-Version"], first.json()["outputs"][0]["data"]) == ("1", [2])


@pytest.mark.parametrize(
    "array", [np.array([[1, 2]], np.float32), np.array([1, 2], np.float32), np.array([[1, 2]], np.float64)]
)
def test_npy_goes_in_and_comes_out_when_accept_asks(server: Server, array: NDArray[Any]) -> None:
    body = io.BytesIO()
    np.save(body, array)
    headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
    reply = server.post(params={"model_name": "scale"}, data=body.getvalue(), headers=headers)
    result = np.load(io.BytesIO(reply.content))
    assert result.dtype == np.float32
    assert result.tolist() == [[3, 6]]


def test_npy_comes_back_as_json_by_default(server: Server) -> None:
    body = io.BytesIO()
    np.save(body, np.array([[1, 2]], np.float32))
    reply = server.post(
        params={"model_name": "scale"}, data=body.getvalue(), headers={"Content-Type": "application/x-npy"}
    )
    assert outputs(reply)["y"] == {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [3, 6]}


def test_a_model_with_a_client_takes_tensors_too(server: Server) -> None:
    described = {model["name"]: model for model in server.get("/models").json()["models"]}
    spec = described["resnet"]["inputs"][0]
    body = {
        "inputs": [
            {
                "name": spec["name"],
                "shape": [1, *spec["shape"]],
                "datatype": spec["datatype"],
                "data": [127] * int(np.prod(spec["shape"])),
            }
        ]
    }
    reply = server.post(params={"model_name": "resnet"}, json=body)
    assert reply.status_code == 200
    assert reply.json()["outputs"][0]["shape"] == [1, 10]
