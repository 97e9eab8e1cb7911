"""Tests that a model whose process dies is reloaded without affecting other models, and is refused
if it dies too often."""

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
import requests

from serving.errors import ModelRefused
from serving.model_status.registry import Registry
from serving.model_status.shared_files import ModelsFile
from serving.settings.settings import Settings
from serving.triton.gateway import TritonGateway
from tests.support.harness import (
    EXITS,
    PATIENCE,
    Server,
    make_python_model,
    make_scale,
    module_server,
    tensor,
    wait_until,
)
from tests.support.load import Load

pytestmark = pytest.mark.stack

PORTS = """max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [2] }
output { name: "y" data_type: TYPE_FP32 dims: [2] }
"""
CHAIN = f"""platform: "ensemble"
{PORTS}ensemble_scheduling {{ step {{
  model_name: "PART" model_version: -1
  input_map {{ key: "x" value: "x" }}
  output_map {{ key: "y" value: "y" }}
}} }}
"""


def make_ends(repository: Path) -> None:
    make_python_model(repository / "ends", PORTS, EXITS)
    for name, part in (("chain", "ends"), ("outer", "chain")):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "config.pbtxt").write_text(CHAIN.replace("PART", part))


started = module_server(make_scale, make_ends, SERVE_WORKERS="2")


@pytest.fixture(scope="module")
def running(started: Server) -> Iterator[Server]:
    """Serve `ends`, the ensemble `chain` that contains it, the ensemble `outer` that contains
    `chain`, and `scale`."""
    triton = started.pid("tritonserver")
    yield started
    assert started.pid("tritonserver") == triton, "no test restarts tritonserver"


def ask(server: Server, model: str, x: float = 1) -> requests.Response:
    one = tensor([x, x])
    return server.post(f"/v2/models/{model}/infer", json={"inputs": [one]})


def serves(server: Server, model: str) -> bool:
    return ask(server, model).status_code == 200


def stub(server: Server) -> int:
    """Return the pid of the running process of `ends`, or 0."""
    for each in psutil.Process(server.pid("tritonserver")).children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
            if "/ends/1/" in " ".join(each.cmdline()):
                return each.pid
    return 0


def crashes(server: Server) -> float:
    match = re.search(
        r'^serve_model_crashes_total{model="ends"} (\S+)$', server.scrape().text, re.MULTILINE
    )
    return float(match[1]) if match else 0.0


def new_worker(server: Server) -> Registry:
    """Return the models as seen by a worker that has not answered any request yet."""
    settings = replace(Settings(), run_dir=server.run_dir)
    gateway = TritonGateway(f"unix:{settings.triton_grpc}", PATIENCE)
    return Registry(gateway, ModelsFile(settings.models_file), settings.deaths_socket)


def is_unloaded(server: Server, name: str) -> bool:
    """Return whether the model is unloaded. If the process of a model died, Triton never reports
    that until the model has been loaded again."""
    return {entry.reason for entry in new_worker(server).index()[name]} == {"unloaded"}


def test_reload_a_model_that_ended_its_process_and_no_other(running: Server) -> None:
    with Load(lambda _: ask(running, "scale"), callers=2, pause=0.2) as load:
        wait_until(lambda: load.answers["200"] > 10, "a first load of 200s")
        reply = ask(running, "ends", 13)
        assert (reply.status_code, reply.json()["code"]) == (503, "model_restarting"), reply.text
        assert "ends" in reply.json()["error"]
        assert reply.headers["Retry-After"]
        wait_until(lambda: serves(running, "ends"), "it is served again")
        assert running.ping() == 200
    assert set(load.answers) == {"200"}
    wait_until(
        lambda: running.says("'ends_0_0'", "exited", "3", process="manager"), "the log says so"
    )
    assert crashes(running) == 1


def test_answer_each_caller_correctly_after_a_pause(running: Server) -> None:
    paused = psutil.Process(stub(running))
    paused.suspend()
    with ThreadPoolExecutor(4) as pool:
        replies = [pool.submit(ask, running, "ends", x) for x in range(4)]
        time.sleep(2.5)  # longer than Triton waits for a response of the stub (1 s)
        paused.resume()
        answers = [reply.result() for reply in replies]
    answers += [ask(running, "ends", x) for x in range(4, 8)]
    assert [answer.json()["outputs"][0]["data"] for answer in answers] == [[x, x] for x in range(8)]
    assert stub(running) == paused.pid


def test_reload_a_nested_part_of_an_ensemble(running: Server) -> None:
    reply = ask(running, "outer", 13)
    assert (reply.status_code, reply.json()["code"]) == (503, "model_restarting"), reply.text
    wait_until(
        lambda: all(serves(running, name) for name in ("outer", "chain", "ends")),
        "all are served again",
    )


def test_refuse_only_a_model_that_keeps_dying_and_retry_later(running: Server) -> None:
    with Load(lambda _: ask(running, "scale"), callers=2, pause=0.2) as load:
        wait_until(
            lambda: ask(running, "ends", 13).json()["code"] == "model_refused", "it is refused"
        )
        # Before the refusal, it is loaded once more, so callers that use Triton directly are
        # answered.
        wait_until(lambda: not stub(running) and is_unloaded(running, "ends"), "it is unloaded")
        reply = ask(running, "ends")
        # Ask several workers, including ones that never got a request for the ensemble while it was
        # served.
        assert {running.ping() for _ in range(20)} == {200}
        assert {ask(running, "chain").json()["code"] for _ in range(20)} == {"model_refused"}
        for name in ("chain", "outer"):
            with pytest.raises(ModelRefused):
                new_worker(running).get(name)
    assert set(load.answers) == {"200"}
    assert (reply.status_code, reply.json()["code"]) == (503, "model_refused"), reply.text
    assert int(reply.headers["Retry-After"]) > 100
    assert "status 3" in reply.json()["error"]
    listed = {model["name"]: model for model in running.get("/models").json()["models"]}
    assert "status 3" in listed["ends"]["error"]
    wait_until(lambda: running.get("/v2/health/ready").status_code == 200, "the others are ready")
    assert running.get("/v2/models/ends/ready").status_code != 200
    wait_until(lambda: running.says("'ends'", "300 s", process="manager"), "the log says so")
    end_refusal(running, "ends")
    wait_until(lambda: serves(running, "ends") and serves(running, "chain"), "it is tried again")


def end_refusal(server: Server, name: str) -> None:
    """Start a new manager, which finds that the refusal has expired."""
    table, manager = (
        ModelsFile(replace(Settings(), run_dir=server.run_dir).models_file),
        server.pid("manager"),
    )
    os.kill(manager, signal.SIGSTOP)
    models = table.look()
    table.write(
        replace(models, entries={**models.entries, name: replace(models.entries[name], until=0.1)})
    )
    os.kill(manager, signal.SIGKILL)
