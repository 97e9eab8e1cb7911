"""The page and every GET route of a server with forty models, one of each text task among them."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from build_engines.__main__ import main
from clients.bert import TASKS
from tests.clients.text_models import save_checkpoint
from tests.page.browser import opened
from tests.support.harness import ROOT, Server, link_model

pytestmark = pytest.mark.stack

LABELS = {
    "token-classification": ["O", "B-CAT", "I-CAT"],
    "zero-shot-classification": ["contradiction", "neutral", "entailment"],
    "text-ranking": ["LABEL_0"],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("many")
    for task in TASKS:
        build_text_model(folder / "checkpoints", folder / "repository", task)
    question = '{"question": "who sat", "context": "the cat sat"}'  # the client's own is too long for this network
    (folder / "repository/question-answering/example.json").write_text(question)
    for number in range(40 - len(TASKS) - 1):
        copy_model(folder / "repository/embedding", folder / f"repository/embedding-{number}")
    link_model(ROOT / "model_repository/resnet", folder / "repository")
    running = Server(folder, folder / "repository", SERVE_PAGE="true", SERVE_WORKERS="1").wait_ready()
    yield running
    assert running.stop() == 0


def build_text_model(checkpoints: Path, repository: Path, task: str) -> None:
    labels = dict(enumerate(LABELS.get(task, ["bad", "good"])))
    ids = {name: index for index, name in labels.items()}
    folder = save_checkpoint(checkpoints / task, task, id2label=labels, label2id=ids)
    command = ["build", task, "--weights", str(folder), "--task", task, "--for", "cpu", "--out", str(repository)]
    assert main(command) == 0


def copy_model(folder: Path, target: Path) -> None:
    shutil.copytree(folder, target, copy_function=os.link)


def test_every_get_route_answers(server: Server) -> None:
    names = [model["name"] for model in server.get("/models").json()["models"]]
    assert len(names) == 40 and set(TASKS) <= set(names)
    paths = [path for path, methods in server.get("/openapi.json").json()["paths"].items() if "get" in methods]
    assert {"/models", "/ping", "/metrics"} <= set(paths)
    for path in paths:
        for name in names if "{name}" in path else [""]:
            assert server.get(path.format(name=name, version=1)).status_code == 200, (path, name)


@pytest.mark.parametrize("task", TASKS)
def test_the_page_runs_the_example_of_each_text_task(browser: Browser, server: Server, task: str) -> None:
    with opened(browser, server.url) as page:
        choose(page, task)
        page.get_by_role("button", name="Run").click()
        expect(page.locator("#json pre")).to_contain_text(f'"model_name": "{task}"')


def choose(page: Page, model: str) -> None:
    page.locator(f'.model input[value="{model}"]').check(force=True)
