"""Processes that run and do not work: found, told in the log, replaced. tests/faults stops each of them (SIGSTOP)."""

import re
from collections.abc import Iterator

import psutil
import pytest
import requests

from tests.support.harness import SLEEPER_CLIENT, Server, make_sleeper, wait_until

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


def test_requests_and_executes_may_last_longer_than_a_hang(server: Server) -> None:
    pids = {name: server.pid(name) for name in ("tritonserver", "gunicorn", "nginx")}
    workers = {child.pid for child in psutil.Process(pids["gunicorn"]).children()}
    reply = sleep(server, 4 * HANG_SECONDS)
    assert (reply.status_code, reply.json()["predictions"]) == (200, [4.0 * HANG_SECONDS])
    assert {name: server.pid(name) for name in pids} == pids
    assert {child.pid for child in psutil.Process(pids["gunicorn"]).children()} == workers


def test_a_worker_that_hangs_in_a_client_is_replaced_and_its_caller_told(server: Server) -> None:
    master = psutil.Process(server.pid("gunicorn"))
    workers = {child.pid for child in master.children()}
    reply = sleep(server, -1)
    assert (reply.status_code, reply.json()["code"]) == (503, "frontend_unavailable")
    told = re.findall(r"process (\d+) of gunicorn did not answer for 3 s; killing it", server.output())
    assert len(told) == 1 and int(told[0]) in workers
    wait_until(lambda: {child.pid for child in master.children()} - workers, "another worker")
    wait_until(lambda: sleep(server, 0).status_code == 200, "good answers")
    assert master.pid == server.pid("gunicorn")


def test_each_worker_beats(server: Server, name: str = "gunicorn") -> None:
    workers = [str(child.pid) for child in psutil.Process(server.pid(name)).children()]
    beats = {worker: server.run_dir / f"{name}-workers" / worker for worker in workers}
    assert len(beats) == 2
    first = {name: file.stat().st_mtime for name, file in beats.items()}
    wait_until(lambda: all(beats[name].stat().st_mtime > time for name, time in first.items()), "each beats again")
