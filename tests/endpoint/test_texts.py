"""Folders of transformers through one command and the whole container: each row of docs/texts.md."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from build_engines.__main__ import main
from clients.bert import TASKS
from tests.clients.text_models import save_checkpoint
from tests.support.harness import ROOT, Server

ROWS = re.findall(
    r"^\| `([\w-]+)`.*? \| .+? \| `(.+)` \| (.+?) \|$", (ROOT / "docs/texts.md").read_text(), re.MULTILINE
)
LABELS = {
    "token-classification": {0: "O", 1: "B-CAT", 2: "I-CAT"},
    "zero-shot-classification": {0: "contradiction", 1: "neutral", 2: "entailment"},
    "text-ranking": {0: "LABEL_0"},
}
FAMILIES = {"token-classification": "roberta", "question-answering": "distilbert", "text-ranking": "xlm-roberta"}
CHOSEN = {"zero-shot-classification", "text-ranking"}  # of networks that have several tasks


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("texts")
    for task in sorted({row[0] for row in ROWS}):
        labels = LABELS.get(task, {0: "bad", 1: "good"})
        changes: dict[str, Any] = {"id2label": labels, "label2id": {name: index for index, name in labels.items()}}
        checkpoint = save_checkpoint(folder / task, task, FAMILIES.get(task, "bert"), **changes)
        chosen = ["--task", task] if task in CHOSEN else []
        arguments = ["--weights", str(checkpoint), "--for", "cpu", "--out", str(folder / "repository")]
        assert main(["build", task, *arguments, *chosen]) == 0
    started = Server(folder, folder / "repository", SERVE_WORKERS="1").wait_ready()
    yield started
    started.kill_all()


def ask(server: Server, task: str, body: Any) -> list[Any]:
    answer = server.post(f"/invocations?model_name={task}", json=body)
    assert answer.status_code == 200, answer.text
    predictions: list[Any] = answer.json()["predictions"]
    return predictions


@pytest.mark.parametrize(("task", "instance", "shown"), ROWS)
def test_each_row_of_the_page_is_answered(task: str, instance: str, shown: str, server: Server) -> None:
    value = json.loads(instance)
    parameters: dict[str, Any] = {"ignore_labels": []} if task == "token-classification" else {}
    (prediction,) = ask(server, task, {"instances": [value], "parameters": parameters})
    if shown.startswith("`"):
        assert list(prediction)[:1] == list(json.loads(shown[1:-1]))
        (ours,), (wanted,) = (list(each.values())[:1] for each in (prediction, json.loads(shown[1:-1])))
        assert ours
        assert _keys(ours) == _keys(wanted)
    assert ask(server, task, {"inputs": value, "parameters": parameters}) == [prediction]
    assert ask(server, task, {"inputs": [value, value], "parameters": parameters}) == [prediction] * 2
    whole = value if isinstance(value, dict) else {"text": value}
    assert ask(server, task, {**whole, "parameters": parameters}) == [prediction]


def _keys(value: Any) -> Any:
    while isinstance(value, list):
        value = value[0]
    return sorted(value) if isinstance(value, dict) else None


def test_the_page_has_a_row_for_each_task() -> None:
    assert {row[0] for row in ROWS} == set(TASKS)


def test_more_rows_than_a_batch_has_are_asked_in_several_calls(server: Server) -> None:
    documents = [f"the {word} sat on the mat" for word in ("cat", "dog", "fox", "sun", "moon") * 20]
    (all_at_once,) = ask(server, "text-ranking", {"query": "the cat", "documents": documents})
    ranking = all_at_once["ranking"]
    assert sorted(entry["index"] for entry in ranking) == list(range(100))
    alone = ask(
        server, "text-ranking", {"instances": [{"query": "the cat", "documents": [each]} for each in documents[:5]]}
    )
    scores = {entry["index"]: entry["score"] for entry in ranking}
    assert [scores[index] for index in range(5)] == pytest.approx([p["ranking"][0]["score"] for p in alone], abs=1e-5)


def test_instances_of_many_rows_and_of_few_keep_their_order(server: Server) -> None:
    contexts = ["the cat sat on the mat. " * count for count in (1, 40, 2, 30, 1)]
    instances = [{"question": "the dog", "context": each} for each in contexts]
    together = ask(server, "question-answering", {"instances": instances})
    alone = [ask(server, "question-answering", {"inputs": each})[0] for each in instances]
    for ours, wanted in zip(together, alone, strict=True):
        assert ours["answers"][0]["score"] == pytest.approx(wanted["answers"][0]["score"], abs=1e-5)
        assert ours["tokens"] == wanted["tokens"]


def test_lines_of_a_batch_are_instances_of_the_task(server: Server) -> None:
    lines = [{"question": "the dog", "context": "the cat sat"}, {"inputs": {"question": "a", "context": "the sun"}}]
    body = "\n".join(map(json.dumps, lines))
    answer = server.post(
        "/invocations?model_name=question-answering", data=body, headers={"Content-Type": "application/jsonlines"}
    )
    bare, framed = map(json.loads, answer.text.splitlines())
    assert "answers" in bare
    assert "answers" in framed["predictions"][0]


def test_tensors_are_tensors_still(server: Server) -> None:
    names = ("input_ids", "attention_mask", "token_type_ids")
    body = {"inputs": [{"name": name, "shape": [1, 3], "datatype": "INT64", "data": [1, 1, 1]} for name in names]}
    answer = server.post("/invocations?model_name=embedding", json=body).json()
    assert answer["outputs"][0]["name"] == "last_hidden_state"


@pytest.mark.parametrize(
    ("task", "body", "message"),
    [
        ("embedding", {"inputs": "a", "top_k": 2}, "unknown key 'top_k'"),
        ("embedding", {"inputs": [{"text": "a", "text_pair": "b"}]}, "unknown key 'text_pair'"),
        ("text-classification", {"text": "a", "text_pairs": "b"}, "unknown key 'text_pairs'"),
        ("text-classification", {"text": "a", "text_pair": 3}, "text_pair.*expected a string, got int 3"),
        ("question-answering", {"question": "who?"}, 'expected {"question": "…", "context": "…"}'),
        ("text-ranking", {"query": "a", "documents": []}, "documents.*at least one string"),
        ("text-ranking", {"inputs": "a"}, 'expected {"query"'),
        ("zero-shot-classification", {"inputs": "a"}, "it has no labels to choose from"),
    ],
)
def test_what_is_no_instance_of_the_task_is_refused(task: str, body: Any, message: str, server: Server) -> None:
    answer = server.post(f"/invocations?model_name={task}", json=body)
    assert answer.status_code == 400
    assert re.search(message.replace("{", r"\{"), answer.json()["error"])
