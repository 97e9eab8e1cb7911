"""Tests tabular models in the whole container: CSV and JSON, answers equal to the trained model's,
and errors that name row and column."""

import csv
import io
import json
import shlex
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
import requests

from build_engines.build import build
from build_engines.request import Request
from tests.build_engines import trained
from tests.build_engines.trained import Trained
from tests.support.harness import Server, expect_error, npy, wait_until

pytestmark = pytest.mark.stack

MODELS = {
    "mixed": trained.mixed,
    "forest": trained.forest,
    "xgb": trained.xgboosts,
    "lgbm": trained.lightgbms,
    "odd": trained.odd_classes,
    "letters": trained.letters,
    "ages": trained.ages,
}
CSV = {"Content-Type": "text/csv"}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Trained]:
    folder = tmp_path_factory.mktemp("trained")
    return {name: make(folder) for name, make in MODELS.items()}


@pytest.fixture(scope="module")
def server(
    models: Mapping[str, Trained], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("tables")
    for name, model in models.items():
        build(Request(name, str(model.file), repository=folder / "models", allow_pickle=True))
    started = Server(folder, folder / "models").wait_ready()
    yield started
    started.stop_later()


def predictions(reply: requests.Response) -> list[dict[str, Any]]:
    assert reply.status_code == 200, reply.text
    results: list[dict[str, Any]] = reply.json()["predictions"]
    return results


def ask(server: Server, model: str, body: Any, **headers: str) -> requests.Response:
    """Send a body, as JSON unless it is text. In the names of `headers`, _ stands for -."""
    named = {key.replace("_", "-"): value for key, value in headers.items()}
    if isinstance(body, str):
        return server.post(
            f"/invocations?model_name={model}", data=body.encode(), headers=CSV | named
        )
    return server.post(f"/invocations?model_name={model}", json=body, headers=named)


def test_answer_the_calls_in_the_log(server: Server, models: Mapping[str, Trained]) -> None:
    def calls() -> list[str]:
        return [
            entry["message"]
            for entry in server.entries()
            if entry.get("message", "").startswith("curl ")
        ]

    wait_until(lambda: len(calls()) == len(models), lambda: str(calls()))
    for call in calls():
        _curl, url, _data, body = shlex.split(call)
        assert len(predictions(server.post(url.partition(str(server.port))[2], data=body))) == 1


def text_of(rows: pd.DataFrame, header: bool = False) -> str:
    return str(rows.to_csv(index=False, header=header))


def test_widen_fp32_tensors_for_a_table_of_fp64(
    server: Server, models: Mapping[str, Trained]
) -> None:
    rows = models["forest"].rows[:3].to_numpy()
    replies = []
    for datatype in ("FP32", "FP64"):
        tensor = {"name": "X", "shape": rows.shape, "datatype": datatype, "data": rows.tolist()}
        replies.append(server.post("/v2/models/forest/infer", json={"inputs": [tensor]}))
    narrow, wide = ([each["data"] for each in reply.json()["outputs"]] for reply in replies)
    assert (replies[0].status_code, narrow) == (200, wide)


@pytest.mark.parametrize("model", ["mixed", "forest", "xgb", "odd", "letters", "ages"])
def test_return_the_classes_and_probabilities_of_the_model(
    model: str, server: Server, models: Mapping[str, Trained]
) -> None:
    trained_model, rows = models[model].model, models[model].rows
    wanted = models[model].own_rows
    for body in (text_of(rows), {"instances": models[model].lists}):
        results = predictions(ask(server, model, body))
        assert [each["prediction"] for each in results] == trained_model.predict(wanted).tolist()
        assert [list(p["probabilities"]) for p in results] == [
            [str(c) for c in trained_model.classes_]
        ] * len(rows)
        scores = [list(each["probabilities"].values()) for each in results]
        np.testing.assert_allclose(scores, trained_model.predict_proba(wanted), atol=1e-5)


def test_return_a_number_from_a_regression(server: Server, models: Mapping[str, Trained]) -> None:
    model = models["lgbm"]
    predicted = [
        each["prediction"] for each in predictions(ask(server, "lgbm", text_of(model.rows)))
    ]
    np.testing.assert_allclose(predicted, model.model.predict(model.rows.to_numpy()), rtol=1e-5)


def test_accept_named_columns_in_any_order(server: Server, models: Mapping[str, Trained]) -> None:
    rows = models["mixed"].rows[:5]
    turned = rows[rows.columns[::-1]]
    wanted = predictions(ask(server, "mixed", text_of(rows)))
    assert predictions(ask(server, "mixed", text_of(turned, header=True))) == wanted
    assert predictions(ask(server, "mixed", {"instances": turned.to_dict("records")})) == wanted
    assert (
        predictions(
            ask(server, "mixed", "\ufeff" + text_of(rows, header=True).replace("\n", "\r\n"))
        )
        == wanted
    )


def test_ignore_a_header_of_names_unknown_to_the_model(
    server: Server, models: Mapping[str, Trained]
) -> None:
    rows = text_of(models["odd"].rows[:3])
    wanted = predictions(ask(server, "odd", rows))
    assert predictions(ask(server, "odd", "a,b,c,d\n" + rows)) == wanted
    assert (
        predictions(ask(server, "odd", "0,1,2,3\n" + rows, Content_Type="text/csv; header=present"))
        == wanted
    )
    assert predictions(ask(server, "odd", "0,1,2,3\n" + rows)) == wanted
    assert (
        len(
            predictions(
                ask(server, "odd", "0,1,2,3\n" + rows, Content_Type="text/csv; header=absent")
            )
        )
        == 4
    )
    assert len(predictions(ask(server, "odd", "0,1,2,3"))) == 1


def test_accept_a_row_as_body_and_csv_as_text_or_form_file(
    server: Server, models: Mapping[str, Trained]
) -> None:
    rows = models["mixed"].rows[:3]
    wanted = predictions(ask(server, "mixed", text_of(rows)))
    assert predictions(ask(server, "mixed", rows.to_dict("records")[0])) == wanted[:1]
    text = text_of(rows, header=True)
    assert predictions(ask(server, "mixed", text, Content_Type="text/plain")) == wanted
    for kind in ("text/csv", "text/plain", "application/vnd.ms-excel"):
        reply = server.post(
            "/invocations?model_name=mixed", files={"file": ("rows.csv", text, kind)}
        )
        assert predictions(reply) == wanted
    several = [("file", ("rows.csv", text)), ("file", ("more.csv", text))]
    reply = server.post("/invocations?model_name=mixed", files=several)
    expect_error(reply, 400, "invalid_request")
    assert ask(server, "mixed", {"agee": 1}).json()["code"] == "decoding_error"
    assert ask(server, "odd", {"agee": 1}).json()["code"] == "decoding_error"


def test_return_csv_if_asked(server: Server, models: Mapping[str, Trained]) -> None:
    rows = models["mixed"].rows[:1500].sample(3000, replace=True, random_state=0)
    results = predictions(ask(server, "mixed", text_of(rows)))
    wanted = [[each["prediction"], *each["probabilities"].values()] for each in results]
    for body in (text_of(rows), {"instances": json.loads(rows.to_json(orient="values"))}):
        reply = ask(server, "mixed", body, Accept="text/csv")
        assert reply.headers["Content-Type"] == "text/csv"
        assert reply.headers["Content-Encoding"] == "gzip"
        lines = list(csv.reader(io.StringIO(reply.text)))
        assert len(lines) == 3000
        assert [[line[0], *map(float, line[1:])] for line in lines] == wanted


@pytest.mark.parametrize("model", ["letters", "odd", "lgbm"])
def test_return_the_predictions_as_npy_if_asked(
    model: str, server: Server, models: Mapping[str, Trained]
) -> None:
    trained_model, rows = models[model].model, models[model].rows
    wanted = trained_model.predict(models[model].own_rows)
    replies = [
        ask(server, model, body, Accept="application/x-npy")
        for body in (text_of(rows), {"instances": models[model].lists})
    ]
    if model != "letters":
        headers = {"Content-Type": "application/x-npy", "Accept": "application/x-npy"}
        replies.append(
            server.post(
                f"/invocations?model_name={model}",
                data=npy(rows.to_numpy(np.float64)),
                headers=headers,
            )
        )
    for reply in replies:
        assert reply.headers["Content-Type"] == "application/x-npy", reply.text
        answered = np.load(io.BytesIO(reply.content)).reshape(-1)
        if wanted.dtype.kind == "f":
            np.testing.assert_allclose(answered, wanted, rtol=1e-5)
        else:
            assert answered.astype(str).tolist() == wanted.astype(str).tolist()


def test_answer_the_other_rows_of_a_batch_transform(
    server: Server, models: Mapping[str, Trained]
) -> None:
    rows = text_of(models["mixed"].rows[:8]).splitlines()
    wanted = predictions(ask(server, "mixed", "\n".join(rows)))
    rows[3] = rows[3].replace(rows[3].split(",")[0], "old", 1)
    reply = ask(server, "mixed", "\n".join(rows), Accept="application/jsonlines")
    assert reply.headers["Content-Type"] == "application/jsonlines"
    lines = [json.loads(line) for line in reply.text.splitlines()]
    assert lines[:3] + lines[4:] == wanted[:3] + wanted[4:]
    assert set(lines[3]) == {"error", "code"}
    assert lines[3]["code"] == "decoding_error"
    assert "'age'" in lines[3]["error"] and "'old'" in lines[3]["error"]
    as_lines = "\n".join(map(json.dumps, models["mixed"].lists[:3]))
    reply = ask(server, "mixed", as_lines, Content_Type="application/jsonlines")
    assert [json.loads(line) for line in reply.text.splitlines()] == wanted[:3]


@pytest.mark.parametrize(
    ("model", "body", "names"),
    [
        ("odd", "1,2,3,4\n1,2,x,4", ("instance 1", "'column 2'", "'x'")),
        ("odd", "1,2,3,4\n1,2,,4", ("instance 1", "'column 2'")),
        ("odd", "1,2,3,4,5", ("instance 0", "4", "5")),
        ("odd", "1,2,3,1e309", ("'column 3'", "'1e309'", "FP64")),
        ("odd", '1,2,3,"4', ("instance 0", "CSV")),
        ("odd", "1;2;3;4", ("instance 0", "4", "1", "by commas")),
        ("odd", "1,5;2,5;3,5;4,5", ("instance 0", "by commas")),
        ("odd", "0,1,2,3,4\n1,1,2,3,4", ("instance 0", "label", "to_csv(index=False)")),
        ("mixed", "age;job;fare (EUR);city;grade\n1;2;3;4;5", ("by commas",)),
        ("mixed", ",age,job,fare (EUR),city,grade\n0,1,a,2,b,3", ("to_csv(index=False)",)),
        ("mixed", "Unnamed: 0,age,job\n0,1,a", ("'Unnamed: 0'", "to_csv(index=False)")),
        ("odd", "\n\n", ("row",)),
        ("odd", "a,b,c,d\n", ("header",)),
        ("odd", "-,-,-,-\n1,2,3,4", ("instance 0", "'column 0'", "'-'")),
        ("odd", {"instances": [[1, 2, [3], 4]]}, ("'column 2'", "list")),
        ("odd", {"instances": [5]}, ("int 5",)),
        ("odd", {"instances": [{"a": 1}]}, ("names",)),
        ("mixed", "age,job\n1,cook", ("'fare (EUR)'", "'city'", "'grade'")),
        ("mixed", "age,age\n1,2", ("header", "twice")),
        ("mixed", "age,job\n1", ("instance 0", "header 2")),
        ("mixed", {"instances": [{"agee": 1}]}, ("'agee'", "'age'", "'job'")),
        ("mixed", {"instances": [[1, 2, 3, "Bern", 1]]}, ("'job'", "int 2")),
        ("mixed", {"instances": [[1, "cook", 3, "Bern", 1.5]]}, ("'grade'", "INT64")),
        ("mixed", {"instances": [[None, "cook", 3, "Bern", 1]]}, ("'age'",)),
        ("mixed", {"instances": [[1, "cook", 3, "Bern", 9]]}, ("instance 0", "'grade'", "int 9")),
    ],
)
def test_name_row_and_column_of_a_wrong_cell(
    model: str, body: Any, names: tuple[str, ...], server: Server
) -> None:
    reply = ask(server, model, body)
    assert reply.status_code == 400
    assert not [name for name in names if name not in reply.json()["error"]], reply.text


def test_blame_the_caller_for_an_unknown_category(server: Server) -> None:
    """Tensors bypass the client, which would have refused the cell and named its row and column."""
    cells = [
        ("age", "FP32", 40),
        ("job", "BYTES", "cook"),
        ("fare (EUR)", "FP32", 50),
        ("city", "BYTES", "Bern"),
    ]
    tensors = [
        {"name": n, "shape": [1, 1], "datatype": d, "data": [c]}
        for n, d, c in (*cells, ("grade", "INT64", 9))
    ]
    reply = ask(server, "mixed", {"inputs": tensors})
    assert (reply.status_code, reply.json()["code"]) == (400, "invalid_request"), reply.text


def test_refuse_more_cells_and_rows_than_a_request_may_have(server: Server) -> None:
    assert ask(server, "odd", "," * 200_000).status_code == 413
    assert ask(server, "odd", "1\n" * 100_001).status_code == 413


def test_list_a_table_s_columns_and_refuse_a_wrong_header_setting(server: Server) -> None:
    listed = {model["name"]: model for model in server.get("/models").json()["models"]}
    assert listed["mixed"]["columns"] == ["age", "job", "fare (EUR)", "city", "grade"]
    assert listed["mixed"]["client"] == "table"
    assert {model["engine"] for model in listed.values()} == {"onnxruntime"}
    assert ask(server, "odd", "1,2,3,4", Content_Type="text/csv; header=maybe").status_code == 400


def test_accept_one_row_of_csv_without_a_content_type(
    server: Server, models: Mapping[str, Trained]
) -> None:
    row = text_of(models["odd"].rows[:1])
    reply = server.post("/invocations?model_name=odd", data=row)
    assert predictions(reply) == predictions(ask(server, "odd", row))
    reply = server.post("/invocations?model_name=odd", data=row * 2)
    assert reply.status_code == 400 and "text/csv" in reply.json()["error"]
