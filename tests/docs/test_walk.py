"""Tests that the files that docs/architecture.md lists for a request are those that a profiler
records."""

import json
import re
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import requests

from tests.model_lifecycle.test_multimodel import Container, make_model
from tests.support.harness import ROOT, Server, make_identity, tensor, wait_until

pytestmark = pytest.mark.stack
WARM = 50  # number of calls before the one that is recorded
ROW = re.compile(r"^\| [^|]* \| (?P<only>[^|]*?) ?\| (?P<files>`[^|]*`) \|$", re.MULTILINE)


def documented(kind: str) -> set[str]:
    """Return the files that the page's table lists for this kind of request."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = [row for row in ROW.finditer(text) if kind in row["only"] or not row["only"]]
    return set(re.findall("`(.+?)`", " ".join(row["files"] for row in rows)))


def start(folder: Path, repository: Path, **variables: str) -> Server:
    """Start a server whose gunicorn records the files that its threads enter."""
    recording = {"PYTHONPATH": str(ROOT / "tests/support/walk"), "WALK_FOLDER": str(folder)}
    return Server(folder, repository, SERVE_WORKERS="1", **recording, **variables).wait_ready()


def entered(folder: Path, call: Callable[[], requests.Response]) -> set[str]:
    """Return the files that the thread that answers a warm call enters, and nginx.conf."""

    def recorded() -> set[str]:
        documents = [json.loads(file.read_text()) for file in folder.glob("*.json")]
        records = [
            files
            for each in documents
            if each["written"] > ended
            for files in each["threads"].values()
        ]
        calls = [
            {name for name, when in files.items() if began <= when <= ended} for files in records
        ]
        return next((names for names in calls if "predictor.py" in names), set())

    for _ in range(WARM):
        assert call().status_code == 200
    began = time.monotonic()
    reply = call()
    ended = time.monotonic()
    assert reply.status_code == 200, reply.text
    return {"nginx.conf"} | set(wait_until(recorded, "the worker has written its record"))


def test_trace_a_picture_through_the_files_that_the_page_names(
    tmp_path: Path, bundled: Path
) -> None:
    picture = next((ROOT / "model_repository/resnet").glob("example.*")).read_bytes()
    server = start(tmp_path, bundled)
    asked = {
        "params": {"model_name": "resnet"},
        "data": picture,
        "headers": {"Content-Type": "image/png"},
    }
    names = entered(tmp_path, lambda: server.post("/invocations", **asked))
    assert names == documented("picture")


def test_trace_json_tensors_through_the_files_that_the_page_names(tmp_path: Path) -> None:
    make_identity(tmp_path / "repository", ["FP32"])
    server = start(tmp_path, tmp_path / "repository")
    body = {
        "inputs": [{"name": "in_FP32", "shape": [1, 2], "datatype": "FP32", "data": [1.5, -2.25]}]
    }
    names = entered(tmp_path, lambda: server.post("/v2/models/identity/infer", json=body))
    assert names == documented("KServe")


def test_trace_a_multi_model_call_through_the_files_of_the_page(tmp_path: Path) -> None:
    root = tmp_path / "archives"
    container = Container(
        start(
            tmp_path,
            tmp_path / "none",
            SAGEMAKER_MULTI_MODEL="true",
            SERVE_MODEL_REPOSITORY=str(root),
        ),
        root,
    )
    make_model(container.path("ten") / "net")
    loaded = container.load("ten", "ten")
    assert loaded.status_code == 200, loaded.text
    names = entered(tmp_path, lambda: container.invoke("ten", json={"inputs": [tensor([1])]}))
    assert names == documented("archive")
