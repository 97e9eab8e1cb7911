"""Recognise what a body holds by its first bytes, whatever its Content-Type says; unpack bodies that come packed."""

import gzip
import zlib
from pathlib import Path
from typing import Any

import pytest

from clients.base import Model, TensorSpec
from clients.table import Client
from serving.bodies.csv_rows import CsvBody
from serving.bodies.flat import FlatBody
from serving.bodies.instances import Instances
from serving.bodies.json_lines import JsonLines
from serving.bodies.kserve import TensorBody
from serving.bodies.npy import NpyBody
from serving.bodies.reading import read_attributes, read_body, unpacked
from serving.budget import NEVER
from serving.errors import InvalidRequest, PayloadTooLarge, UnsupportedMediaType
from serving.request import Target

pytestmark = pytest.mark.unit

TYPES = ["application/json", "application/octet-stream", "application/x-www-form-urlencoded", "text/plain", ""]
BINARY = "application/vnd.sagemaker-triton.binary+json"


@pytest.mark.parametrize("content_type", TYPES)
def test_json_is_recognised_under_any_content_type(content_type: str) -> None:
    body = read_body(content_type, b' {"model_name": "m", "model_version": 2, "instances": ["a", "b"]}')
    assert isinstance(body, Instances)
    assert [item.value for item in body.items] == ["a", "b"]
    assert (body.target().name, body.target().version) == ("m", "2")
    assert isinstance(read_body(content_type, b'{"inputs": []}'), TensorBody)


def test_the_sample_s_shape_is_one_instance() -> None:
    body = read_body("", b'{"modelname": "resnet", "payload": {"img": "QQ=="}}')
    assert isinstance(body, Instances)
    assert body.sample_shape
    assert [item.value for item in body.items] == [{"b64": "QQ=="}]
    assert body.target().name == "resnet"


@pytest.mark.parametrize("text", [b"{not json", b'{"a": "text about JSON"}', b"plain"])
def test_a_plain_text_may_look_like_json(text: bytes) -> None:
    body = read_body("text/plain; charset=utf-8", text)
    assert isinstance(body, Instances)
    assert (body.items[0].raw, body.media_type) == (text, "text/plain")


def test_npy_and_json_lines_are_recognised() -> None:
    assert read_body("application/x-npy", b"x") == NpyBody(b"x")
    assert read_body("application/octet-stream", b"\x93NUMPY") == NpyBody(b"\x93NUMPY")
    assert read_body("application/x-ndjson", b"1\n2") == JsonLines(b"1\n2")


def test_inputs_that_are_no_tensors_are_inputs_of_a_flat_body() -> None:
    assert read_body("", b'{"inputs": "a text"}') == FlatBody({"inputs": "a text"})


@pytest.mark.parametrize("size", ["", "-1", "1.5", "x", "3", "9" * 5000, "\u0663"])
def test_a_header_size_that_is_no_number_within_the_body_is_refused(size: str) -> None:
    with pytest.raises(InvalidRequest, match="json-header-size"):
        read_body(f"{BINARY};json-header-size={size}", b"{}")


@pytest.mark.parametrize("body", [b"[" * 300_000, b'{"a":' * 300_000, b'{"inputs": ' + b"[" * 100_000])
def test_json_that_is_nested_too_deep_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequest):
        read_body("application/json", body)


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


def test_all_places_that_name_a_model_agree() -> None:
    agreed = Target.agreed([Target("a"), Target("b", "m"), Target("c", "m", "1"), Target("d", None, "1")])
    assert (agreed.name, agreed.version) == ("m", "1")
    assert Target.agreed([Target("a")]).name is None


def test_two_names_or_versions_that_disagree_are_refused_with_both_places() -> None:
    with pytest.raises(InvalidRequest, match=r"'m'.*'n'"):
        Target.agreed([Target("a", "m"), Target("b", "n")])
    with pytest.raises(InvalidRequest, match=r"'1'.*'2'"):
        Target.agreed([Target("a", "m", "1"), Target("b", "m", "2")])


@pytest.mark.parametrize(
    "values", [{"model_name": 1}, {"modelname": []}, {"model_version": True}, {"model_version": 1.5}]
)
def test_a_name_or_version_of_the_wrong_kind_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest):
        Target.within("the body", values)


@pytest.mark.parametrize(
    ("content_type", "header"),
    [("text/csv", None), ("text/csv; charset=utf-8; header=present", True), ("Text/CSV;header=absent", False)],
)
def test_csv_is_read_as_rows_whatever_it_begins_with(content_type: str, header: bool | None) -> None:
    assert read_body(content_type, b'{"a",1') == CsvBody(b'{"a",1', header)


def test_a_quoted_cell_goes_on_over_lines() -> None:
    client = Client(Model("m", Path("/nonexistent"), (TensorSpec("X", "FP32", (2,)),), (), 8))
    items = CsvBody(b'1,"2\n3"\n\r\n4,5\r\n6,"', header=False).items(client, NEVER)
    assert [item.raw for item in items] == [b'1,"2\n3"\n', b"4,5\r\n", b'6,"']


BODY = b'{"inputs": []}' * 100
LIMIT = len(BODY)


def packed(data: bytes) -> bytes:
    """Pack without the time, which would be in the name of a test."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize("encoding", ["", "identity", " Identity "])
def test_a_body_without_an_encoding_stays_as_it_is(encoding: str) -> None:
    assert unpacked(b"\x1f\x8b", encoding, LIMIT) == b"\x1f\x8b"


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("gzip", packed(BODY)),
        ("GZIP", packed(BODY)),
        ("x-gzip", packed(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("gzip", packed(BODY[:500]) + packed(BODY[500:])),
    ],
)
def test_what_was_packed_comes_out_up_to_the_very_limit(encoding: str, data: bytes) -> None:
    assert unpacked(data, encoding, LIMIT) == BODY


def test_nothing_packed_is_nothing() -> None:
    assert unpacked(packed(b""), "gzip", LIMIT) == b""
    assert unpacked(b"", "gzip", LIMIT) == b""


@pytest.mark.parametrize("data", [packed(BODY), packed(BODY[:700]) * 2 + packed(b"1"), packed(bytes(10**8))])
def test_a_byte_more_than_the_limit_is_too_large(data: bytes) -> None:
    with pytest.raises(PayloadTooLarge):
        unpacked(data, "gzip", LIMIT - 1)


@pytest.mark.parametrize("data", [b"hello", packed(BODY)[:-9], packed(BODY) + b"rest", BODY])
def test_what_cannot_be_unpacked_is_the_caller_s_mistake(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        unpacked(data, "gzip", LIMIT * 10)


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "none"])
def test_an_unknown_encoding_is_refused(encoding: str) -> None:
    with pytest.raises(UnsupportedMediaType):
        unpacked(BODY, encoding, LIMIT)
