"""Tests the bodies that SDKs and MLflow send: lists without keys, data frames, and rows in LibSVM's
format."""

import json
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from clients.base import Model, ModelClient, TensorSpec
from serving.bodies.reading import read_body
from serving.codecs import IMAGE, ROW
from serving.errors import DecodingError, InvalidRequest, UnsupportedMediaType
from serving.headers import JSON_TYPE, LIBSVM
from serving.model_status.served_model import ServedModel
from serving.request import Request
from tests.bodies.echo import Echo, Ones
from tests.support.harness import b64, encoded

pytestmark = pytest.mark.unit


class Cells(Ones):
    """A client whose predictions are the instances themselves."""

    codec = ROW
    absent = ("0", "")

    def postprocess(self, outputs: Any, inputs: Any, instances: Any, parameters: Any) -> list[Any]:
        return list(instances)


class Pictures(Ones):
    codec = IMAGE


def served(client: type[ModelClient] | None, *inputs: TensorSpec, batch: int = 4) -> ServedModel:
    model = Model("m", Path("m"), inputs or (TensorSpec("x", "FP32", (1,)),), (), batch)
    return ServedModel(model, client(model) if client else None)


def answer(model: ServedModel, data: Any, kind: str = JSON_TYPE) -> Any:
    sent = data if isinstance(data, bytes) else json.dumps(data).encode()
    reply = read_body(kind, sent).bind(model, Request("id")).answer(Echo())
    document = json.loads(reply.content)
    return document.get("predictions", document.get("outputs"))


TABLE = served(Cells)
PAIR = TensorSpec("x", "FP32", (2,))


@pytest.mark.parametrize(
    ("body", "rows"),
    [
        ([[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ([1, 2], [[1, 2]]),
        ([{"a": 1}], [{"a": 1}]),
        ({"dataframe_records": [{"a": 1}]}, [{"a": 1}]),
        (
            {"dataframe_split": {"columns": ["b", "a"], "data": [[1, 2]], "index": [7]}},
            [{"b": 1, "a": 2}],
        ),
    ],
)
def test_read_rows_of_a_table(body: Any, rows: Any) -> None:
    assert answer(TABLE, body) == rows


def test_read_cells_in_order_if_the_columns_are_numbered() -> None:
    body = {"dataframe_split": {"columns": [0, 1], "data": [[1, 2], [3, 4]]}}
    assert answer(TABLE, body) == [[1, 2], [3, 4]]


@pytest.mark.parametrize("kind", LIBSVM)
def test_read_rows_of_libsvm(kind: str) -> None:
    rows = b"1 0:1.5 1:-2 # a comment\n\n0:3\n-1\n"
    assert answer(TABLE, rows, kind) == [["1.5", "-2"], ["3", ""], ["0", ""]]


@pytest.mark.parametrize("index", [b"2", b"-1", b"2147483648", b"9" * 30, b"x", b""])
def test_refuse_an_index_of_no_column(index: bytes) -> None:
    with pytest.raises(DecodingError, match=r"index of a column; there are 2"):
        answer(TABLE, b"1 0:1\n1 " + index + b":1\n", "text/libsvm")


def test_refuse_a_cell_of_libsvm_without_an_index() -> None:
    with pytest.raises(DecodingError, match="'5' is not INDEX:VALUE"):
        answer(TABLE, b"1 0:2 5\n", "text/libsvm")


def test_refuse_libsvm_for_other_models() -> None:
    with pytest.raises(UnsupportedMediaType):
        answer(served(Ones), b"1 0:1\n", "text/libsvm")


@pytest.mark.parametrize(
    "body", [[[1.5, 2]], [1.5, 2], {"inputs": [[1.5, 2]]}, {"inputs": {"x": [[1.5, 2]]}}]
)
def test_make_a_list_the_only_input(body: Any) -> None:
    (output,) = answer(served(None, PAIR), body)
    assert (output["shape"], output["data"]) == ([1, 2], [1.5, 2])


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([[1], [2, 3], []], "same length"),
        ([[[[1]]]], "expected"),
        ([["a", "b"]], "do not fit FP32"),
        ({"inputs": {"z": [1]}}, "'z'"),
    ],
)
def test_refuse_lists_that_cannot_be_an_input(body: Any, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        answer(served(None, PAIR), body)


def test_refuse_a_list_for_several_inputs() -> None:
    with pytest.raises(InvalidRequest, match=r"2 inputs \(x, y\)"):
        answer(served(None, PAIR, TensorSpec("y", "FP32", (2,))), [1])


def test_read_an_image_in_a_string_of_base64() -> None:
    picture = b64(encoded(Image.new("RGB", (2, 2))))["b64"]
    assert answer(served(Pictures), picture) == [1.0]
    assert answer(served(Pictures), [picture, picture]) == [1.0, 1.0]


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ([], "empty list"),
        ({"dataframe_split": {"columns": ["a"], "data": [[1, 2]]}}, "2 cells"),
        ({"dataframe_split": {"columns": ["a"]}}, "data"),
        ({"dataframe_split": {"columns": ["a", "a"], "data": [[1, 2]]}}, "a column twice"),
        ({"dataframe_split": {"columns": [1, "1"], "data": [[1, 2]]}}, "a column twice"),
        ({"dataframe_split": {"columns": ["a"], "data": [[1]], "dtype": 1}}, "'dtype'"),
        ({"dataframe_records": []}, "empty list"),
    ],
)
def test_explain_wrong_tables(body: Any, text: str) -> None:
    with pytest.raises((InvalidRequest, DecodingError), match=text):
        answer(TABLE, body)
