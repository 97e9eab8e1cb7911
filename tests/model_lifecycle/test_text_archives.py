"""Archives of text models whose tokenizers are stored in different forms, in one worker."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support.harness import (
    ROOT,
    SLEEPER_CLIENT,
    Server,
    expect_error,
    link_model,
    make_sleeper,
)

pytestmark = pytest.mark.stack

WORKER = SLEEPER_CLIENT.replace("import numpy", "import sys\n\nimport numpy").replace(
    'float(row[0]) for row in outputs["slept"]', '"transformers" in sys.modules'
)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    variables = {
        "SAGEMAKER_MULTI_MODEL": "true",
        "SERVE_WORKERS": "1",
        "SERVE_MODEL_REPOSITORY": str(tmp_path),
    }
    running = Server(tmp_path, tmp_path / "none", **variables).wait_ready()
    yield running
    assert running.stop() == 0
    running.wait_gone()


def bert(archive: Path) -> Path:
    """Put the bundled model into an archive, with a copy of its tokenizer; return that folder."""
    link_model(ROOT / "model_repository/bert", archive)
    tokenizer = archive / "bert/tokenizer"
    shutil.rmtree(tokenizer)
    shutil.copytree(ROOT / "model_repository/bert/tokenizer", tokenizer)
    return tokenizer


def test_import_transformers_only_to_read_a_vocabulary(server: Server, tmp_path: Path) -> None:
    bert(tmp_path / "whole/model")
    tokenizer = bert(tmp_path / "words/model")
    (tokenizer / "tokenizer.json").unlink()
    tokenizer = bert(tmp_path / "pieces/model")
    (tokenizer / "tokenizer.json").unlink()
    (tokenizer / "vocab.txt").rename(tokenizer / "spiece.model")
    (tokenizer / "tokenizer_config.json").write_text('{"tokenizer_class": "AlbertTokenizer"}')
    make_sleeper(tmp_path / "worker/model", client=WORKER)

    def load(name: str) -> requests.Response:
        return server.post(
            "/models", json={"model_name": name, "url": str(tmp_path / name / "model")}
        )

    def predictions(name: str, instance: Any) -> Any:
        reply = server.post(f"/models/{name}/invoke", json={"instances": [instance]})
        assert reply.status_code == 200, reply.text
        return reply.json()["predictions"]

    text = "Two naïve foxes; 日本 and a very_long_word"
    assert load("worker").status_code == load("whole").status_code == 200
    embedding = predictions("whole", text)
    assert predictions("worker", 0) == [False]
    assert load("words").status_code == 200
    assert predictions("words", text) == embedding
    assert predictions("worker", 0) == [True]
    refused = load("pieces")
    expect_error(refused, 400, "load_failed", "'sentencepiece'")
