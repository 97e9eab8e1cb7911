"""Tests that clients of other servers' APIs can call this server unchanged, and read the same
results that /invocations returns."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.callers import programs
from tests.callers.programs import DOCUMENTS, MANY, PROGRAMS, QUERY, TEXTS, TOP
from tests.endpoint.test_other_apis import make_models, predicted
from tests.support.callers import run_caller
from tests.support.harness import FP32, Server, b64, module_server

pytestmark = pytest.mark.stack

server = module_server(make_models, **FP32)


def run(name: str, server: Server) -> Any:
    """Run a program of programs.py. Return its output."""
    return json.loads(run_caller(programs.__file__, name, server.url))


def fp32(value: Any) -> Any:
    return np.array(value, np.float32)


def check(server: Server, read: Any) -> None:
    """Assert that all vectors and rankings equal those of /invocations."""
    (alone,) = predicted(server, "bert", TEXTS[0])
    wanted = [each["embedding"] for each in predicted(server, "bert", *TEXTS)]
    for name, got in read.get("embedders", {}).items():
        np.testing.assert_array_equal(fp32(got["alone"]), fp32(alone["embedding"]), name)
        np.testing.assert_allclose(got["vectors"], wanted, atol=1e-5, err_msg=name)
    if "many" in read:
        count, last = read["many"]
        assert count == len(MANY)
        np.testing.assert_allclose(last, alone["embedding"], atol=1e-5)
    for name, got in read.get("rankings", {}).items():
        assert got == ranking(server)[:TOP], name


def ranking(server: Server) -> list[list[Any]]:
    """Return the index and the score of each document, best first."""
    instance = {"query": QUERY, "documents": DOCUMENTS}
    (prediction,) = predicted(server, "ranking", instance, function_to_apply="sigmoid")
    entries = [[entry["index"], entry["score"]] for entry in prediction["ranking"]]
    assert len({score for _, score in entries}) == len(DOCUMENTS)
    return entries


def test_answer_openai(server: Server) -> None:
    read = run("openai", server)
    check(server, read)
    assert read["tokens"] == sum(each["tokens"] for each in predicted(server, "bert", *TEXTS))
    assert read["dimensions"] == 8
    assert {"bert", "ranking"} <= {*read["models"]}
    kind = "invalid_request_error"
    assert read["errors"] == [
        ["NotFoundError", "model_not_found", kind],
        ["BadRequestError", "invalid_request", kind],
        ["BadRequestError", "invalid_request", kind],
        ["BadRequestError", "invalid_request", kind],
    ]


def test_answer_langchain(server: Server) -> None:
    read = run("langchain", server)
    check(server, read)
    unknown, task, ids, many = read["errors"]
    assert unknown[:2] == ["NotFoundError", "model_not_found"] and "nobody" in unknown[2]
    for error, text in (
        (task, "text-ranking"),
        (ids, "check_embedding_ctx_length"),
        (many, "2048"),
    ):
        assert error[:2] == ["BadRequestError", "invalid_request"] and text in error[2]


def test_answer_llama_index(server: Server) -> None:
    read = run("llama_index", server)
    check(server, read)
    for text, vector in zip(TEXTS, read["one_by_one"], strict=True):
        (wanted,) = predicted(server, "bert", text)
        np.testing.assert_array_equal(fp32(vector), fp32(wanted["embedding"]))
    assert read["errors"] == [
        ["NotFoundError", "model_not_found"],
        ["BadRequestError", "invalid_request"],
    ]


def test_answer_haystack(server: Server) -> None:
    read = run("haystack", server)
    check(server, read)
    wanted = [
        ("NotFoundError", "nobody"),
        ("BadRequestError", "2048"),
        ("NotFoundError", "nobody"),
        ("RuntimeError", "1001 documents"),
    ]
    for (kind, message), (error, text) in zip(read["errors"], wanted, strict=True):
        assert kind == error and text in message, message


def test_answer_cohere(server: Server) -> None:
    read = run("cohere", server)
    check(server, read)
    assert read["texts"] == [DOCUMENTS[index] for index, _ in read["rankings"]["Client"]]
    assert read["documents"] == [None] * TOP
    *errors, old = read["errors"]
    codes = [[kind, status, body["code"]] for kind, status, body in errors]
    assert codes == [
        ["NotFoundError", 404, "model_not_found"],
        ["BadRequestError", 400, "invalid_request"],
        ["BadRequestError", 400, "decoding_error"],
    ]
    assert old[:2] == ["NotFoundError", 404] and old[2]["error"]["code"] == "model_not_found"


def test_answer_huggingface_hub(server: Server) -> None:
    read = run("huggingface_hub", server)
    check(server, read)
    vectors = [each["embedding"] for each in predicted(server, "bert", *TEXTS)]
    np.testing.assert_allclose(read["similarity"], np.array(vectors) @ vectors[0], atol=1e-5)
    labels = {"text": "a", "candidate_labels": ["dogs", "cats"]}
    picture = b64(programs.PICTURE)
    wanted = {
        "opinions": fields(server, "opinions", "classes", "label score", "a", top_k=2),
        "labels": fields(server, "zero_shot", "classes", "label score", labels),
        "entities": fields(
            server,
            "entities",
            "entities",
            "label word score",
            "a dog",
            aggregation_strategy="simple",
        ),
        "picture": fields(server, "resnet", "classes", "label score", picture),
    }
    assert {name: read[name] for name in wanted} == wanted
    (masks,) = predicted(server, "masks", "a [MASK]", top_k=2)
    assert read["masks"] == [[each["token"], each["score"]] for each in masks["masks"][0]]
    question = {"question": "Where?", "context": "In Berlin."}
    (answers,) = fields(server, "answers", "answers", "answer score start end", question)
    assert read["answer"] == answers
    (found,) = predicted(server, "boxes", picture, confidence=0.9)
    boxes = [[each["label"], each["score"], each["box"]["xmax"]] for each in found["detections"]]
    assert read["boxes"] == boxes != []
    wrong = [
        ("HfHubHTTPError", 404, "nobody"),
        ("BadRequestError", 400, "text-ranking"),
        ("BadRequestError", 400, "top_k"),
    ]
    for (kind, status, message), (error, code, text) in zip(read["errors"], wrong, strict=True):
        assert (kind, status) == (error, code) and text in message


def fields(
    server: Server, model: str, key: str, names: str, instance: Any, **parameters: Any
) -> list[list[Any]]:
    """Return these fields of each entry in the prediction that /invocations returns."""
    (prediction,) = predicted(server, model, instance, **parameters)
    return [[entry[name] for name in names.split()] for entry in prediction[key]]


def test_run_every_program() -> None:
    text = Path(__file__).read_text(encoding="utf-8")
    assert [name for name in PROGRAMS if f'run("{name}", server)' not in text] == []
