"""Every error that a caller can make or meet, over real HTTP: status, code, and that the text helps."""

import base64
import io
import json
import re
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image

from tests.support.harness import Server, png_that_claims

pytestmark = pytest.mark.stack

BINARY = "application/vnd.sagemaker-triton.binary+json"


def picture(format: str = "PNG", size: tuple[int, int] = (40, 30), **options: Any) -> bytes:
    buffer = io.BytesIO()
    Image.effect_noise(size, 80).convert("RGB").save(buffer, format, **options)
    return buffer.getvalue()


def b64(data: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(data).decode()}


def expect(reply: requests.Response, status: int, code: str, *words: str) -> None:
    """The one shape, and each of these words in the text."""
    assert reply.status_code == status, reply.text
    assert reply.headers["Content-Type"] == "application/json"
    body = reply.json()
    assert set(body) == {"error", "code", "request_id"}
    assert body["code"] == code
    assert body["request_id"] == reply.headers["X-Request-Id"] != ""
    assert "Traceback" not in body["error"]
    assert not [word for word in words if word not in body["error"]], body["error"]


def animation() -> bytes:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    buffer = io.BytesIO()
    frames[0].save(buffer, "GIF", save_all=True, append_images=frames[1:])
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, ["instances", "inputs", "payload"]),
        ({"instances": []}, ["'instances'", "at least one"]),
        ({"instances": "x"}, ["'instances'", "list"]),
        ({"instances": [b64(picture())], "parameters": 3}, ["'parameters'", "object"]),
        ({"instances": [b64(picture())], "parameters": {"top_k": 0}}, ["'top_k'", "from 1 to"]),
        ({"instances": [b64(picture())], "parameters": {"top_k": "many"}}, ["'top_k'", "whole number"]),
        ({"instances": [b64(picture())], "parameters": {"topk": 1}}, ["'topk'", "top_k"]),
        ({"instances": [b64(picture())], "parametrs": {}}, ["'parametrs'", "did you mean 'parameters'?"]),
        ({"instances": [b64(picture())], "top_k": 1}, ["'top_k'", "stand in 'parameters'"]),
        ({"model_name": 5, "instances": [1]}, ["name", "string"]),
        ({"model_version": [1], "instances": [1]}, ["model_version", "whole number"]),
    ],
)
def test_a_json_body_that_makes_no_sense_is_a_400_that_says_why(server: Server, body: Any, words: list[str]) -> None:
    expect(server.post(params={"model_name": "resnet"}, json=body), 400, "invalid_request", *words)


@pytest.mark.parametrize("data", [b'{"instances": [', b'["a"]', b"{'a': 1}", b"5", b"nonsense"])
def test_what_claims_to_be_json_and_is_not_an_object_is_a_400(server: Server, data: bytes) -> None:
    reply = server.post(params={"model_name": "resnet"}, data=data, headers={"Content-Type": "application/json"})
    expect(reply, 400, "invalid_request", "JSON")


@pytest.mark.parametrize(
    ("instance", "words"),
    [
        ({"b64": "!!!"}, ["instance 1", "'instances.b64'", "base64"]),
        ({"b64": base64.b64encode(b"no picture at all").decode()}, ["instance 1", "not an image", "JPEG"]),
        ({"b64": ""}, ["instance 1", "0 bytes"]),
        ({"image": "x"}, ["instance 1", "unknown key 'image'", "b64"]),
        ("text", ["instance 1", "b64"]),
        (None, ["instance 1", "b64", "null"]),
        (b64(picture()[:400]), ["instance 1", "truncated"]),
        (b64(picture("JPEG")[:400]), ["instance 1", "truncated"]),
        (b64(png_that_claims(100_000, 100_000)), ["instance 1", "10000000000 pixels", "limit"]),
        (b64(animation()), ["instance 1", "more than one frame"]),
    ],
)
def test_an_instance_that_cannot_be_decoded_is_named(server: Server, instance: Any, words: list[str]) -> None:
    body = {"instances": [b64(picture()), instance]}
    expect(server.post(params={"model_name": "resnet"}, json=body), 400, "decoding_error", *words)


@pytest.mark.parametrize(
    "data", [picture()[:300], png_that_claims(100_000, 100_000), animation(), b"\xff\xd8\xff\xe0 not a JPEG"]
)
def test_a_raw_image_that_cannot_be_decoded_is_refused(server: Server, data: bytes) -> None:
    reply = server.post(params={"model_name": "resnet"}, data=data, headers={"Content-Type": "image/png"})
    expect(reply, 400, "decoding_error", "instance 0", "'body'")


def test_the_sample_s_shape_names_its_field(server: Server) -> None:
    reply = server.post(json={"modelname": "resnet", "payload": {"img": "%"}})
    expect(reply, 400, "decoding_error", "'payload.img.b64'", "base64")


def test_text_that_is_not_utf8_is_refused(server: Server) -> None:
    reply = server.post(params={"model_name": "bert"}, data=b"\xff\xfe", headers={"Content-Type": "text/plain"})
    expect(reply, 400, "decoding_error", "UTF-8")


def test_an_empty_body_is_a_400(server: Server) -> None:
    expect(server.post(params={"model_name": "resnet"}), 400, "invalid_request", "empty")


def test_a_form_without_a_file_is_a_400(server: Server) -> None:
    reply = server.post(files={"top_k": (None, "1")}, params={"model_name": "resnet"})
    expect(reply, 400, "invalid_request", "no file")


def test_no_name_with_several_models_lists_them(server: Server) -> None:
    reply = server.post(json={"instances": ["x"]})
    expect(reply, 400, "invalid_request", "bert", "identity", "resnet", "scale", "yolov5")


@pytest.mark.parametrize(
    ("attributes", "target", "query", "body"),
    [
        ("model_name=resnet", None, {"model_name": "bert"}, {}),
        ("model_name=resnet", "bert", {}, {}),
        ("", "resnet", {}, {"model_name": "bert"}),
        ("", None, {"model_name": "resnet"}, {"modelname": "bert"}),
        ("model_version=1", None, {"model_name": "scale"}, {"model_version": 2}),
    ],
)
def test_two_places_that_disagree_are_a_400(
    server: Server, attributes: str, target: str | None, query: dict[str, str], body: dict[str, Any]
) -> None:
    headers = {"X-Amzn-SageMaker-Custom-Attributes": attributes, "X-Amzn-SageMaker-Target-Model": target}
    reply = server.post(params=query, json={"instances": ["x"], **body}, headers=headers)
    expect(reply, 400, "invalid_request", "two model", "says")


def test_an_unknown_model_is_a_404_with_the_names(server: Server) -> None:
    reply = server.post(json={"model_name": "resnext", "instances": ["x"]})
    expect(reply, 404, "model_not_found", "'resnext'", "resnet", "yolov5", "bert")


def test_an_unknown_version_is_a_404_with_the_versions(server: Server) -> None:
    reply = server.post(json={"model_name": "scale", "model_version": 9, "instances": ["x"]})
    expect(reply, 404, "version_not_found", "'scale'", "'9'", "1, 2")


def test_an_unknown_route_is_a_404(server: Server) -> None:
    expect(server.post("/predict"), 404, "not_found", "/predict", "/invocations")


@pytest.mark.parametrize(("method", "path"), [("GET", "/invocations"), ("DELETE", "/ping"), ("PUT", "/models")])
def test_a_wrong_method_is_a_405_with_the_right_ones(server: Server, method: str, path: str) -> None:
    reply = server.ask(method, path)
    expect(reply, 405, "method_not_allowed", path, method)
    assert method not in reply.headers["Allow"]


def test_a_body_over_the_limit_is_a_413_that_names_the_setting(server: Server) -> None:
    reply = server.post(params={"model_name": "resnet"}, data=b"x" * (25 * 1024 * 1024 + 1))
    expect(reply, 413, "payload_too_large", "25 MB", "SERVE_MAX_BODY_MB")


def test_a_body_to_an_unknown_route_is_a_404_with_the_routes(server: Server) -> None:
    expect(server.post("/predict", data=bytes(5000)), 404, "not_found", "/invocations")


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_an_image_as_json_is_a_400_with_its_content_type(server: Server, kind: str) -> None:
    data = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff\xe0"}[kind] + bytes(20)
    reply = server.post(params={"model_name": "resnet"}, data=data, headers={"Content-Type": "application/json"})
    expect(reply, 400, "invalid_request", f"image/{kind}")


def test_model_in_the_query_is_told_to_be_model_name(server: Server) -> None:
    expect(server.post(params={"model": "resnet"}, data=b"x"), 400, "invalid_request", "model_name")


def test_tensors_of_another_rank_or_none_get_what_the_model_takes(server: Server) -> None:
    tensor = {"name": "x", "shape": [4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    expect(server.post(params={"model_name": "scale"}, json={"inputs": [tensor]}), 400, "invalid_request", "[-1, -1]")
    expect(server.post(params={"model_name": "scale"}, json={"inputs": []}), 400, "invalid_request", "[-1, -1]")


def test_a_body_at_the_limit_is_read(server: Server) -> None:
    body = json.dumps({"inputs": [], "padding": ""}).encode()
    body = body[:-2] + b" " * (25 * 1024 * 1024 - len(body)) + body[-2:]
    assert server.post(params={"model_name": "scale"}, data=body).status_code == 400


def test_a_type_that_the_model_does_not_take_is_a_415(server: Server) -> None:
    reply = server.post(params={"model_name": "resnet"}, data=b"%PDF-1.7", headers={"Content-Type": "application/pdf"})
    expect(reply, 415, "unsupported_media_type", "application/pdf", "image/*", "application/json")
    reply = server.post(params={"model_name": "bert"}, data=picture(), headers={"Content-Type": "image/png"})
    expect(reply, 415, "unsupported_media_type", "image/png", "text/plain")


def test_a_picture_of_many_instances_or_of_a_text_is_a_406(server: Server) -> None:
    two = {"model_name": "yolov5", "instances": [b64(picture())] * 2}
    expect(server.post(json=two, headers={"Accept": "image/png"}), 406, "not_acceptable", "one image")
    one = {"model_name": "bert", "instances": ["a"]}
    expect(server.post(json=one, headers={"Accept": "image/png"}), 406, "not_acceptable", "no pictures")


def test_instances_for_a_model_without_a_client_say_what_to_send(server: Server) -> None:
    reply = server.post(json={"model_name": "scale", "instances": [1]})
    expect(reply, 400, "invalid_request", "no client", "KServe", "npy")


@pytest.mark.parametrize("size", ["", "x", "-1", "1.5", "999999999999999999999", "²"])
def test_a_wrong_header_size_is_a_400_and_the_server_lives_on(server: Server, size: str) -> None:
    headers = {"Content-Type": f"{BINARY};json-header-size={size}".encode()}
    reply = server.post(params={"model_name": "scale"}, data=b"{}", headers=headers)
    expect(reply, 400, "invalid_request", "json-header-size")
    assert server.ping() == 200


@pytest.mark.parametrize(
    ("tensor", "words"),
    [
        ({"name": "z", "shape": [1, 1], "datatype": "FP32", "data": [1]}, ["'z'"]),
        ({"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1]}, ["shape"]),
        ({"name": "x", "shape": [9, 1], "datatype": "FP32", "data": [1] * 9}, ["batch-size"]),
        ({"name": "x", "shape": [1, 1], "datatype": "INT32", "data": [1]}, ["INT32", "FP32"]),
        ({"name": "x", "shape": [1, 1], "datatype": "FP32", "data": ["a"]}, ["'x'", "do not fit FP32", "'a'"]),
        ({"name": "x", "shape": [1, 1], "datatype": "FP16", "data": ["a"]}, ["'x'", "do not fit FP16"]),
        ("x", ["'inputs'", "object"]),
    ],
)
def test_a_wrong_tensor_is_a_400_in_triton_s_words(server: Server, tensor: Any, words: list[str]) -> None:
    expect(server.post(params={"model_name": "scale"}, json={"inputs": [tensor]}), 400, "invalid_request", *words)


def test_an_npy_file_that_is_none_or_does_not_fit_is_a_400(server: Server) -> None:
    headers = {"Content-Type": "application/x-npy"}
    reply = server.post(params={"model_name": "scale"}, data=b"\x93NUMPY broken", headers=headers)
    expect(reply, 400, "decoding_error", "npy")
    words, pickled = io.BytesIO(), io.BytesIO()
    np.save(words, np.array(["a"]))
    np.save(pickled, np.array([{}]), allow_pickle=True)
    reply = server.post(params={"model_name": "scale"}, data=words.getvalue(), headers=headers)
    expect(reply, 400, "invalid_request", "FP32")
    reply = server.post(params={"model_name": "scale"}, data=pickled.getvalue(), headers=headers)
    expect(reply, 400, "decoding_error", "pickle")
    reply = server.post(params={"model_name": "identity"}, data=words.getvalue(), headers=headers)
    expect(reply, 400, "invalid_request", "13 inputs")


def test_a_failure_inside_triton_is_a_500_without_a_trace(server: Server) -> None:
    reply = server.post(json={"model_name": "sleeper", "instances": [-1]})
    expect(reply, 500, "inference_failed", "it was told to fail")
    assert not re.search(r"model\.py|At:", reply.text)
    tensors = {"inputs": [{"name": "seconds", "shape": [1], "datatype": "FP32", "data": [-1]}]}
    reply = server.post(params={"model_name": "sleeper"}, json=tensors)
    expect(reply, 500, "inference_failed", "it was told to fail")
    assert not re.search(r"model\.py|At:", reply.text)


@pytest.mark.parametrize(
    ("mistake", "words"), [("raise", ["postprocess", "KeyError"]), ("lose", ["0 predictions", "1"])]
)
def test_a_client_that_fails_is_a_500_that_keeps_its_secrets(server: Server, mistake: str, words: list[str]) -> None:
    reply = server.post(json={"model_name": "sleeper", "instances": [0], "parameters": {"mistake": mistake}})
    expect(reply, 500, "inference_failed", "'sleeper'", *words)
    assert "secret" not in reply.text
