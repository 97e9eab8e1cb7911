"""Tests the routes of other servers' APIs: their replies contain what /invocations returns, and
their errors have the format that the clients of these servers read."""

import base64
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
from PIL import Image

from serving.headers import ATTRIBUTES
from tests.endpoint.hostile_models import BERT, make_detector, make_text_models
from tests.support.harness import (
    FP32,
    ROOT,
    Server,
    b64,
    encoded,
    expect_error,
    link_model,
    module_server,
)

pytestmark = pytest.mark.stack

TEXTS = ["A man is eating food.", "", "Zwei Sätze. Und noch einer!"]
LONG = "a " * 600
OF_TASKS = ("opinions", "ranking", "entities", "answers", "masks", "zero_shot")  # models
PICTURE = encoded(Image.radial_gradient("L").resize((64, 64)).convert("RGB"))
QUERY = "How many people live in Berlin?"
DOCUMENTS = ["Berlin has 3.7 million people.", "Berlin is a city.", "Cats sleep."]


def make_models(repository: Path) -> None:
    """Make `bert`, which embeds texts, and models for other tasks."""
    link_model(BERT, repository)
    link_model(ROOT / "model_repository/resnet", repository)
    make_detector(repository / "boxes")
    make_text_models(repository, OF_TASKS)


server = module_server(make_models, **FP32)


def answer(reply: requests.Response) -> Any:
    assert reply.status_code == 200, reply.text
    return reply.json()


def predicted(server: Server, model: str, *instances: Any, **parameters: Any) -> list[Any]:
    body = {"model_name": model, "instances": instances, "parameters": parameters}
    predictions: list[Any] = answer(server.post(json=body))["predictions"]
    return predictions


def refused(reply: requests.Response, status: int, code: str, *names: str) -> None:
    """Assert that the reply is an error in OpenAI's format with each of these names in its
    message."""
    assert (reply.status_code, reply.headers["Content-Type"]) == (status, "application/json")
    (error,) = reply.json().values()
    kind = "invalid_request_error" if status < 500 else "server_error"
    assert error == {"message": error["message"], "type": kind, "param": None, "code": code}
    assert not [name for name in names if name not in error["message"]], error["message"]


@pytest.mark.parametrize("text", TEXTS)
def test_embed_a_text_bit_for_bit_as_invocations(server: Server, text: str) -> None:
    (wanted,) = predicted(server, "bert", text)
    body = {"model": "bert", "input": text, "user": "me"}
    reply = answer(server.post("/v1/embeddings", json=body))
    tokens = wanted["tokens"]
    assert reply == {
        "object": "list",
        "data": [{"object": "embedding", "index": 0, "embedding": wanted["embedding"]}],
        "model": "bert",
        "usage": {"prompt_tokens": tokens, "total_tokens": tokens},
    }
    packed = answer(server.post("/v1/embeddings", json=body | {"encoding_format": "base64"}))
    vector = np.frombuffer(base64.b64decode(packed["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(vector, np.array(wanted["embedding"], np.float32))


def test_write_no_more_digits_than_fp32_has(server: Server) -> None:
    reply = server.post(json={"model_name": "bert", "instances": TEXTS[:1]})
    (prediction,) = answer(reply)["predictions"]
    numbers = [str(np.float32(number)) for number in prediction["embedding"]]
    assert len(reply.content) < sum(map(len, numbers)) + 600
    csv = server.post(
        json={"model_name": "bert", "instances": TEXTS[:1]}, headers={"Accept": "text/csv"}
    )
    assert [np.float32(cell) for cell in csv.text.split(",")[:384]] == list(
        map(np.float32, prediction["embedding"])
    )


def test_embed_many_texts_in_order(server: Server) -> None:
    texts = [f"text number {number % 7}" for number in range(100)]
    body = {"input": texts, "dimensions": 8, "encoding_format": "float"}
    entries = answer(server.post("/v1/embeddings", json=body))["data"]
    assert [entry["index"] for entry in entries] == list(range(100))
    wanted = [each["embedding"] for each in predicted(server, "bert", *texts[:7], dimensions=8)]
    for entry in entries:
        np.testing.assert_allclose(entry["embedding"], wanted[entry["index"] % 7], atol=1e-5)


def test_count_the_tokens_that_were_read(server: Server) -> None:
    usage = answer(server.post("/v1/embeddings", json={"input": [LONG, "a"]}))["usage"]
    assert usage == {"prompt_tokens": 512 + 3, "total_tokens": 512 + 3}


def test_say_how_many_texts_were_cut(server: Server) -> None:
    reply = server.post(json={"model_name": "bert", "instances": TEXTS})
    assert reply.ok and "X-Truncated" not in reply.headers
    body = {"model_name": "opinions", "instances": [LONG, *["a"] * 40, LONG]}  # two batches
    assert server.post(json=body).headers["X-Truncated"] == "2"
    reply = server.post("/v1/embeddings", json={"input": ["a", LONG]})
    assert reply.headers["X-Truncated"] == "1"


def test_refuse_a_text_that_is_too_long_if_truncate_is_false(server: Server) -> None:
    body = {"model_name": "bert", "instances": ["a", LONG], "parameters": {"truncate": False}}
    expect_error(server.post(json=body), 400, "decoding_error", "602 tokens", "instance 1", "512")
    body["instances"] = ["a"]
    assert server.post(json=body).ok


@pytest.mark.parametrize("ids", [[1, 2], [[101, 102], [101]]])
def test_refuse_token_ids_with_the_remedy(server: Server, ids: Any) -> None:
    reply = server.post("/v1/embeddings", json={"input": ids})
    refused(reply, 400, "invalid_request", "'input'", "check_embedding_ctx_length=False")


WRONG: list[tuple[dict[str, Any], int, str, str]] = [
    ({"model": "nobody", "input": "a"}, 404, "model_not_found", "nobody"),
    ({"model": "opinions", "input": "a"}, 400, "invalid_request", "text-classification"),
    ({"input": []}, 400, "invalid_request", "'input' is an empty list"),
    ({"input": [None]}, 400, "decoding_error", "null"),
    ({"input": ["a", 5]}, 400, "decoding_error", "instance 1"),
    ({"input": "a", "dimensions": 385}, 400, "invalid_request", "385"),
    ({"input": "a", "dimension": 1}, 400, "invalid_request", "'dimensions'"),
    ({"input": "a", "encoding_format": "int8"}, 400, "invalid_request", "encoding_format"),
    ({"input": {"text": "a"}}, 400, "invalid_request", "input"),
    ({"input": ["a"] * 2_049}, 400, "invalid_request", "2049 texts; send at most 2048"),
    ({"input": [1] * 2_049}, 400, "invalid_request", "check_embedding_ctx_length=False"),
    ({}, 400, "invalid_request", "input"),
]


@pytest.mark.parametrize(("body", "status", "code", "text"), WRONG)
def test_explain_wrong_embeddings(
    server: Server, body: dict[str, Any], status: int, code: str, text: str
) -> None:
    refused(server.post("/v1/embeddings", json=body), status, code, text)


def test_give_errors_below_v1_the_format_of_openai(server: Server) -> None:
    refused(server.get("/v1/embeddings"), 405, "method_not_allowed", "POST")
    refused(server.get("/v1/nothing"), 404, "not_found", "/v1/nothing")
    large = server.post("/v1/embeddings", data=b"a" * (26 * 2**20))  # nginx refuses this body
    refused(large, 413, "payload_too_large", "25 MB")


def test_choose_the_only_model_of_the_task_if_none_is_named(server: Server) -> None:
    reply = server.post(json={"instances": ["a"]})
    expect_error(reply, 400, "invalid_request", "no model is named")
    assert answer(server.post("/v1/embeddings", json={"input": "a"}))["model"] == "bert"


def test_refuse_two_names_of_a_model(server: Server) -> None:
    query = {"model_name": "opinions"}
    reply = server.post("/v1/embeddings", params=query, json={"model": "bert", "input": "a"})
    refused(reply, 400, "invalid_request", "opinions", "bert")


def test_choose_a_route_by_an_attribute(server: Server) -> None:
    body = {"model": "bert", "input": "a"}
    reply = server.post(json=body, headers={ATTRIBUTES: "route=/v1/embeddings"})
    assert answer(reply) == answer(server.post("/v1/embeddings", json=body))
    reply = server.post(json=body, headers={ATTRIBUTES: "route=/v1/embedding"})
    expect_error(reply, 400, "invalid_request", "'/v1/embedding'", "did you mean '/v1/embeddings'")


def test_list_models_in_the_formats_of_openai_and_kserve(server: Server) -> None:
    listed = answer(server.get("/v1/models"))
    assert listed["object"] == "list"
    assert listed["models"] == sorted(["bert", "boxes", "resnet", *OF_TASKS])
    assert [entry["id"] for entry in listed["data"]] == listed["models"]
    assert all(entry["object"] == "model" for entry in listed["data"])
    one = answer(server.get("/v1/models/bert"))
    (wanted,) = (entry for entry in listed["data"] if entry["id"] == "bert")
    assert one == wanted | {"name": "bert", "ready": True}
    refused(server.get("/v1/models/nobody"), 404, "model_not_found", "nobody", "bert")


def test_predict_as_kserve_v1(server: Server) -> None:
    reply = server.post("/v1/models/bert:predict", json={"instances": TEXTS})
    assert answer(reply)["predictions"] == predicted(server, "bert", *TEXTS)
    raw = {"instances": [b64(PICTURE)], "parameters": {"top_k": 1}}
    (prediction,) = answer(server.post("/v1/models/resnet:predict", json=raw))["predictions"]
    assert len(prediction["classes"]) == 1


WRONG_INSTANCES: list[tuple[str, dict[str, Any], int, str, str]] = [
    ("nobody", {"instances": ["a"]}, 404, "model_not_found", "bert"),
    ("bert", {"instances": []}, 400, "invalid_request", "instances"),
    ("bert", {"instances": "a"}, 400, "invalid_request", "instances"),
    ("bert", {"inputs": ["a"]}, 400, "invalid_request", "'inputs'; known: instances"),
    ("bert", {"instances": [[1]]}, 400, "decoding_error", "instance 0"),
]


@pytest.mark.parametrize(("model", "body", "status", "code", "text"), WRONG_INSTANCES)
def test_give_errors_the_format_of_kserve_v1(
    server: Server, model: str, body: dict[str, Any], status: int, code: str, text: str
) -> None:
    reply = server.post(f"/v1/models/{model}:predict", json=body)
    expect_error(reply, status, code, text)


def test_give_nginx_s_errors_the_format_of_kserve_v1(server: Server) -> None:
    large = server.post("/v1/models/bert:predict", data=b"a" * (26 * 2**20))
    expect_error(large, 413, "payload_too_large", "25 MB")


def ranked(server: Server, **parameters: Any) -> list[Any]:
    """Return the ranking of DOCUMENTS that /invocations returns."""
    instance = {"query": QUERY, "documents": DOCUMENTS}
    (prediction,) = predicted(server, "ranking", instance, **parameters)
    ranking: list[Any] = prediction["ranking"]
    return ranking


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
def test_rank_documents_in_the_format_of_cohere(server: Server, path: str) -> None:
    body = {"model": "ranking", "query": QUERY, "documents": DOCUMENTS, "top_n": 2}
    reply = server.post(path, json=body | {"max_tokens_per_doc": 4_096})
    document = answer(reply)
    wanted = ranked(server, function_to_apply="sigmoid")[:2]
    assert document["id"] == reply.headers["X-Request-Id"]
    assert document["model"] == "ranking"
    assert document["results"] == [
        {"index": entry["index"], "relevance_score": entry["score"]} for entry in wanted
    ]
    assert document["usage"]["total_tokens"] > 3 * 9
    objects = [{"text": text, "year": 2024} for text in DOCUMENTS]
    body |= {"documents": objects, "return_documents": True, "top_n": None}
    for entry in answer(server.post(path, json=body))["results"]:
        assert entry["document"] == {"text": DOCUMENTS[entry["index"]]}


def test_rank_texts_in_the_format_of_tei(server: Server) -> None:
    body = {"model": "ranking", "query": QUERY, "texts": DOCUMENTS, "truncate": True}
    wanted = ranked(server, function_to_apply="sigmoid")
    assert answer(server.post("/rerank", json=body)) == wanted
    raw = answer(server.post("/rerank", json=body | {"raw_scores": True, "return_text": True}))
    wanted = ranked(server, function_to_apply="none", return_documents=True)
    assert raw == [
        {"index": own["index"], "score": own["score"], "text": own["document"]} for own in wanted
    ]


def test_keep_scores_between_0_and_1_unless_they_are_raw(server: Server) -> None:
    body = {"model": "ranking", "query": QUERY, "texts": DOCUMENTS}
    raw = answer(server.post("/rerank", json=body | {"raw_scores": True}))
    scores = answer(server.post("/rerank", json=body))
    for entry, own in zip(scores, raw, strict=True):
        assert entry["score"] == pytest.approx(1 / (1 + np.exp(-own["score"])), abs=1e-6)


def test_refuse_to_cut_a_document_if_truncate_is_false(server: Server) -> None:
    body: dict[str, Any] = {"model": "ranking", "query": QUERY, "texts": ["a", LONG]}
    assert server.post("/rerank", json=body).headers["X-Truncated"] == "1"
    reply = server.post("/rerank", json=body | {"truncate": False})
    expect_error(reply, 400, "decoding_error", "512", "truncate")


ASKED = {"model": "ranking", "query": "a"}
WRONG_RANKINGS: list[tuple[dict[str, Any], str, str]] = [
    (ASKED, "invalid_request", "either 'documents' or 'texts'"),
    (ASKED | {"documents": ["b"], "texts": ["b"]}, "invalid_request", "either 'documents'"),
    (ASKED | {"documents": [{"title": "b"}]}, "invalid_request", "documents[0]"),
    (ASKED | {"documents": []}, "decoding_error", "documents"),
    (ASKED | {"documents": ["b"] * 1_001}, "decoding_error", "1001 documents"),
    (ASKED | {"documents": ["b"], "top_k": 1}, "invalid_request", "'top_n'"),
    (ASKED | {"query": 1, "documents": ["b"]}, "invalid_request", "query"),
    (ASKED | {"documents": ["b"], "model": "bert"}, "invalid_request", "embedding"),
]


@pytest.mark.parametrize(("body", "code", "text"), WRONG_RANKINGS)
def test_explain_wrong_rankings(server: Server, body: dict[str, Any], code: str, text: str) -> None:
    expect_error(server.post("/v2/rerank", json=body), 400, code, text)
    refused(server.post("/v1/rerank", json=body), 400, code, text)


def embeddings(server: Server, *texts: str, **parameters: Any) -> list[Any]:
    return [each["embedding"] for each in predicted(server, "bert", *texts, **parameters)]


@pytest.mark.parametrize("path", ["/embed", "/models/bert/embed"])
def test_embed_as_tei(server: Server, path: str) -> None:
    body = {"inputs": TEXTS[0], "truncate": True, "normalize": False, "dimensions": 8}
    wanted = embeddings(server, TEXTS[0], normalize=False, dimensions=8)
    assert answer(server.post(path, json=body)) == wanted
    assert len(answer(server.post(path, json={"inputs": TEXTS}))) == 3
    expect_error(server.post(path, json={"inputs": [[1]]}), 400, "decoding_error", "a string")
    reply = server.post(path, json={"inputs": LONG, "truncate": False})
    expect_error(reply, 400, "decoding_error", "602 tokens")


def test_cut_texts_only_at_their_ends(server: Server) -> None:
    ranking = {"query": QUERY, "texts": DOCUMENTS}
    for path, body in (
        ("/embed", {"inputs": "a", "encoding_format": "float"}),
        ("/predict", {"inputs": "a"}),
        ("/rerank", ranking),
    ):
        assert server.post(path, json=body | {"truncation_direction": "Right"}).ok, path
        reply = server.post(path, json=body | {"truncation_direction": "Left"})
        expect_error(reply, 400, "invalid_request", "truncation_direction", "[Rr]ight")


def test_name_the_model_in_the_path_alone(server: Server) -> None:
    reply = server.post("/models/ranking/embed", json={"inputs": "a"})
    expect_error(reply, 400, "invalid_request", "'ranking'", "'text-ranking'", "embedding")
    body = {"query": QUERY, "texts": DOCUMENTS}
    reply = server.post("/models/ranking/rerank", json=body)
    assert answer(reply) == answer(server.post("/rerank", json=body))


def classes(server: Server, model: str, *instances: Any, **parameters: Any) -> list[Any]:
    return [
        [{"label": each["label"], "score": each["score"]} for each in prediction["classes"]]
        for prediction in predicted(server, model, *instances, **parameters)
    ]


def test_classify_as_tei(server: Server) -> None:
    pair = {"text": "a", "text_pair": "b"}
    for inputs, instance in (("a", "a"), (["a"], "a"), (["a", "b"], pair)):
        reply = server.post("/predict", json={"inputs": inputs})
        assert answer(reply) == classes(server, "opinions", instance)[0]
    reply = server.post("/predict", json={"inputs": [["a"], ["a", "b"]], "raw_scores": True})
    raw = classes(server, "opinions", "a", pair, function_to_apply="none")
    for got, wanted in zip(answer(reply), raw, strict=True):
        assert [each["score"] for each in got] == pytest.approx([each["score"] for each in wanted])
    reply = server.post("/predict", json={"inputs": ["a", "b", "c"]})
    expect_error(reply, 400, "invalid_request", "got 3")


@pytest.mark.parametrize("path", ["/similarity", "/pipeline/bert"])
def test_compare_sentences(server: Server, path: str) -> None:
    sentences = [f"sentence {number}" for number in range(70)]  # more than one batch
    body = {"inputs": {"source_sentence": TEXTS[0], "sentences": sentences}}
    source, *others = np.array(embeddings(server, TEXTS[0], *sentences))
    np.testing.assert_allclose(answer(server.post(path, json=body)), others @ source, atol=1e-5)
    body["inputs"]["sentences"] = []
    expect_error(server.post(path, json=body), 400, "invalid_request", "inputs.sentences")


def without_id(prediction: Any) -> Any:
    return [{"label": each["label"], "score": each["score"]} for each in prediction["classes"]]


def test_return_a_list_for_several_inputs(server: Server) -> None:
    (one,) = answer(server.post("/pipeline/opinions", json={"inputs": "a"}))
    assert answer(server.post("/pipeline/opinions", json={"inputs": ["a", "a"]})) == [one, one]
    entities = answer(server.post("/pipeline/entities", json={"inputs": ["a dog"]}))
    assert entities == [answer(server.post("/pipeline/entities", json={"inputs": "a dog"}))]


def test_return_a_list_of_several_answers(server: Server) -> None:
    question = {"question": "Where?", "context": "I live in Berlin."}
    (wanted,) = predicted(server, "answers", question, top_k=2)
    body = {"inputs": question, "parameters": {"top_k": 2}}
    assert answer(server.post("/pipeline/answers", json=body)) == wanted["answers"]


def test_answer_pictures_raw_and_in_base64(server: Server) -> None:
    (wanted,) = predicted(server, "resnet", b64(PICTURE))
    raw = server.post("/pipeline/resnet", data=PICTURE, headers={"Content-Type": "image/png"})
    assert answer(raw) == without_id(wanted)
    body = {"inputs": b64(PICTURE)["b64"], "parameters": {"top_k": 1}}
    assert answer(server.post("/pipeline/resnet", json=body)) == without_id(wanted)[:1]
    body = {"inputs": b64(PICTURE)["b64"], "parameters": {"threshold": 0.9}}
    (found,) = predicted(server, "boxes", b64(PICTURE), confidence=0.9)
    boxes = [{key: each[key] for key in ("label", "score", "box")} for each in found["detections"]]
    assert answer(server.post("/pipeline/boxes", json=body)) == boxes != []
    expect_error(server.post("/pipeline/resnet", data=b"a"), 400, "decoding_error")
    for path in ("/embed", "/pipeline/opinions"):
        expect_error(server.post(path), 400, "invalid_request", "the body is empty")
