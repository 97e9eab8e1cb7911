"""Tests archives that crash or hang: other models stay available, and the archive can always be
unloaded and loaded again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.model_lifecycle.test_multimodel import CONFIG, Container
from tests.support.harness import EXITS, Server, expect_error, tensor, wait_until

pytestmark = pytest.mark.stack


def make_archive(root: Path, name: str) -> None:
    folder = root / name / "model/net"
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.py").write_text(EXITS)
    (folder / "config.pbtxt").write_text(CONFIG)


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    folder = tmp_path_factory.mktemp("crashes")
    root = folder / "models"
    for name in ("sound", "bad"):
        make_archive(root, name)
    variables = {
        "SAGEMAKER_MULTI_MODEL": "true",
        "SERVE_MODEL_REPOSITORY": str(root),
        "SERVE_REQUEST_TIMEOUT": "5",
    }
    server = Server(folder, folder / "none", SERVE_WORKERS="2", **variables).wait_ready()
    container = Container(server, root)
    for name in ("sound", "bad"):
        loaded = container.load(name, name)
        assert loaded.status_code == 200, loaded.text
    yield container
    assert server.stop() == 0
    assert "did not stop in time" not in server.output()
    assert "died: it was killed" not in server.output(), (
        "the next load does not use a process of an earlier load"
    )
    server.wait_gone()


def status(running: Container, name: str, x: float = 1) -> int:
    return running.invoke(name, json={"inputs": [tensor([x])]}).status_code


def serves(running: Container, name: str) -> bool:
    return status(running, name) == 200


def reloads(running: Container, name: str) -> None:
    """Check that the archive can be unloaded, loaded and called, and that the same tritonserver
    still serves the others."""
    triton = running.server.pid("tritonserver")
    unloaded = running.unload(name)
    assert unloaded.status_code == 200, unloaded.text
    expect_error(running.invoke(name, json={"inputs": [tensor([1])]}), 404, "model_not_loaded")
    loaded = running.load(name, name)
    assert loaded.status_code == 200, loaded.text
    assert serves(running, name) and serves(running, "sound")
    assert running.server.pid("tritonserver") == triton


def test_unload_and_load_an_archive_that_hangs(running: Container) -> None:
    expect_error(running.invoke("bad", json={"inputs": [tensor([101])]}), 504, "triton_timeout")
    reloads(running, "bad")


def test_serve_a_refused_archive_after_another_load(running: Container) -> None:
    def refused() -> bool:
        reply = running.invoke("bad", json={"inputs": [tensor([13])]})
        assert reply.json()["code"] in ("model_restarting", "model_refused"), reply.text
        return bool(reply.json()["code"] == "model_refused")

    wait_until(refused, "it is refused")
    assert running.server.ping() == 200 and serves(running, "sound")
    reloads(running, "bad")
