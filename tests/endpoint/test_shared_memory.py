"""Large inputs reach Triton through /dev/shm: answers stay right, and memory comes back."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.support.harness import ONE_INSTANCE, Server, free_port, wait_until

pytestmark = pytest.mark.stack

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

    def preprocess(self, instances):
        return {"x": np.full((1, 2**20), instances[0], np.float32)}

    def postprocess(self, outputs, inputs, instances, parameters):
        return outputs["ends"].tolist()
'''


SHARED = Path("/dev/shm")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """Its gRPC can be reached by others, so that ours must show the secret to share memory."""
    repository = tmp_path_factory.mktemp("repository")
    folder = repository / "ends"
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.py").write_text(MODEL)
    (folder / "client.py").write_text(CLIENT)
    (folder / "config.pbtxt").write_text(
        'backend: "python"\ninput { name: "x" data_type: TYPE_FP32 dims: [-1] }\n'
        f'output {{ name: "ends" data_type: TYPE_FP32 dims: [2] }}\n{ONE_INSTANCE}'
    )
    variables = {"SERVE_WORKERS": "1", "SAGEMAKER_TRITON_ALLOW_GRPC": "true"}
    port = {"SAGEMAKER_TRITON_GRPC_PORT": str(free_port())}
    running = Server(tmp_path_factory.mktemp("serve"), repository, **variables, **port).wait_ready()
    yield running
    (file, *_) = regions(running)
    assert running.stop() == 0
    assert list(SHARED.glob(f"{file.name.rsplit('-', 2)[0]}*")) == []


def workers(server: Server) -> list[int]:
    pid = server.pid("gunicorn")
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def worker(server: Server) -> int:
    (child,) = workers(server)
    return child


def regions(server: Server) -> list[Path]:
    return list(SHARED.glob(f"serve-*-{worker(server)}-*"))


def ends(server: Server, number: int) -> list[list[float]]:
    reply = server.post(json={"instances": [number]})
    assert reply.status_code == 200, reply.text
    return list(reply.json()["predictions"])


def test_callers_at_once_get_answers_to_their_own_inputs(server: Server) -> None:
    with ThreadPoolExecutor(12) as threads:
        answers = list(threads.map(lambda number: ends(server, number), range(120)))
    assert answers == [[[float(number)] * 2] for number in range(120)]
    names = {file.name for file in regions(server)}
    assert names
    maps = Path(f"/proc/{server.pid('tritonserver')}/maps").read_text()
    assert all(f"/dev/shm/{name}" in maps for name in names)


def test_an_idle_worker_gives_the_pages_back(server: Server) -> None:
    ends(server, 1)
    wait_until(lambda: sum(file.stat().st_blocks for file in regions(server)) == 0, "no page is left")
    assert ends(server, 2) == [[2.0, 2.0]]


def test_callers_get_them_also_after_calls_that_failed(server: Server) -> None:
    """A region that is given back twice is lent to two calls at once."""
    failed = [server.post(json={"instances": [-1]}).status_code for _ in range(8)]
    assert not {200, 503} & {*failed}
    test_callers_at_once_get_answers_to_their_own_inputs(server)


def test_a_triton_that_was_started_again_gets_its_inputs(server: Server) -> None:
    ends(server, 3)
    before = set(regions(server))
    server.replace("tritonserver")
    server.wait_ready()
    assert [ends(server, number) for number in (4, 5, 6)] == [[[4.0, 4.0]], [[5.0, 5.0]], [[6.0, 6.0]]]
    assert before.isdisjoint(regions(server))


def test_nothing_is_left_of_a_worker_that_was_killed(server: Server) -> None:
    ends(server, 7)
    old, killed = regions(server), worker(server)
    assert old
    os.kill(killed, signal.SIGKILL)
    wait_until(lambda: not any(file.exists() for file in old), "its files are gone")
    wait_until(lambda: len(workers(server)) == 1 and killed not in workers(server), "another has taken its place")
    assert ends(server, 8) == [[8.0, 8.0]]
