"""What a caller writes and nothing reads is refused by its name, and JSON is never taken for a text."""

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
    ("document", "told"),
    [
        ({"instances": ["a"], "parametrs": {}}, "unknown key 'parametrs'; did you mean 'parameters'? known: "),
        ({"instances": ["a"], "top_k": 3}, "(a model's parameters stand in 'parameters'): unknown key 'top_k'; known:"),
        ({"instances": ["a"], "payload": {}}, "unknown key 'payload'; known: instances, model_name, "),
        ({"instances": ["a"], "inputs": "b"}, "unknown key 'inputs'; known: instances, model_name, "),
        ({"modelname": "m", "payload": "a", "text": "b"}, "the body with 'payload'"),
        ({"payload": {"img": "QQ==", "size": 3}}, "'payload': unknown key 'size'; known: img"),
    ],
)
def test_a_document_s_unknown_key_is_refused_with_those_that_there_are(document: Any, told: str) -> None:
    err = refused(client_of(1, Length), document)
    assert isinstance(err, InvalidRequest) and told in str(err)


@pytest.mark.parametrize(
    ("client", "instance", "told"),
    [
        (Length, {"text": "a", "text_pair": "b"}, "unknown key 'text_pair'; known: text"),
        (Length, {"texts": "a"}, "unknown key 'texts'; did you mean 'text'?"),
        (Brightness, {"b64": "QQ==", "size": 3}, "unknown key 'size'; known: b64"),
        (Flower, {"petal": 1, "sepals": 2}, "unknown key 'sepals'; did you mean 'sepal'? known: petal, sepal"),
    ],
)
def test_an_instance_s_unknown_key_is_refused_with_its_place(
    client: type[ModelClient], instance: Any, told: str
) -> None:
    err = refused(client_of(1, client), {"instances": [instance]})
    assert isinstance(err, DecodingError)
    assert str(err).startswith(f"instance 0, field 'instances': {told}")


def test_a_client_that_takes_any_json_takes_any_key() -> None:
    class Anything(Length):
        codec = JSON

    assert len(batches(client_of(1, Anything), FORM, b'{"instances": [{"a": 1, "b": 2}]}')) == 1


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"parametrs": {}}, "the body with 'inputs': unknown key 'parametrs'; did you mean 'parameters'?"),
        ({"inputs": [{"name": "x", "shape": [1], "datatype": "FP32", "dat": [1]}]}, "input 'x': unknown key 'dat'; "),
        ({"outputs": [{"name": "y", "binary_data": True}]}, "output 'y': unknown key 'binary_data'; known: name, para"),
    ],
)
def test_a_tensor_request_s_unknown_key_is_refused(change: dict[str, Any], told: str) -> None:
    assert told in str(refused(MODEL, {"id": "1", "model_name": "m", "parameters": {}, "inputs": []} | change))


@pytest.mark.parametrize("content_type", ["", FORM, "application/octet-stream"])
@pytest.mark.parametrize("data", [b'["a text"]', b'\n ["a", "b"]', b'"a text"'])
def test_json_that_does_not_say_so_is_no_text(content_type: str, data: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"the body is JSON without 'instances': send .* Content-Type: text/plain"):
        batches(client_of(1, Length), content_type, data)


@pytest.mark.parametrize(
    ("content_type", "data"), [("text/plain", b'["a"]'), (FORM, b"[CLS] a [SEP]"), (FORM, b'"a" and "b"'), ("", b"5")]
)
def test_a_text_may_begin_as_json_does(content_type: str, data: bytes) -> None:
    (batch,) = batches(client_of(1, Length), content_type, data)
    assert batch.inputs[0].array().tolist() == [[len(data)]]
