"""Tests what users bring, built with one command and served by the whole container: each row of
docs/models.md, and the README's calls."""

import contextlib
import json
import re
import shlex
import subprocess
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import chain
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from playwright.sync_api import expect

from build_engines.__main__ import main
from clients.text import TASKS
from tests.clients.vision_models import assert_detections, images, pipeline
from tests.endpoint.own_models import FOLDER, MAKERS, make, make_tokens
from tests.page.browser import chromium, opened
from tests.support.harness import PATIENCE, ROOT, Server, b64, encoded
from tests.support.readme import CUT, commands

pytestmark = pytest.mark.stack

PAGE = (ROOT / "docs/models.md").read_text()
_ROW = re.compile(
    r"^\| (.*?) \|(.*?)\| `(build (\S+) .*?)` \| `(.+?)` \| (`\{.+\}`|as above.*) \|$", re.MULTILINE
)
TYPES = {".jpg": "image/jpeg", ".csv": "text/csv"}
SAME = "as above"
EACH = f"{SAME}, each with "


@dataclass(frozen=True)
class Row:
    """A row of the page's table. `body` is JSON or the name of a file. `reply` is JSON, SAME, or
    EACH followed by further keys of each detection."""

    kind: str
    task: str
    command: str
    model: str
    body: str
    reply: str


ROWS = [Row(*map(str.strip, match.groups())) for match in _ROW.finditer(PAGE)]
README = commands("Add your model")
BUILD = ".venv/bin/python -m build_engines "
CALLS = [line for line in README if line.startswith("curl ")]
TEXTS = [row for row in ROWS if row.task.startswith(tuple(TASKS))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("own")


def rows_of(items: Sequence[Any]) -> Sequence[Row]:
    """Return the rows whose models the selected tests of this module need: all rows, unless each of
    these tests is about one row."""
    tests = [item for item in items if item.path == Path(__file__)]
    rows = [item.callspec.params["row"] for item in tests if "row" in item.fixturenames]
    return rows if len(rows) == len(tests) else ROWS


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest, folder: Path) -> Iterator[Server]:
    wanted = {row.model: row.command for row in rows_of(request.session.items)}
    for model, command in wanted.items():
        make(model, folder / model)
        with contextlib.chdir(folder / model):  # this server loads the models
            words = [
                *shlex.split(command),
                "--for",
                "cpu",
                "--no-load",
                "--out",
                str(folder / "repository"),
            ]
            assert main(words) == 0, command
    # the client's own example is too long for this network
    question = '{"question": "who sat", "context": "the cat sat"}'
    if "answers" in wanted:
        (folder / "repository/answers/example.json").write_text(question)
    make_tokens(folder / "repository/tokens")
    # in BF16, the answers in a batch would be rounded differently
    own = {"SERVE_PAGE": "true", "SERVE_WORKERS": "1", "SERVE_CPU_ENGINE": "onnxruntime"}
    started = Server(folder, folder / "repository", **own).wait_ready()
    yield started
    started.kill_all()


def parse(text: str) -> Any:
    return json.loads(text.strip("`").replace("…", f'"{CUT}"'))


def shown_reply(row: Row) -> Any:
    """Return the complete reply to the row's body. The page shows one of its predictions."""
    until = ROWS[: ROWS.index(row) + 1]
    reply = parse(next(each.reply for each in reversed(until) if not each.reply.startswith(SAME)))
    if row.reply.startswith(EACH):
        reply["detections"][0] |= parse(row.reply.removeprefix(EACH))
    if row.task == "tensors":
        return reply
    of_text = {"tokens": 5, "truncated": False} if row in TEXTS else {}
    return {"predictions": [reply | of_text]}


def shape(value: Any) -> Any:
    """Return the keys and the kinds of values. A list is represented by its first item."""
    if isinstance(value, dict):
        return {key: shape(item) for key, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value[:1]]
    return float if isinstance(value, int | float) and not isinstance(value, bool) else type(value)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.kind}: {row.body}")
def test_answer_each_row_of_the_page(row: Row, server: Server, folder: Path) -> None:
    path = f"/invocations?model_name={row.model}"
    if row.body.startswith("{"):
        answer = server.post(path, json=json.loads(row.body))
    else:
        file = folder / row.model / row.body
        answer = server.post(
            path, data=file.read_bytes(), headers={"Content-Type": TYPES[file.suffix]}
        )
    assert answer.status_code == 200, answer.text
    document = answer.json()
    assert (document.pop("model_name"), document.pop("model_version")) == (row.model, "1")
    assert shape(document) == shape(shown_reply(row))


@pytest.mark.parametrize("command", CALLS)
def test_answer_each_call_of_the_readme(command: str, server: Server, folder: Path) -> None:
    local = command.replace("http://localhost:8080", server.url)
    model = re.findall(r"model_name=(\w+)", command)[0]
    done = subprocess.run(
        ["bash", "-ec", local], cwd=folder / model, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stderr
    assert {"predictions", "outputs"} & json.loads(done.stdout).keys(), done.stdout


def test_find_boxes_in_images_of_several_sizes_as_transformers_does(
    server: Server, folder: Path
) -> None:
    whole = pipeline("object-detection", folder / "animals" / FOLDER, "yolos")
    body = {
        "instances": [b64(encoded(each)) for each in images()],
        "parameters": {"confidence": 0.1},
    }
    predictions = ask(server, "animals", body)
    for picture, prediction in zip(images(), predictions, strict=True):
        assert_detections(prediction, picture, whole(picture, threshold=0.1))


def test_name_instance_and_size_of_a_too_narrow_image(server: Server) -> None:
    instances = [b64(encoded(Image.new("RGB", (900, height)))) for height in (900, 9)]
    answer = server.post("/invocations?model_name=animals", json={"instances": instances})
    assert answer.status_code == 400
    assert "instance 1" in answer.json()["error"] and "900×9" in answer.json()["error"]


def test_answer_every_get_route_for_every_model(server: Server) -> None:
    clients = {model["name"]: model["client"] for model in server.get("/models").json()["models"]}
    assert clients.keys() == {*MAKERS, "tokens"}
    paths = [
        path
        for path, methods in server.get("/openapi.json").json()["paths"].items()
        if "get" in methods
    ]
    assert {"/models", "/ping", "/metrics", "/examples/{name}"} <= set(paths)
    for path in paths:
        for name in clients if "{name}" in path else [""]:
            has_example = clients.get(name) or path != "/examples/{name}"
            status = server.get(path.format(name=name, version=1)).status_code
            assert status == (200 if has_example else 400), (path, name)


def test_run_the_example_of_each_text_task_on_the_page(server: Server) -> None:
    with chromium() as browser, opened(browser, server.url) as page:
        for model in {row.model for row in TEXTS}:
            page.locator(f'.model input[value="{model}"]').check(force=True)
            page.get_by_role("button", name="Run").click()
            expect(page.locator("#json pre")).to_contain_text(
                f'"model_name": "{model}"', timeout=1000 * PATIENCE
            )


def test_build_a_row_of_the_page_with_the_readme() -> None:
    builds = [line.removeprefix(BUILD) for line in README if line.startswith(BUILD)]
    assert len(builds) == len(CALLS) == 1
    assert set(builds) <= {row.command for row in ROWS}


def test_have_a_model_for_each_row_of_the_table_and_vice_versa() -> None:
    assert len(ROWS) == len(re.findall(r"\| `build ", PAGE))
    assert {row.model for row in ROWS} == set(MAKERS)
    assert len({row.command for row in ROWS}) == len(MAKERS)


def test_have_a_row_for_each_text_task() -> None:
    assert {row.task for row in ROWS} >= set(TASKS)


def ask(server: Server, model: str, body: Any) -> list[Any]:
    answer = server.post(f"/invocations?model_name={model}", json=body)
    assert answer.status_code == 200, answer.text
    predictions: list[Any] = answer.json()["predictions"]
    return predictions


@pytest.mark.parametrize("row", TEXTS, ids=lambda row: str(row.task))
def test_get_the_same_answer_for_every_form_of_body(row: Row, server: Server) -> None:
    body = json.loads(row.body)
    parameters = body.pop("parameters", {})
    value = body.get("inputs", body)
    (prediction,) = ask(server, row.model, {"instances": [value], "parameters": parameters})
    assert ask(server, row.model, {"inputs": value, "parameters": parameters}) == [prediction]
    assert (
        ask(server, row.model, {"inputs": [value, value], "parameters": parameters})
        == [prediction] * 2
    )
    whole = value if isinstance(value, dict) else {"text": value}
    assert ask(server, row.model, {**whole, "parameters": parameters}) == [prediction]


@pytest.mark.parametrize("row", TEXTS, ids=lambda row: str(row.task))
def test_answer_texts_of_any_length_together_as_alone(row: Row, server: Server) -> None:
    body = json.loads(row.body)
    value = body.get("inputs", body)
    bodies = [{"instances": [longer(value, count)]} for count in (1, 2, 3, 5, 8)]
    alone = [ask(server, row.model, body) for body in bodies]
    with ThreadPoolExecutor(len(bodies)) as pool:
        together = list(pool.map(lambda body: ask(server, row.model, body), bodies * 4))
    for answer, wanted in zip(together, alone * 4, strict=True):
        assert_alike(answer, wanted)


def longer(value: Any, count: int) -> Any:
    """Repeat a text, or the last text of an instance of several."""
    if isinstance(value, dict):
        *_, last = value
        return value | {last: longer(value[last], count)}
    if isinstance(value, list):
        return [longer(text, count) for text in value]
    return " ".join([value] * count)


def assert_alike(value: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert value.keys() == wanted.keys()
        value, wanted = list(value.values()), list(wanted.values())
    if isinstance(wanted, list):
        for one, other in zip(value, wanted, strict=True):
            assert_alike(one, other)
    else:
        assert value == (pytest.approx(wanted, abs=1e-5) if isinstance(wanted, float) else wanted)


def test_send_the_mask_and_the_types_if_the_model_requires_them(server: Server) -> None:
    instances = [{"text": "the cat", "text_pair": "a dog"}, "the sun"]
    parameters = {"function_to_apply": "none", "top_k": 24}
    predictions = ask(server, "tokens", {"instances": instances, "parameters": parameters})
    received = [
        [each["score"] for each in sorted(prediction["classes"], key=itemgetter("class_id"))]
        for prediction in predictions
    ]
    pair = [2, 5, 7, 3, 6, 8, 3, 0], [1, 1, 1, 1, 1, 1, 1, 0], [0, 0, 0, 0, 1, 1, 1, 0]
    text = [2, 5, 17, 3, 0, 0, 0, 0], [1, 1, 1, 1, 0, 0, 0, 0], [0] * 8
    assert received == [list(chain(*pair)), list(chain(*text))]


def test_split_more_rows_than_a_batch_into_several_calls(server: Server) -> None:
    documents = [f"the {word} sat on the mat" for word in ("cat", "dog", "fox", "sun", "moon") * 20]
    (all_at_once,) = ask(server, "ranks", {"query": "the cat", "documents": documents})
    ranking = all_at_once["ranking"]
    assert sorted(entry["index"] for entry in ranking) == list(range(100))
    alone = ask(
        server,
        "ranks",
        {"instances": [{"query": "the cat", "documents": [each]} for each in documents[:5]]},
    )
    scores = {entry["index"]: entry["score"] for entry in ranking}
    assert [scores[index] for index in range(5)] == pytest.approx(
        [p["ranking"][0]["score"] for p in alone], abs=1e-5
    )


def test_keep_the_order_of_instances_with_many_and_few_rows(server: Server) -> None:
    contexts = ["the cat sat on the mat. " * count for count in (1, 40, 2, 30, 1)]
    instances = [{"question": "the dog", "context": each} for each in contexts]
    together = ask(server, "answers", {"instances": instances})
    alone = [ask(server, "answers", {"inputs": each})[0] for each in instances]
    for ours, wanted in zip(together, alone, strict=True):
        assert ours["answers"][0]["score"] == pytest.approx(wanted["answers"][0]["score"], abs=1e-5)
        assert ours["tokens"] == wanted["tokens"]


def test_read_lines_of_a_batch_as_instances_of_the_task(server: Server) -> None:
    lines = [
        {"question": "the dog", "context": "the cat sat"},
        {"inputs": {"question": "a", "context": "the sun"}},
    ]
    body = "\n".join(map(json.dumps, lines))
    headers = {"Content-Type": "application/jsonlines"}
    answer = server.post("/invocations?model_name=answers", data=body, headers=headers)
    bare, framed = map(json.loads, answer.text.splitlines())
    assert "answers" in bare
    assert "answers" in framed["predictions"][0]


@pytest.mark.parametrize(
    ("model", "body", "name"),
    [
        ("sentences", {"inputs": "a", "top_k": 2}, "'top_k'"),
        ("sentences", {"inputs": [{"text": "a", "text_pair": "b"}]}, "'text_pair'"),
        ("reviews", {"text": "a", "text_pairs": "b"}, "'text_pairs'"),
        ("reviews", {"text": "a", "text_pair": 3}, "text_pair"),
        ("answers", {"question": "who?"}, "context"),
        ("ranks", {"query": "a", "documents": []}, "documents"),
        ("ranks", {"inputs": "a"}, "query"),
        ("topics", {"inputs": "a"}, "labels"),
    ],
)
def test_refuse_an_instance_that_does_not_fit_the_task(
    model: str, body: Any, name: str, server: Server
) -> None:
    answer = server.post(f"/invocations?model_name={model}", json=body)
    assert answer.status_code == 400
    assert name in answer.json()["error"]
