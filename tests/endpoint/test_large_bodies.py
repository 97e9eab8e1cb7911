"""Tests that large bodies are accepted if the settings allow them, go to Triton through /dev/shm,
and are freed again."""

import json
import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.support.harness import PATIENCE, Server, free_port, make_python_model, memory, wait_until

pytestmark = pytest.mark.stack

BINARY = "application/vnd.sagemaker-triton.binary+json"
MEGABYTE = 2**20
SHARED = Path("/dev/shm")
CONFIG = (
    'input { name: "x" data_type: TYPE_FP32 dims: [-1] }\noutput { name: "ends" data_type: '
    "TYPE_FP32 dims: [2] }\n"
)
MODEL = '''
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """The least and the greatest of an input's numbers, which -1 must not be."""

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        array = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        if array[0] == -1:
            return pb_utils.InferenceResponse(error=pb_utils.TritonError("it must not be -1"))
        ends = np.array([array.min(), array.max()], dtype=np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("ends", ends)])
'''
CLIENT = '''
"""A number becomes a tensor of 4 MB that holds nothing else."""

import numpy as np

from clients.base import ModelClient
from serving.codecs import JSON


class Client(ModelClient):
    codec = JSON
    example = b"0"

    def prepare(self, instances, parameters):
        return {"x": np.full((1, 2**20), instances[0], np.float32)}

    def postprocess(self, outputs, inputs, instances, parameters):
        return outputs["ends"].tolist()
'''


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Start a server whose gRPC port is exposed, so that its workers must show the secret to share
    memory with Triton."""
    folder = tmp_path_factory.mktemp("serve")
    make_python_model(folder / "models/ends", CONFIG, MODEL, CLIENT)
    limits = {"SERVE_MAX_BODY_MB": "100", "SERVE_REQUEST_TIMEOUT": "120", "SERVE_WORKERS": "1"}
    port = {"SAGEMAKER_TRITON_ALLOW_GRPC": "true", "SAGEMAKER_TRITON_GRPC_PORT": str(free_port())}
    running = Server(folder, folder / "models", **limits, **port).wait_ready()
    yield running
    (file, *_) = regions(running)
    assert running.stop() == 0
    assert list(SHARED.glob(f"{file.name.rsplit('-', 2)[0]}*")) == []


def worker(server: Server) -> int:
    """Return the only worker for small bodies."""
    (child,) = server.workers()
    return child


def send(server: Server, size: int) -> None:
    """Send `size` MB of consecutive numbers from 0. Assert that the answer is the first and the
    last number."""
    numbers = np.arange(size * MEGABYTE // 4, dtype=np.float32)
    parameters = {"binary_data_size": numbers.nbytes}
    header = {
        "inputs": [
            {"name": "x", "shape": [numbers.size], "datatype": "FP32", "parameters": parameters}
        ]
    }
    head = json.dumps(header).encode()
    headers = {"Content-Type": f"{BINARY};json-header-size={len(head)}"}
    reply = server.post(
        params={"model_name": "ends"}, data=head + numbers.tobytes(), headers=headers
    )
    assert reply.status_code == 200, reply.text
    assert reply.json()["outputs"][0]["data"] == [0.0, float(numbers[-1])]


def test_hold_a_large_body_once_per_worker_and_in_shared_memory(server: Server) -> None:
    size, (pid,) = 90, server.workers("gunicorn-large.sock")
    send(server, 5)
    before = memory(pid, "VmRSS")
    send(server, size)
    # VmHWM includes pages of shared memory
    assert size <= memory(pid, "VmHWM") - before < 2.3 * size
    wait_until(
        lambda: memory(pid, "VmRSS") - before < 0.3 * size, "the worker gives the memory back"
    )


def regions(server: Server) -> list[Path]:
    return list(SHARED.glob(f"serve-*-{worker(server)}-*"))


def ends(server: Server, number: int) -> Any:
    reply = server.post(json={"instances": [number]})
    assert reply.status_code == 200, reply.text
    return reply.json()["predictions"]


def test_answer_concurrent_callers_with_their_own_results(server: Server) -> None:
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda number: ends(server, number), range(120)))
    assert answers == [[[float(number)] * 2] for number in range(120)]
    names = {file.name for file in regions(server)}
    assert names
    maps = Path(f"/proc/{server.pid('tritonserver')}/maps").read_text()
    assert all(f"/dev/shm/{name}" in maps for name in names)


def test_free_the_shared_memory_of_an_idle_worker(server: Server) -> None:
    assert server.post(json={"instances": [-1]}).status_code == 500
    wait_until(
        lambda: sum(file.stat().st_blocks for file in regions(server)) == 0, "no page is left"
    )
    assert ends(server, 2) == [[2.0, 2.0]]


def test_return_the_region_of_a_failed_call_once(server: Server) -> None:
    """A region that is returned twice could be lent to two calls at once."""
    failed = [server.post(json={"instances": [-1]}).status_code for _ in range(8)]
    assert not {200, 503} & {*failed}
    test_answer_concurrent_callers_with_their_own_results(server)


def test_leave_no_shared_memory_of_a_killed_worker(server: Server) -> None:
    ends(server, 7)
    old, killed = regions(server), worker(server)
    assert old
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not any(file.exists() for file in old), "its files are gone")
    wait_until(
        lambda: len(server.workers()) == 1 and killed not in server.workers(),
        "another has taken its place",
    )
    assert ends(server, 8) == [[8.0, 8.0]]


def test_answer_small_bodies_while_no_worker_for_large_ones_runs(server: Server) -> None:
    (stopped,) = server.workers("gunicorn-large.sock")
    server.kill(stopped, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as thread:
            large = thread.submit(send, server, 5)
            assert [ends(server, number) for number in range(20)] == [
                [[float(number)] * 2] for number in range(20)
            ]
            assert not large.done()
            server.kill(stopped, signal.SIGCONT)
            large.result(PATIENCE)
    finally:
        server.kill(stopped, signal.SIGCONT)
    assert server.workers("gunicorn-large.sock") == [stopped]
