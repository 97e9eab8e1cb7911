"""Tests the errors for callers' mistakes over real HTTP: their form, their status, their code and
the names in their text."""

import json
import re
from typing import Any

import numpy as np
import pytest
from PIL import Image

from serving.codecs import IMAGE, Limits
from serving.errors import DecodingError
from tests.support.harness import Server, b64, encoded, expect_error, npy, png_that_claims

pytestmark = pytest.mark.stack

INVALID, UNDECODABLE = "400 invalid_request", "400 decoding_error"
ATTRIBUTES, TARGET = "X-Amzn-SageMaker-Custom-Attributes", "X-Amzn-SageMaker-Target-Model"
LIMIT = 25 * 2**20


def picture(format: str = "PNG", size: tuple[int, int] = (40, 30), **options: Any) -> bytes:
    return encoded(Image.effect_noise(size, 80).convert("RGB"), format, **options)


def animation() -> bytes:
    frames = [Image.new("RGB", (8, 8), colour) for colour in ("red", "blue")]
    return encoded(frames[0], "GIF", save_all=True, append_images=frames[1:])


def raw(data: bytes, kind: str, model: str = "resnet", **headers: str) -> dict[str, Any]:
    return {
        "params": {"model_name": model},
        "data": data,
        "headers": {"Content-Type": kind, **headers},
    }


def body(document: Any, model: str = "resnet") -> dict[str, Any]:
    return {"params": {"model_name": model}, "json": document}


def instance(value: Any, **keys: Any) -> dict[str, Any]:
    return body({"instances": [b64(picture()), value], **keys})


def tensor(**fields: Any) -> dict[str, Any]:
    return body(
        {"inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [1]} | fields]},
        "scale",
    )


def spoilt(mistake: str) -> dict[str, Any]:
    return body({"instances": [0], "parameters": {"mistake": mistake}}, "sleeper")


JSON, NPY, FORM = "application/json", "application/x-npy", "application/x-www-form-urlencoded"
PNG = {"headers": {"Accept": "image/png"}}
GOOD = b64(picture())
PAYLOAD = {"modelname": "bert", "payload": {"text": "a"}}
CASES: dict[str, tuple[dict[str, Any], str, tuple[str, ...]]] = {
    "an empty object": (body({}), INVALID, ("instances", "inputs", "payload")),
    "no instance": (body({"instances": []}), INVALID, ("'instances'",)),
    "instances that are no list": (body({"instances": "x"}), INVALID, ("'instances'",)),
    "parameters that are no object": (instance(GOOD, parameters=3), INVALID, ("'parameters'",)),
    "a parameter out of range": (instance(GOOD, parameters={"top_k": 0}), INVALID, ("'top_k'",)),
    "a parameter of another type": (
        instance(GOOD, parameters={"top_k": "many"}),
        INVALID,
        ("'top_k'",),
    ),
    "an unknown parameter": (instance(GOOD, parameters={"topk": 1}), INVALID, ("'topk'", "top_k")),
    "a misspelt key": (instance(GOOD, parametrs={}), INVALID, ("'parametrs'", "'parameters'")),
    "a payload beside instances": (instance(GOOD, payload={}), INVALID, ("'payload'", "instances")),
    "inputs beside instances": (instance(GOOD, inputs="b"), INVALID, ("'inputs'", "instances")),
    "a key beside the payload": ({"json": PAYLOAD | {"text": "b"}}, INVALID, ("'text'", "payload")),
    "a key within the payload": (
        {"json": {"payload": {"img": "QQ==", "size": 3}}},
        INVALID,
        ("'size'", "img"),
    ),
    "a parameter outside of parameters": (
        instance(GOOD, top_k=1),
        INVALID,
        ("'top_k'", "'parameters'"),
    ),
    "a name that is no string": (body({"model_name": 5, "instances": [1]}), INVALID, ("name",)),
    "a name that is a list": (body({"modelname": [], "instances": [1]}), INVALID, ("name",)),
    "two names": (
        body({"model_name": "a", "modelname": "b", "instances": [1]}),
        INVALID,
        ("'a'", "'b'"),
    ),
    "a version that is no number": (
        body({"model_version": [1], "instances": [1]}),
        INVALID,
        ("model_version",),
    ),
    "a version that is a truth": (
        body({"model_version": True, "instances": [1]}),
        INVALID,
        ("model_version",),
    ),
    "a version with a fraction": (
        body({"model_version": 1.5, "instances": [1]}),
        INVALID,
        ("model_version",),
    ),
    **{
        f"as JSON: {data.decode()}": (raw(data, JSON), INVALID, ("JSON",))
        for data in (b'{"a": [', b"['a']", b"5")
    },
    "an empty body": ({"params": {"model_name": "resnet"}}, INVALID, ()),
    "a form without a file": (
        {"files": {"top_k": (None, "1")}, "params": {"model_name": "resnet"}},
        INVALID,
        (),
    ),
    "no base64": (instance({"b64": "!!!"}), UNDECODABLE, ("instance 1", "'instances.b64'")),
    "no image": (instance(b64(b"no picture at all")), UNDECODABLE, ("instance 1",)),
    "an image of no bytes": (instance({"b64": ""}), UNDECODABLE, ("instance 1",)),
    "an unknown key of an instance": (
        instance({"image": "x"}),
        UNDECODABLE,
        ("instance 1", "'image'", "b64"),
    ),
    "a text for an image": (instance("text"), UNDECODABLE, ("instance 1", "b64")),
    "null for an image": (instance(None), UNDECODABLE, ("instance 1", "b64")),
    "half a PNG": (instance(b64(picture()[:400])), UNDECODABLE, ("instance 1",)),
    "an image too large": (
        instance(b64(png_that_claims(10**5, 10**5))),
        UNDECODABLE,
        ("instance 1", "10000000000"),
    ),
    "an animation": (instance(b64(animation())), UNDECODABLE, ("instance 1",)),
    "half a raw PNG": (raw(picture()[:300], "image/png"), UNDECODABLE, ("instance 0", "'body'")),
    "the sample's shape": (
        body({"modelname": "resnet", "payload": {"img": "%"}}),
        UNDECODABLE,
        ("'payload.img.b64'",),
    ),
    "a text that is not UTF-8": (raw(b"\xff\xfe", "text/plain", "bert"), UNDECODABLE, ("UTF-8",)),
    "a broken npy file": (raw(b"\x93NUMPY broken", NPY, "scale"), UNDECODABLE, ("npy",)),
    "a pickle in npy": (
        raw(npy(np.array([{}]), allow_pickle=True), NPY, "scale"),
        UNDECODABLE,
        ("pickle",),
    ),
    "npy of another datatype": (raw(npy(np.array(["a"])), NPY, "scale"), INVALID, ("FP32",)),
    "npy for many inputs": (raw(npy(np.array(["a"])), NPY, "identity"), INVALID, ("13",)),
    "several models and no name": (
        {"json": {"instances": ["x"]}},
        INVALID,
        ("bert", "identity", "scale", "yolov5"),
    ),
    "an unknown model": (
        body({"instances": ["x"]}, "resnext"),
        "404 model_not_found",
        ("'resnext'", "resnet", "bert"),
    ),
    "an unknown version": (
        body({"model_version": 9, "instances": ["x"]}, "scale"),
        "404 version_not_found",
        ("'scale'", "'9'", "1, 2"),
    ),
    "too large": (
        raw(b"x" * (LIMIT + 1), ""),
        "413 payload_too_large",
        ("25 MB", "SERVE_MAX_BODY_MB"),
    ),
    "a PDF": (
        raw(b"%PDF-1.7", "application/pdf"),
        "415 unsupported_media_type",
        ("application/pdf", "image/*"),
    ),
    "a picture as text": (
        raw(picture(), "image/png", "bert"),
        "415 unsupported_media_type",
        ("image/png", "text/"),
    ),
    "a picture of two": (body({"instances": [GOOD] * 2}, "yolov5") | PNG, "406 not_acceptable", ()),
    "a picture in another format": (
        body({"instances": [GOOD]}, "yolov5") | {"headers": {"Accept": "image/webp, image/gif"}},
        "406 not_acceptable",
        ("image/jpeg or image/png",),
    ),
    "a picture of a text": (body({"instances": ["a"]}, "bert") | PNG, "406 not_acceptable", ()),
    "a field twice": (
        {"files": [("text", (None, "a")), ("text", (None, "b"))], "params": {"model_name": "bert"}},
        INVALID,
        ("'text'",),
    ),
    "an unknown field": (raw(b"text=a&times=2", FORM, "bert"), INVALID, ("'times'",)),
    "instances without a client": (body({"instances": [1]}, "scale"), INVALID, ("KServe", "npy")),
    "an unknown tensor": (tensor(name="z"), INVALID, ("'z'",)),
    "an input twice": (
        body({"inputs": tensor()["json"]["inputs"] * 2}, "identity"),
        INVALID,
        ("twice",),
    ),
    "a misspelt key beside tensors": (
        body({"inputs": [], "parametrs": {}}, "scale"),
        INVALID,
        ("'parametrs'",),
    ),
    "instances beside tensors": (
        body({"inputs": [], "instances": [1]}, "scale"),
        INVALID,
        ("'instances'", "'inputs'"),
    ),
    "a misspelt key of a tensor": (tensor(dat=[1]), INVALID, ("'dat'",)),
    "a misspelt key of an output": (
        body({"inputs": [], "outputs": [{"name": "y", "binary_data": True}]}, "scale"),
        INVALID,
        ("'binary_data'",),
    ),
    "data that do not fill the shape": (tensor(shape=[1, 2]), INVALID, ("shape",)),
    "a batch too large": (tensor(shape=[9, 1], data=[1] * 9), INVALID, ("batch-size",)),
    "another datatype": (tensor(datatype="INT32"), INVALID, ("INT32", "FP32")),
    "data of another type": (tensor(data=["a"]), INVALID, ("'x'", "FP32", "'a'")),
    "data that are no FP16": (tensor(datatype="FP16", data=["a"]), INVALID, ("'x'", "FP16")),
    "a tensor that is no object": (body({"inputs": ["a"]}, "scale"), INVALID, ("'x'", "'a'")),
    "a client that raises": (
        spoilt("raise"),
        "500 inference_failed",
        ("'sleeper'", "postprocess", "KeyError"),
    ),
    "a client that loses": (spoilt("lose"), "500 inference_failed", ("'sleeper'", "0", "1")),
    "a model that fails": (
        body({"instances": [-1]}, "sleeper"),
        "500 inference_failed",
        ("it was told to fail",),
    ),
    "a model that fails at length": (
        body({"instances": [-5000]}, "sleeper"),
        "500 inference_failed",
        ("fail",),
    ),
    "a model that fails with tensors": (
        body(
            {"inputs": [{"name": "seconds", "shape": [1], "datatype": "FP32", "data": [-1]}]},
            "sleeper",
        ),
        "500 inference_failed",
        ("it was told to fail",),
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_answer_a_mistake_with_its_code_and_helpful_names(server: Server, case: str) -> None:
    request, error, names = CASES[case]
    status, code = error.split()
    reply = server.post(**request)
    expect_error(reply, int(status), code, *names)
    assert not re.search(r"model\.py|At:|secret", reply.text)


@pytest.mark.parametrize(
    ("attributes", "target", "query", "document"),
    [
        ("model_name=resnet", None, {"model_name": "bert"}, {}),
        ("model_name=resnet", "bert", {}, {}),
        ("", "resnet", {}, {"model_name": "bert"}),
        ("", None, {"model_name": "resnet"}, {"modelname": "bert"}),
        ("model_version=1", None, {"model_name": "scale"}, {"model_version": 2}),
    ],
)
def test_refuse_two_sources(
    server: Server, attributes: str, target: str | None, query: Any, document: Any
) -> None:
    headers = {ATTRIBUTES: attributes, TARGET: target}
    reply = server.post(params=query, json={"instances": ["x"], **document}, headers=headers)
    expect_error(reply, 400, "invalid_request")


@pytest.mark.parametrize("kind", ["png", "jpeg"])
def test_answer_400_for_an_image_sent_as_json(server: Server, kind: str) -> None:
    data = {"png": b"\x89PNG\r\n\x1a\n", "jpeg": b"\xff\xd8\xff\xe0"}[kind] + bytes(20)
    reply = server.post(
        params={"model_name": "resnet"}, data=data, headers={"Content-Type": "application/json"}
    )
    expect_error(reply, 400, "invalid_request", f"image/{kind}")


@pytest.mark.parametrize(
    "kind", ["", "application/x-www-form-urlencoded", "application/octet-stream"]
)
@pytest.mark.parametrize("data", [b'["a text"]', b'\n ["a", "b"]', b'"a text"'])
def test_refuse_json_without_its_content_type_as_text(
    server: Server, kind: str, data: bytes
) -> None:
    expect_error(server.post(**raw(data, kind, "bert")), 400, "invalid_request")


@pytest.mark.parametrize(
    ("kind", "data"),
    [
        ("text/plain; charset=utf-8", b'["a"]'),
        ("text/plain", b'{"a": "text about JSON"}'),
        ("application/x-www-form-urlencoded", b"[CLS] a [SEP]"),
        ("application/x-www-form-urlencoded", b'"a" and "b"'),
        ("", b"5"),
    ],
)
def test_accept_a_text_that_begins_like_json(server: Server, kind: str, data: bytes) -> None:
    assert server.post(**raw(data, kind, "bert")).status_code == 200


def test_suggest_lines_for_several_documents(server: Server) -> None:
    reply = server.post(**raw(b'{"instances": ["a"]}\n{"instances": ["b"]}', JSON, "bert"))
    expect_error(reply, 400, "invalid_request", "JSON lines", "application/jsonlines")


def test_suggest_model_name_for_model_in_the_query(server: Server) -> None:
    expect_error(
        server.post(params={"model": "resnet"}, data=b"x"), 400, "invalid_request", "model_name"
    )


def test_name_the_shape_for_tensors_of_another_rank(server: Server) -> None:
    tensor = {"name": "x", "shape": [4], "datatype": "FP32", "data": [1, 2, 3, 4]}
    expect_error(
        server.post(params={"model_name": "scale"}, json={"inputs": [tensor]}),
        400,
        "invalid_request",
        "[-1, -1]",
    )
    expect_error(
        server.post(params={"model_name": "scale"}, json={"inputs": []}),
        400,
        "invalid_request",
        "[-1, -1]",
    )


def test_read_a_body_at_the_limit(server: Server) -> None:
    whole = json.dumps({"inputs": [], "padding": ""}).encode().ljust(LIMIT)
    assert server.post(params={"model_name": "scale"}, data=whole).status_code == 400


def test_answer_400_for_an_image_with_a_side_that_jpeg_cannot_have() -> None:
    IMAGE.from_bytes(encoded(Image.new("L", (65_500, 1))), Limits())
    with pytest.raises(DecodingError, match=r"65501×1 pixels.*65500"):
        IMAGE.from_bytes(encoded(Image.new("L", (65_501, 1))), Limits())
