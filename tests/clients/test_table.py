"""Tests the client for tables: cells of every datatype, names of columns and classes, and model
folders that are refused."""

from pathlib import Path
from typing import Any

import lightgbm
import numpy as np
import orjson
import pandas as pd
import pytest

from clients.base import Model, TensorSpec
from clients.table import Client
from serving.codecs import ROW, Limits
from serving.errors import DecodingError, InvalidRequest

pytestmark = pytest.mark.unit

FLOATS = (TensorSpec("X", "FP32", (2,)),)
EACH = (
    TensorSpec("age", "FP32", (1,)),
    TensorSpec("job", "BYTES", (1,)),
    TensorSpec("paid", "BOOL", ()),
)
CLASSES = (TensorSpec("label", "INT64", (1,)), TensorSpec("probabilities", "FP32", (2,)))


def client_of(
    inputs: tuple[TensorSpec, ...] = FLOATS,
    outputs: tuple[TensorSpec, ...] = CLASSES,
    folder: Path = Path("/nonexistent"),
    max_batch_size: int = 8,
    **parameters: str,
) -> Client:
    return Client(Model("table", folder, inputs, outputs, max_batch_size, parameters))


def written(folder: Path, **files: str) -> Path:
    for name, content in files.items():
        (folder / f"{name}.txt").write_text(content)
    return folder


def answers(client: Client, **outputs: Any) -> list[Any]:
    arrays = {name: np.array(values) for name, values in outputs.items()}
    return client.postprocess(arrays, {}, [None] * len(next(iter(arrays.values()))), {})


def test_fill_each_column_s_input_in_its_datatype() -> None:
    client = client_of(EACH)
    assert client.columns == ("age", "job", "paid")
    tensors = client.prepare([[1, "a", True], {"paid": "0", "age": "2.5", "job": "ö"}], {})
    columns = [tensors[name].tolist() for name in client.columns]
    assert columns == [[[1.0], [2.5]], [[b"a"], ["ö".encode()]], [True, False]]
    assert {name: array.dtype.str for name, array in tensors.items()} == {
        "age": "<f4",
        "job": "|O",
        "paid": "|b1",
    }


def test_split_a_row_over_inputs_of_several_columns() -> None:
    client = client_of((TensorSpec("a", "FP64", (2,)), TensorSpec("b", "INT8", (1,))))
    tensors = client.prepare([["1", 2, 3], [4, 5.5, "6.0"]], {})
    assert tensors["a"].tolist() == [[1.0, 2.0], [4.0, 5.5]]
    assert tensors["b"].tolist() == [[3], [6]]


@pytest.mark.parametrize(
    ("datatype", "cell"),
    [
        ("FP32", "inf"),
        ("FP32", "4_1"),
        ("INT64", "4_1"),
        ("FP16", 1e6),
        ("FP64", None),
        ("FP64", "nan"),
        ("INT8", 128),
        ("INT64", 1.5),
        ("INT64", "9" * 5000),
        ("BOOL", "maybe"),
        ("BOOL", "true      or not"),
        ("FP32", "true      or not"),
        ("BOOL", orjson.loads(b"[" * 1015 + b"]" * 1015)),
        ("BYTES", 3),
    ],
)
def test_name_a_wrong_cell(datatype: str, cell: Any) -> None:
    client = client_of((TensorSpec("X", datatype, (1,)),))
    good = "a" if datatype == "BYTES" else 1
    with pytest.raises(DecodingError, match="'X'"):
        client.prepare([[good], [cell]], {})


def test_keep_all_digits_of_whole_numbers() -> None:
    tensors = client_of((TensorSpec("id", "INT64", (1,)),)).prepare(
        [[2**62 + 1], [str(2**62 + 1)]], {}
    )
    assert tensors["id"].tolist() == [[2**62 + 1]] * 2
    assert (
        client_of((TensorSpec("x", "FP32", (1,)),)).prepare([["True"], ["3.4028235e38"]], {})["x"][
            1
        ]
        > 3.4e38
    )


@pytest.mark.parametrize("datatype", ["FP32", "INT64", "BOOL"])
def test_accept_booleans_as_pandas_writes_them(datatype: str) -> None:
    cells = pd.DataFrame([[True, False]]).to_csv(index=False, header=False).strip().split(",")
    client = client_of((TensorSpec("X", datatype, (2,)),))
    assert (client.prepare([cells], {})["X"].tolist(), client.header(cells)) == ([[1, 0]], None)


def test_recognize_a_header_of_numbers_as_pandas_writes_it(tmp_path: Path) -> None:
    cells = list(pd.DataFrame(np.ones((2, 3))).to_csv(index=False).splitlines()[0].split(","))
    wide = (TensorSpec("X", "FP32", (3,)),)
    assert client_of(wide).header(cells) == ()
    assert client_of(wide).header(["0", "1", "3"]) is None
    assert client_of(FLOATS).header(["0", "1"]) is None
    named = client_of(wide, folder=written(tmp_path, columns="2\n1\n0\n"))
    assert named.header(cells) == cells


def test_accept_blanks_in_names_that_lightgbm_stores_as_underscores(tmp_path: Path) -> None:
    rows = pd.DataFrame({"mean radius": [1.0, 2.0], "a_b": [3.0, 4.0]})
    model = lightgbm.LGBMRegressor(verbose=-1).fit(rows, [0, 1])
    stored = model.booster_.feature_name()
    assert stored == ["mean_radius", "a_b"]
    client = client_of(folder=written(tmp_path, columns="\n".join(stored)))
    assert client.header(["a_b", "mean radius"]) == ["a_b", "mean_radius"]
    assert client.header(["mean radius", "mean_radius"]) == ["mean_radius", "mean_radius"]
    for name in ("mean radius", "mean_radius"):
        assert client.prepare([{"a_b": 3, name: 1}], {})["X"].tolist() == [[1, 3]]
    with pytest.raises(DecodingError, match="twice"):
        client.prepare([{"a_b": 3, "mean radius": 1, "mean_radius": 1}], {})
    with pytest.raises(DecodingError, match="'a b c'"):
        client.prepare([{"a b c": 3, "mean radius": 1}], {})


def test_name_each_column_that_takes_empty_cells() -> None:
    client = client_of(EACH, missing="1")
    assert client.prepare([[1, None, True]], {})["job"].tolist() == [[b""]]
    with pytest.raises(DecodingError, match="'age'"):
        client.prepare([[None, "a", True]], {})
    with pytest.raises(InvalidRequest, match="'3'"):
        client_of(EACH, missing="3")


def test_return_booleans_for_boolean_predictions_and_classes() -> None:
    outputs = (TensorSpec("label", "BOOL", (1,)), TensorSpec("probabilities", "FP32", (2,)))
    predictions = answers(client_of(outputs=outputs), label=[[True]], probabilities=[[0.25, 0.75]])
    assert predictions == [{"prediction": True, "probabilities": {"False": 0.25, "True": 0.75}}]


@pytest.mark.parametrize("row", [["", 1], [None, 1], {"a": "nan", "b": 1}])
def test_read_empty_cells_as_nan_if_the_model_takes_them(row: Any, tmp_path: Path) -> None:
    client = client_of(folder=written(tmp_path, columns="a\nb\n"), missing="nan")
    (cells,) = client.prepare([row], {})["X"]
    assert np.isnan(cells[0]) and cells[1] == 1


def test_name_classes_by_the_label_file(tmp_path: Path) -> None:
    outputs = {"label": [[1], [0]], "probabilities": [[0.25, 0.75], [1.0, 0.0]]}
    assert answers(client_of(), **outputs)[0] == {
        "prediction": 1,
        "probabilities": {"0": 0.25, "1": 0.75},
    }
    named = client_of(folder=written(tmp_path, labels="no\nyes\n"))
    assert answers(named, **outputs)[0] == {
        "prediction": "yes",
        "probabilities": {"no": 0.25, "yes": 0.75},
    }
    numbered = client_of(folder=tmp_path, classes=f"3, {2**53 + 1}")
    predictions = answers(numbered, label=[[2**53 + 1], [3]], probabilities=[[0, 1], [1, 0]])
    assert [each["prediction"] for each in predictions] == ["yes", "no"]


def test_keep_blanks_in_names_that_end_with_a_line_feed(tmp_path: Path) -> None:
    client = client_of(folder=written(tmp_path, columns=" age\r\njob \n \n", labels="\na\u2028b\n"))
    assert (client.columns, client.labels) == ((" age", "job "), ["", "a\u2028b"])


def test_return_further_outputs_under_their_names() -> None:
    outputs = (TensorSpec("label", "INT64", ()), TensorSpec("scores", "FP32", (2,)))
    client = client_of(outputs=outputs)
    assert answers(client, label=[4], scores=[[1.0, 2.0]]) == [
        {"prediction": 4, "scores": [1.0, 2.0]}
    ]
    client = client_of(outputs=outputs, probabilities="scores")
    assert answers(client, label=[4], scores=[[1.0, 2.0]])[0]["probabilities"] == {
        "0": 1.0,
        "1": 2.0,
    }
    outputs = (TensorSpec("leaf", "INT64", ()), TensorSpec("prediction", "FP32", ()))
    assert answers(client_of(outputs=outputs), leaf=[4], prediction=[0.5]) == [
        {"prediction": 0.5, "leaf": 4}
    ]


@pytest.mark.parametrize(
    ("inputs", "files", "options", "name"),
    [
        (FLOATS, {}, {"max_batch_size": 0}, "max_batch_size"),
        (FLOATS, {"columns": "a\n"}, {}, "columns"),
        (FLOATS, {"columns": "a\na\n"}, {}, "columns"),
        (FLOATS, {"labels": "a\n"}, {}, "'probabilities'"),
        (FLOATS, {}, {"classes": "1,2,3"}, "classes"),
        (FLOATS, {}, {"probabilities": "p"}, "'p'"),
        ((TensorSpec("X", "FP32", (3, 224, 224)),), {}, {}, "'X'"),
        ((TensorSpec("X", "FP32", (-1,)),), {}, {}, "columns.txt"),
    ],
)
def test_refuse_folders_that_do_not_fit(
    inputs: Any, files: Any, options: Any, name: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=name):
        client_of(inputs, folder=written(tmp_path, **files), **options)


def test_derive_the_width_of_a_matrix_from_its_column_names(tmp_path: Path) -> None:
    client = client_of(
        (TensorSpec("X", "FP32", (-1,)),), folder=written(tmp_path, columns="a\nb\nc\n")
    )
    assert client.prepare([{"c": 3, "b": 2, "a": 1}], {})["X"].tolist() == [[1, 2, 3]]


@pytest.mark.parametrize("inputs", [FLOATS, EACH])
def test_make_an_example_that_the_model_takes(inputs: Any) -> None:
    client = client_of(inputs)
    row = ROW.from_bytes(client.example, Limits())
    assert len(client.prepare([row], {})) == len(inputs)
    assert orjson.loads(client.example) == row


@pytest.mark.parametrize(
    ("data", "row"),
    [
        (b"1,2", ["1", "2"]),
        (b'"a ""b"", c",\xc3\xb6\r\n', ['a "b", c', "ö"]),
        (b'"a\nb",c', ["a\nb", "c"]),
        (b' {"a": 1}', {"a": 1}),
        (b"[1, null]", [1, None]),
    ],
)
def test_read_a_row_as_csv_or_json(data: bytes, row: Any) -> None:
    assert ROW.from_bytes(data, Limits()) == row
    assert ROW.from_bytes(b"a" * 140_000, Limits()) == ["a" * 140_000]
