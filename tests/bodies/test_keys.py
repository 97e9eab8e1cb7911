"""Refuse unknown keys by name, and never take JSON for a text."""

import json
from typing import Any

import pytest

from clients.base import ModelClient
from serving.bodies.reading import read_body
from serving.codecs import JSON, Limits
from serving.decoding import Decoder
from serving.errors import DecodingError, InvalidRequest, ServingError
from serving.request import Batch, Request
from serving.served_model import ServedModel
from tests.bodies.test_tensors import MODEL
from tests.inference.test_service import Brightness, Length, client_of

pytestmark = pytest.mark.unit

FORM = "application/x-www-form-urlencoded"  # curl's default


class Flower(Length):
    """A client that says itself what an instance has."""

    codec = JSON
    keys = ("petal", "sepal")


def batches(served: ServedModel, content_type: str, data: bytes) -> list[Batch]:
    body = read_body(content_type, data)
    return list(body.batches(served, Request("id", body), None, Decoder(Limits())))


def refused(served: ServedModel, document: Any) -> ServingError:
    with pytest.raises(ServingError) as raised:
        batches(served, "application/json", json.dumps(document).encode())
    return raised.value


@pytest.mark.parametrize(
    ("document", "names"),
    [
        ({"instances": ["a"], "parametrs": {}}, ["'parametrs'", "'parameters'"]),
        ({"instances": ["a"], "top_k": 3}, ["'top_k'", "'parameters'"]),
        ({"instances": ["a"], "payload": {}}, ["'payload'", "instances"]),
        ({"instances": ["a"], "inputs": "b"}, ["'inputs'", "instances"]),
        ({"modelname": "m", "payload": "a", "text": "b"}, ["'text'", "payload"]),
        ({"payload": {"img": "QQ==", "size": 3}}, ["'size'", "img"]),
    ],
)
def test_an_unknown_key_of_a_document_is_refused_with_the_known_ones(document: Any, names: list[str]) -> None:
    err = refused(client_of(1, Length), document)
    assert isinstance(err, InvalidRequest)
    assert [name for name in names if name not in str(err)] == []


@pytest.mark.parametrize(
    ("client", "instance", "name"),
    [
        (Length, {"text": "a", "text_pair": "b"}, "text_pair"),
        (Length, {"texts": "a"}, "texts"),
        (Brightness, {"b64": "QQ==", "size": 3}, "size"),
        (Flower, {"petal": 1, "sepals": 2}, "sepals"),
    ],
)
def test_an_unknown_key_of_an_instance_is_refused_with_its_place(
    client: type[ModelClient], instance: Any, name: str
) -> None:
    err = refused(client_of(1, client), {"instances": [instance]})
    assert isinstance(err, DecodingError)
    assert (err.instance, err.field) == (0, "instances")
    assert f"'{name}'" in str(err)


def test_a_client_that_takes_any_json_takes_any_key() -> None:
    class Anything(Length):
        codec = JSON

    assert len(batches(client_of(1, Anything), FORM, b'{"instances": [{"a": 1, "b": 2}]}')) == 1


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"parametrs": {}}, "parametrs"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "dat": [1]}]}, "dat"),
        ({"outputs": [{"name": "y", "binary_data": True}]}, "binary_data"),
    ],
)
def test_an_unknown_key_of_a_tensor_request_is_refused(change: dict[str, Any], name: str) -> None:
    err = refused(MODEL, {"id": "1", "model_name": "m", "parameters": {}, "inputs": []} | change)
    assert f"'{name}'" in str(err)


@pytest.mark.parametrize("content_type", ["", FORM, "application/octet-stream"])
@pytest.mark.parametrize("data", [b'["a text"]', b'\n ["a", "b"]', b'"a text"'])
def test_json_that_does_not_say_so_is_no_text(content_type: str, data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        batches(client_of(1, Length), content_type, data)


@pytest.mark.parametrize(
    ("content_type", "data"), [("text/plain", b'["a"]'), (FORM, b"[CLS] a [SEP]"), (FORM, b'"a" and "b"'), ("", b"5")]
)
def test_a_text_may_begin_as_json_does(content_type: str, data: bytes) -> None:
    (batch,) = batches(client_of(1, Length), content_type, data)
    assert batch.inputs[0].array().tolist() == [[len(data)]]
