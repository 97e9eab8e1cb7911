"""Tests calls of models over real HTTP, in every form of request."""

import base64
import gzip
import io
import json
from typing import Any

import httpx
import numpy as np
import pytest
import requests
from numpy.typing import NDArray

from tests.support.digits import held_out
from tests.support.harness import Server, encoded, expect_error, npy

pytestmark = pytest.mark.stack

PNG = {"Content-Type": "image/png"}
TEXT = "A man is eating food."
ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"


def predictions(reply: requests.Response) -> list[Any]:
    assert reply.status_code == 200, reply.text
    results: list[Any] = reply.json()["predictions"]
    return results


@pytest.fixture(scope="module")
def digits() -> list[bytes]:
    return [encoded(image) for image, _ in held_out(3)]


def top(prediction: Any) -> str:
    label: str = prediction["classes"][0]["label"]
    return label


def test_classify_held_out_digits_sent_raw(server: Server) -> None:
    named, right = {"model_name": "resnet"}, 0
    for image, label in held_out(120):
        reply = server.post(params=named, data=encoded(image), headers=PNG)
        right += top(predictions(reply)[0]) == str(label)
    assert right >= 0.97 * 120


def test_get_the_same_prediction_for_an_image_in_every_form(
    server: Server, digits: list[bytes]
) -> None:
    data, name = digits[0], {"model_name": "resnet"}
    (raw,) = predictions(server.post(params=name, data=data, headers=PNG))
    encoded = base64.b64encode(data).decode()
    sample = server.post(json={"modelname": "resnet", "payload": {"img": encoded}})
    form = requests.Request("POST", server.url, files={"image": data}).prepare()
    assert isinstance(form.body, bytes)
    packed = {"Content-Type": form.headers["Content-Type"], "Content-Encoding": "gzip"}
    kinds = ("application/octet-stream", "application/x-image", "file-path/raw-bytes")
    forms: list[dict[str, Any]] = [
        *({"params": name, "data": data, "headers": {"Content-Type": kind}} for kind in kinds),
        {"params": name, "data": gzip.compress(form.body), "headers": packed},
        {"params": name, "files": {"image": ("a.png", data, "image/png")}},
        {"files": {"image": data, "model_name": (None, "resnet")}},
        {"json": {**name, "instances": [{"b64": encoded}]}},
    ]
    for request in forms:
        assert predictions(server.post(**request)) == [raw]
    assert sample.json() == {"modelname": "resnet", "result": raw}
    assert set(raw) == {"classes"}
    assert set(raw["classes"][0]) == {"label", "class_id", "score"}


def test_read_several_files_of_a_form_as_instances(server: Server, digits: list[bytes]) -> None:
    files = [("image", (f"{n}.png", digits[n], "image/png")) for n in range(3)]
    several = predictions(
        server.post(params={"model_name": "resnet"}, files=files, data={"top_k": "1"})
    )
    named = {"model_name": "resnet"}
    single = [
        predictions(server.post(params=named, data=digit, headers=PNG))[0] for digit in digits
    ]
    assert [top(p) for p in several] == [top(p) for p in single]
    assert [len(p["classes"]) for p in several] == [1, 1, 1]


@pytest.mark.parametrize(
    "array",
    [np.array([[1, 2]], np.float32), np.array([1, 2], np.float32), np.array([[1, 2]], np.float64)],
)
def test_read_npy_and_return_json_or_npy_by_accept(server: Server, array: NDArray[Any]) -> None:
    kind = "application/x-npy"
    call: dict[str, Any] = {"params": {"model_name": "scale"}, "data": npy(array)}
    result = np.load(
        io.BytesIO(server.post(**call, headers={"Content-Type": kind, "Accept": kind}).content)
    )
    assert (result.dtype, result.tolist()) == (np.float32, [[3, 6]])
    (output,) = server.post(**call, headers={"Content-Type": kind}).json()["outputs"]
    assert output == {"name": "y", "datatype": "FP32", "shape": [1, 2], "data": [3, 6]}


@pytest.mark.parametrize(
    "source",
    [
        {"headers": {ATTRIBUTES: "model_name=bert;model_version=1"}},
        {"headers": {ATTRIBUTES: "trace=7, model_name=bert, model_version=1"}},
        {"headers": {"X-Amzn-SageMaker-Target-Model": "bert"}},
        {"params": {"model_name": "bert", "model_version": "1"}},
        {"data": {"text": TEXT, "model_name": "bert"}},
        {"data": {"model_version": "1", "modelname": "bert", "text": TEXT, "normalize": "1"}},
    ],
)
def test_name_a_model_in_any_of_the_places(server: Server, source: dict[str, Any]) -> None:
    headers = source.get("headers", {})
    headers = headers if "data" in source else {"Content-Type": "text/plain", **headers}
    reply = server.post(data=source.get("data", TEXT), params=source.get("params"), headers=headers)
    assert reply.status_code == 200, reply.text
    assert (reply.headers["X-Model-Name"], reply.headers["X-Model-Version"]) == ("bert", "1")
    assert reply.headers.get(ATTRIBUTES) == source.get("headers", {}).get(ATTRIBUTES)
    assert (reply.json()["model_name"], reply.json()["model_version"]) == ("bert", "1")


def test_list_models_with_their_inputs_and_parameters(server: Server) -> None:
    listed = {model["name"]: model for model in server.get("/models").json()["models"]}
    assert {name: model["client"] for name, model in listed.items()} == {
        "resnet": "resnet",
        "yolov5": "yolov5",
        "bert": "bert",
        "identity": None,
        "scale": None,
        "sleeper": "client.py",
    }
    assert [v["version"] for v in listed["scale"]["versions"]] == ["1", "2"]
    assert {v["state"] for model in listed.values() for v in model["versions"]} == {"READY"}
    assert listed["scale"]["inputs"] == [
        {"name": "x", "datatype": "FP32", "shape": [-1], "optional": False}
    ]
    assert "top_k" in {p["name"] for p in listed["resnet"]["parameters"]}


@pytest.mark.parametrize("lines", [2, 3, 8])
def test_refuse_custom_attributes_that_no_reply_can_repeat(server: Server, lines: int) -> None:
    body = json.dumps({"model_name": "scale", "instances": "not looked at"})
    with httpx.Client(base_url=server.url) as client:
        headers = [(ATTRIBUTES, f"a{line}={'x' * 7000}") for line in range(lines)]
        headers.append(("Content-Type", "application/json"))
        reply = client.post("/invocations", headers=headers, content=body)
    expect_error(reply, 400, "invalid_request", ATTRIBUTES)
    assert "Server-Timing" not in reply.headers
    assert ATTRIBUTES not in reply.headers
