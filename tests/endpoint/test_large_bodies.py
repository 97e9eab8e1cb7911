"""Asynchronous inference: large bodies and long calls pass when their settings say so, and memory stays bounded."""

import json
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests

from tests.support.harness import ONE_INSTANCE, Server, make_sleeper, wait_until

pytestmark = pytest.mark.stack

BINARY = "application/vnd.sagemaker-triton.binary+json"
MEGABYTE = 1024 * 1024

TOTAL = '''
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """The sum of all numbers."""

    def execute(self, requests):
        sums = [pb_utils.get_input_tensor_by_name(r, "x").as_numpy().sum(dtype=np.int64) for r in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("total", np.array([s], dtype=np.int64))]) for s in sums]
'''


def make_total(repository: Path) -> None:
    """`total`: UINT8 x [n] -> INT64 [1]."""
    folder = repository / "total"
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.py").write_text(TOTAL)
    (folder / "config.pbtxt").write_text(
        'backend: "python"\ninput { name: "x" data_type: TYPE_UINT8 dims: [-1] }\n'
        f'output {{ name: "total" data_type: TYPE_INT64 dims: [1] }}\n{ONE_INSTANCE}'
    )


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    repository = tmp_path_factory.mktemp("repository")
    make_total(repository)
    make_sleeper(repository)
    variables = {"SERVE_MAX_BODY_MB": "100", "SERVE_REQUEST_TIMEOUT": "120", "SERVE_WORKERS": "1"}
    running = Server(tmp_path_factory.mktemp("serve"), repository, **variables).wait_ready()
    yield running
    assert running.stop() == 0


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def status(pid: int, field: str) -> int:
    """A field of /proc/PID/status, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field))) // 1024


def tensor(size: int) -> tuple[bytes, dict[str, str], int]:
    """A body of `size` MB of numbers, its headers, and their sum."""
    numbers = np.arange(size * MEGABYTE, dtype=np.uint8)
    parameters = {"binary_data_size": numbers.nbytes}
    header = {"inputs": [{"name": "x", "shape": [numbers.size], "datatype": "UINT8", "parameters": parameters}]}
    head = json.dumps(header).encode()
    headers = {"Content-Type": f"{BINARY};json-header-size={len(head)}"}
    return head + numbers.tobytes(), headers, int(numbers.sum(dtype=np.int64))


def test_a_large_body_is_held_once_in_a_worker_and_once_in_shared_memory_and_let_go(server: Server) -> None:
    size = 90
    (worker,) = children(server.pid("gunicorn"))
    body, headers, total = tensor(1)
    assert server.post("/invocations?model_name=total", data=body, headers=headers).status_code == 200
    before = status(worker, "VmRSS")
    body, headers, total = tensor(size)
    reply = server.post("/invocations?model_name=total", data=body, headers=headers)
    assert reply.status_code == 200, reply.text
    assert reply.json()["outputs"][0]["data"] == [total]
    assert size <= status(worker, "VmHWM") - before < 2.3 * size  # the pages of shared memory count
    wait_until(lambda: status(worker, "VmRSS") - before < 0.3 * size, "it is let go")


def test_what_a_burst_took_is_given_back_once_a_worker_is_idle(server: Server) -> None:
    (worker,) = children(server.pid("gunicorn"))
    body, headers, total = tensor(20)
    before = status(worker, "VmRSS")
    with ThreadPoolExecutor(4) as threads:
        replies = threads.map(
            lambda _: server.post("/invocations?model_name=total", data=body, headers=headers), range(8)
        )
        assert [reply.json()["outputs"][0]["data"] for reply in replies] == [[total]] * 8
    wait_until(lambda: status(worker, "VmRSS") - before < 15, "the memory is given back")


def test_a_body_over_the_limit_is_a_413(server: Server) -> None:
    reply = server.post("/invocations?model_name=total", data=tensor(100)[0])
    assert (reply.status_code, reply.json()["code"]) == (413, "payload_too_large")


def test_a_body_that_is_still_coming_lies_in_the_run_folder(server: Server) -> None:
    workers = children(server.pid("nginx"))

    def open_files() -> list[str]:
        return [str(link.readlink()) for pid in workers for link in Path(f"/proc/{pid}/fd").iterdir()]

    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        head = f"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: {50 * MEGABYTE}\r\n\r\n"
        connection.sendall(head.encode() + bytes(20 * MEGABYTE))
        folder = str(server.run_dir / "nginx-client-body")
        wait_until(lambda: any(name.startswith(folder) for name in open_files()), "nginx writes into the run folder")


def sleep(server: Server, seconds: float) -> requests.Response:
    return server.post("/invocations", json={"model_name": "sleeper", "instances": [seconds]})


def test_a_long_call_is_answered(server: Server) -> None:
    assert sleep(server, 4).json()["predictions"] == [4.0]
