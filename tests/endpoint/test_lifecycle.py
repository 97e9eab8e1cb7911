"""Tests how a container starts, why a start may fail, and how it stops. tests/faults tests what
happens when a process dies."""

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.support.harness import (
    ROOT,
    Server,
    link_model,
    make_scale,
    make_sleeper,
    tensor,
    wait_until,
)
from tests.support.load import Load
from tests.support.streaming_models import make_teller

pytestmark = pytest.mark.stack

EXAMPLE = (ROOT / "model_repository/resnet/example.png").read_bytes()
SCALE = {"inputs": [tensor([1, 2])]}


@pytest.fixture
def small(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    folder.mkdir()
    make_scale(folder)
    make_sleeper(folder)
    return folder


def catches(pid: int, number: int) -> bool:
    status = Path(f"/proc/{pid}/status").read_text()
    return bool(int(status.partition("SigCgt:")[2].split()[0], 16) >> (number - 1) & 1)


def test_end_the_start_on_an_early_signal(small: Path, tmp_path: Path) -> None:
    server = Server(tmp_path, small)
    pid = server.process.pid
    while not catches(pid, signal.SIGTERM):
        assert server.process.poll() is None
    assert not server.run_dir.exists()
    assert server.stop() == 0
    assert not server.run_dir.exists()


def test_stop_everything_on_sigint_while_starting(small: Path, tmp_path: Path) -> None:
    server = Server(tmp_path, small)
    wait_until(lambda: (server.run_dir / "status.json").exists(), "a status")
    assert server.stop(signal.SIGINT) == 0
    server.wait_gone()


def test_finish_accepted_requests_on_sigterm_and_leave_no_file(small: Path, tmp_path: Path) -> None:
    before, awaited = time.time(), tmp_path / "go-on"
    link_model(ROOT / "model_repository/resnet", small)
    make_teller(small)
    files = set(small.rglob("*"))
    server = Server(tmp_path, small).wait_ready()

    def call(number: int) -> requests.Response:
        if number % 2:
            return server.post(params={"model_name": "scale"}, json=SCALE)
        return server.post(
            params={"model_name": "resnet"}, data=EXAMPLE, headers={"Content-Type": "image/png"}
        )

    headers = {"Connection": "close", "Accept": "application/jsonlines"}
    body = {"model_name": "teller", "text_input": f"a {awaited} c"}
    stream = server.post(json=body, headers=headers, stream=True)
    lines = stream.iter_lines(chunk_size=1)
    next(lines)
    with ThreadPoolExecutor(1) as pool:
        slow = pool.submit(server.post, json={"model_name": "sleeper", "instances": [4]})
        wait_until(lambda: server.in_flight() == 2, "a stream and a slow request are in flight")
        with Load(call, callers=24) as load:
            wait_until(lambda: load.answers["200"] > 100, "a load of 200s")
            server.process.terminate()
            wait_until(lambda: server.status()["stage"] == "stopping", "it is stopping")
            awaited.touch()
            assert len(list(lines)) == 2
            assert server.stop() == 0
    assert slow.result().json()["predictions"] == [4.0]
    assert (set(load.answers), load.cut) == ({"200"}, 0)
    logged = server.entries("nginx", path="/invocations")
    assert {line["status"] for line in logged} == {200}
    assert len(logged) == load.answers["200"] + 2
    server.wait_gone()
    assert [path for path in checked_out() if path.stat().st_mtime > before] == []
    # the Python backend's stub would write bytecode into this folder
    assert set(small.rglob("*")) == files


def checked_out() -> Iterator[Path]:
    """Yield all files except those of tools, the benchmark and the image's build, which other tests
    may be changing."""
    tools = {".git", ".venv", "__pycache__", ".cache", "dist"}
    tools |= {".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis"}
    for parent, folders, names in os.walk(ROOT):
        folders[:] = set(folders) - tools
        yield from (Path(parent, name) for name in names)
