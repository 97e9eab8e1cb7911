"""Processes that run but do not work are found, logged and replaced."""

import os
import re
import signal
from collections.abc import Iterator

import psutil
import pytest
import requests

from tests.support.harness import SLEEPER_CLIENT, Server, make_sleeper, wait_until

pytestmark = pytest.mark.stack

HANG_SECONDS = 3
# A call into C that keeps Python's lock: no thread of that worker runs any more, its main thread neither.
HANGING_CLIENT = SLEEPER_CLIENT.replace(
    '        return {"seconds"',
    '        if instances[0] < 0:\n            __import__("ctypes").PyDLL(None).sleep(1000)\n        return {"seconds"',
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("hangs")
    (folder / "models").mkdir()
    make_sleeper(folder / "models")
    (folder / "models/sleeper/client.py").write_text(HANGING_CLIENT)
    variables = {"SERVE_HANG_TIMEOUT": str(HANG_SECONDS), "SERVE_WORKERS": "2", "SERVE_REQUEST_TIMEOUT": "60"}
    running = Server(folder, folder / "models", **variables).wait_ready()
    yield running
    assert running.stop() == 0
    running.wait_gone()


def sleep(server: Server, seconds: float) -> requests.Response:
    return server.post(json={"model_name": "sleeper", "instances": [seconds]})


def gunicorn_workers(server: Server) -> set[int]:
    master = psutil.Process(server.pid("gunicorn"))
    wait_until(lambda: len(master.children()) == 2, "two workers")
    return {child.pid for child in master.children()}


def test_requests_and_executes_may_last_longer_than_a_hang(server: Server) -> None:
    pids = {name: server.pid(name) for name in ("tritonserver", "gunicorn", "nginx")}
    workers = gunicorn_workers(server)
    reply = sleep(server, 4 * HANG_SECONDS)
    assert (reply.status_code, reply.json()["predictions"]) == (200, [4.0 * HANG_SECONDS])
    assert {name: server.pid(name) for name in pids} == pids
    assert gunicorn_workers(server) == workers


def test_a_worker_that_hangs_in_a_client_is_replaced(server: Server) -> None:
    master, workers = server.pid("gunicorn"), gunicorn_workers(server)
    reply = sleep(server, -1)
    assert (reply.status_code, reply.json()["code"]) == (503, "frontend_unavailable")
    hung = wait_until(lambda: re.findall(r"WORKER TIMEOUT \(pid:(\d+)\)", server.output()), "the log names it")
    assert set(map(int, hung)) < workers
    wait_until(lambda: gunicorn_workers(server) - workers, "another worker")
    wait_until(lambda: sleep(server, 0).status_code == 200, "good answers")
    assert master == server.pid("gunicorn")


def test_a_tritonserver_that_is_stopped_is_restarted(server: Server) -> None:
    others = {name: server.pid(name) for name in ("gunicorn", "nginx")}
    first = server.pid("tritonserver")
    os.kill(first, signal.SIGSTOP)
    wait_until(lambda: server.pid("tritonserver") not in (first, 0), "another tritonserver")
    wait_until(lambda: sleep(server, 0).status_code == 200, "good answers")
    assert {name: server.pid(name) for name in others} == others
