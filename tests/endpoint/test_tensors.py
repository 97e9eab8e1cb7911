"""Tensor requests to any model, with or without a client; compared with what was sent and with Triton itself."""

import io
import json
from typing import Any

import numpy as np
import pytest
import requests
from numpy.typing import NDArray

from tests.support.harness import DATATYPES, IDENTITY_VALUES, Server

pytestmark = pytest.mark.stack

BINARY = "application/vnd.sagemaker-triton.binary+json"


def identity_request(binary: tuple[str, ...] = ()) -> tuple[dict[str, Any], bytes]:
    """One input of every datatype; those in `binary` as bytes behind the JSON."""
    inputs, blobs = [], b""
    for datatype, values in IDENTITY_VALUES.items():
        tensor: dict[str, Any] = {"name": f"in_{datatype}", "shape": [1, 2], "datatype": datatype}
        if datatype in binary:
            blob = raw(datatype, values)
            tensor["parameters"] = {"binary_data_size": len(blob)}
            blobs += blob
        else:
            tensor["data"] = values
        inputs.append(tensor)
    return {"inputs": inputs}, blobs


def raw(datatype: str, values: list[Any]) -> bytes:
    if datatype == "BYTES":
        texts = [str(value).encode() for value in values]
        return b"".join(len(text).to_bytes(4, "little") + text for text in texts)
    names = {"FP16": "float16", "FP32": "float32", "FP64": "float64", "BOOL": "bool"}
    return np.array(values, dtype=names.get(datatype, datatype.lower())).tobytes()


def outputs(reply: requests.Response) -> dict[str, Any]:
    assert reply.status_code == 200, reply.text
    return {tensor["name"].removeprefix("out_"): tensor for tensor in reply.json()["outputs"]}


def test_every_datatype_of_the_onnx_platform_is_tried() -> None:
    assert set(IDENTITY_VALUES) == set(DATATYPES)


@pytest.mark.parametrize(
    "content_type", ["application/json", "application/octet-stream", "application/x-www-form-urlencoded", ""]
)
def test_kserve_json_comes_back_in_json_for_all_datatypes(server: Server, content_type: str) -> None:
    document, _ = identity_request()
    reply = server.post(
        params={"model_name": "identity"}, data=json.dumps(document), headers={"Content-Type": content_type}
    )
    assert {name: tensor["data"] for name, tensor in outputs(reply).items()} == IDENTITY_VALUES
    assert reply.headers["Content-Type"] == "application/json"


def test_binary_inputs_and_json_outputs_mix_for_all_datatypes(server: Server) -> None:
    document, blobs = identity_request(binary=("FP32", "FP64", "INT64", "BYTES", "BOOL", "UINT8"))
    header = json.dumps(document).encode()
    reply = server.post(
        params={"model_name": "identity"},
        data=header + blobs,
        headers={"Content-Type": f"{BINARY};json-header-size={len(header)}"},
    )
    assert {name: tensor["data"] for name, tensor in outputs(reply).items()} == IDENTITY_VALUES


def test_binary_outputs_carry_their_own_header_size(server: Server) -> None:
    document, blobs = identity_request(binary=tuple(IDENTITY_VALUES))
    document["parameters"] = {"binary_data_output": True}
    header = json.dumps(document).encode()
    reply = server.post(
        params={"model_name": "identity"},
        data=header + blobs,
        headers={"Content-Type": f"{BINARY};json-header-size={len(header)}"},
    )
    kind, _, size = reply.headers["Content-Type"].partition(";json-header-size=")
    assert kind == BINARY
    rest = reply.content[int(size) :]
    for tensor in json.loads(reply.content[: int(size)])["outputs"]:
        datatype, length = tensor["datatype"], tensor["parameters"]["binary_data_size"]
        assert rest[:length] == raw(datatype, IDENTITY_VALUES[datatype])
        rest = rest[length:]
    assert rest == b""


def test_header_size_zero_is_the_raw_input_of_a_model_with_one(server: Server) -> None:
    reply = server.post(
        params={"model_name": "scale"},
        data=np.array([1, 2], np.float32).tobytes(),
        headers={"Content-Type": f"{BINARY};json-header-size=0"},
    )
    size = int(reply.headers["Content-Type"].rpartition("=")[2])
    assert np.frombuffer(reply.content[size:], dtype=np.float32).tolist() == [3, 6]


def test_the_reply_is_the_very_bytes_of_triton_s_own_endpoint(server: Server) -> None:
    body = json.dumps(
        {"id": "7", "inputs": [{"name": "x", "shape": [2, 2], "datatype": "FP32", "data": [[1, 2], [3, 4]]}]}
    )
    theirs = server.triton().post("/v2/models/scale/infer", content=body)
    ours = server.post(params={"model_name": "scale"}, data=body)
    assert ours.content == theirs.content


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
