"""What a request asks for is read from its headers and its body, whatever the Content-Type says."""

from typing import Any

import pytest

from serving.bodies.invocation import (
    Instances,
    NpyBody,
    Target,
    TensorBody,
    choose_target,
    read_attributes,
    read_body,
    target_in,
)
from serving.errors import InvalidRequest

TYPES = [
    "application/json",
    "application/octet-stream",
    "application/x-www-form-urlencoded",
    "text/plain",
    "image/png",
    "",
]


@pytest.mark.parametrize("content_type", TYPES)
def test_json_is_recognised_under_any_content_type(content_type: str) -> None:
    body, target = read_body(content_type, b' {"model_name": "m", "model_version": 2, "instances": ["a", "b"]}')
    assert isinstance(body, Instances)
    assert [item.value for item in body.items] == ["a", "b"]
    assert (target.name, target.version) == ("m", "2")


@pytest.mark.parametrize("content_type", TYPES)
def test_kserve_json_is_recognised_under_any_content_type(content_type: str) -> None:
    sent = b'{"inputs": []}'
    body, _ = read_body(content_type, sent)
    assert body == TensorBody(sent, None, {"inputs": []})


def test_the_sample_s_shape_is_one_instance() -> None:
    body, target = read_body("", b'{"modelname": "resnet", "payload": {"img": "QQ=="}}')
    assert isinstance(body, Instances)
    assert body.sample_shape
    assert [item.value for item in body.items] == [{"b64": "QQ=="}]
    assert target.name == "resnet"


@pytest.mark.parametrize("text", [b"{not json", b'{"a": "text about JSON"}', b"plain"])
def test_a_plain_text_may_look_like_json(text: bytes) -> None:
    body, _ = read_body("text/plain; charset=utf-8", text)
    assert isinstance(body, Instances)
    assert (body.items[0].raw, body.media_type) == (text, "text/plain")


def test_npy_is_recognised_by_type_or_by_its_first_bytes() -> None:
    assert read_body("application/x-npy", b"x")[0] == NpyBody(b"x")
    assert read_body("application/octet-stream", b"\x93NUMPY")[0] == NpyBody(b"\x93NUMPY")


@pytest.mark.parametrize(
    ("header", "pairs"),
    [
        ("model_name=resnet;model_version=1", {"model_name": "resnet", "model_version": "1"}),
        ("model_name=resnet, model_version=1", {"model_name": "resnet", "model_version": "1"}),
        ("c000b4f9-df62-4c85-a0bf-7c525f9104a4", {}),
        ("a=b=c; =x;;top_k=3", {"a": "b=c", "top_k": "3"}),
        ("", {}),
    ],
)
def test_custom_attributes_are_pairs_and_the_rest_is_the_caller_s(header: str, pairs: dict[str, str]) -> None:
    assert read_attributes(header) == pairs


def test_the_first_place_that_names_a_model_counts() -> None:
    targets = [Target("a"), Target("b", "m"), Target("c", "m", "1"), Target("d", None, "1")]
    assert choose_target(targets) == ("m", "1")
    assert choose_target([Target("a")]) == (None, None)


def test_two_names_or_versions_that_disagree_are_refused_with_both_places() -> None:
    with pytest.raises(InvalidRequest, match="a says 'm' and b says 'n'"):
        choose_target([Target("a", "m"), Target("b", "n")])
    with pytest.raises(InvalidRequest, match="two model versions: a says '1' and b says '2'"):
        choose_target([Target("a", "m", "1"), Target("b", "m", "2")])


@pytest.mark.parametrize(
    "values", [{"model_name": 1}, {"modelname": []}, {"model_version": True}, {"model_version": 1.5}]
)
def test_a_name_or_version_of_the_wrong_kind_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="the body"):
        target_in("the body", values)
