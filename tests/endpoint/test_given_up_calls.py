"""Tests callers that disconnect before Triton has answered. The shared memory of their inputs must
not be reused before Triton's answer."""

import contextlib
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import requests
from PIL import Image

from serving.triton.shared_memory import FOLDER, MOST_WAITING
from tests.support.harness import (
    Server,
    b64,
    encoded,
    make_python_model,
    module_server,
    npy,
    wait_until,
)

pytestmark = pytest.mark.stack

NUMBERS = 2**19  # numbers in an input: 2 MB
BLOCKS = -1.0
SESSION = "X-Amzn-SageMaker-Session-Id"
CONFIG = """max_batch_size: 1
input { name: "x" data_type: TYPE_FP32 dims: [-1] }
output { name: "total" data_type: TYPE_FP32 dims: [1] }
"""
SEQUENCE = """sequence_batching {
  max_sequence_idle_microseconds: 60000000
  oldest { max_candidate_sequences: 4 }
  control_input {
    name: "START"
    control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] }
  }
}
"""
MODEL = '''
import time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """The sum of the greatest numbers of a sequence, or of one input. One of -1 is answered when
    the file `gate` exists; until then the file `busy` does."""

    def initialize(self, args):
        self.totals = {}

    def execute(self, requests):
        return [self.answer(request) for request in requests]

    def answer(self, request):
        number = float(pb_utils.get_input_tensor_by_name(request, "x").as_numpy().max())
        if number == -1:
            Path("FOLDER/busy").touch()
            while not Path("FOLDER/gate").exists():
                time.sleep(0.01)
            Path("FOLDER/busy").unlink()
        start = pb_utils.get_input_tensor_by_name(request, "START")
        key = request.correlation_id()
        is_new = start is None or start.as_numpy().any()
        self.totals[key] = number + (0 if is_new else self.totals[key])
        total = np.array([[self.totals[key]]], dtype=np.float32)
        return pb_utils.InferenceResponse([pb_utils.Tensor("total", total)])
'''
PICTURES = """
import numpy as np

from clients.base import ModelClient
from serving.codecs import IMAGE


class Client(ModelClient):
    codec = IMAGE
    example = PICTURE

    def prepare(self, instances, parameters):
        return {"x": np.full((len(instances), 2**19), 3, np.float32)}

    def postprocess(self, outputs, inputs, instances, parameters):
        return outputs["total"].tolist()
"""


PICTURE = encoded(Image.new("RGB", (8, 8)))


def make_models(repository: Path) -> None:
    code = MODEL.replace("FOLDER", str(repository.parent))
    make_python_model(repository / "steps", CONFIG + SEQUENCE, code)
    make_python_model(repository / "total", CONFIG, code)
    make_python_model(repository / "other", CONFIG, code)
    make_python_model(
        repository / "pictures", CONFIG, code, PICTURES.replace("PICTURE", repr(PICTURE))
    )


server = module_server(  # open sequences delay the stop of Triton
    make_models, SERVE_WORKERS="1", SERVE_REQUEST_TIMEOUT="3", SERVE_STOP_TIMEOUT="2"
)


def ask(server: Server, model: str, number: float, session: str = "") -> requests.Response:
    headers = {"Content-Type": "application/x-npy"}
    if session:
        headers[SESSION] = session
    body = npy(np.full((1, NUMBERS), number, np.float32))
    return server.post(params={"model_name": model}, data=body, headers=headers)


def total(reply: requests.Response) -> float:
    assert reply.status_code == 200, reply.text
    return float(reply.json()["outputs"][0]["data"][0])


@contextlib.contextmanager
def busy(server: Server, model: str) -> Iterator[None]:
    """Keep the model's only instance busy in this context."""
    folder = server.run_dir.parent
    (folder / "gate").unlink(missing_ok=True)
    with ThreadPoolExecutor(1) as pool:
        session = "NEW_SESSION" if model == "steps" else ""
        pool.submit(ask, server, model, BLOCKS, session)
        try:
            wait_until((folder / "busy").exists, "the instance is busy")
            yield
        finally:
            (folder / "gate").touch()


def regions(server: Server) -> list[Path]:
    (worker,) = server.workers("gunicorn-large.sock")
    return list(FOLDER.glob(f"serve-*-{worker}-*"))


def assert_all_regions_are_free(server: Server) -> None:
    """An idle worker returns the pages of free regions to the system."""
    wait_until(
        lambda: sum(file.stat().st_blocks for file in regions(server)) == 0, "no page is left"
    )


def totals(server: Server, model: str, count: int) -> list[requests.Response]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(lambda number: ask(server, model, number), range(count)))


def leave(server: Server, model: str, count: int) -> None:
    assert {reply.status_code for reply in totals(server, model, count)} == {504}


def test_keep_others_out_of_a_session_whose_caller_left(server: Server) -> None:
    first = ask(server, "steps", 1, "NEW_SESSION")
    assert total(first) == 1
    session = first.headers[SESSION].partition(";")[0]
    with busy(server, "steps"):
        assert ask(server, "steps", 10, session).status_code == 504
        others = totals(server, "other", 8)
    assert [total(reply) for reply in others] == [*range(8)]
    assert total(ask(server, "steps", 100, session)) == 111
    assert_all_regions_are_free(server)


def test_keep_the_limit_after_requests_with_a_broken_picture(server: Server) -> None:
    good, broken = b64(PICTURE), b64(b"\x89PNG broken")
    body = {"instances": [good, broken]}
    with ThreadPoolExecutor(4) as pool:
        replies = [
            pool.submit(server.post, params={"model_name": "pictures"}, json=body)
            for _ in range(100)
        ]
    assert {reply.result().status_code for reply in replies} == {400}
    assert_all_regions_are_free(server)


def test_free_waiting_regions_with_a_new_tritonserver(server: Server) -> None:
    with busy(server, "total"):
        leave(server, "total", MOST_WAITING)
        waiting = set(regions(server))
        server.replace("tritonserver")
        server.wait_ready()
    for _ in range(2):  # the first calls notice that there is a new tritonserver
        assert [total(reply) for reply in totals(server, "total", 8)] == [*range(8)]
    fresh = set(regions(server))
    assert fresh
    assert waiting.isdisjoint(fresh)
    maps = Path(f"/proc/{server.pid('tritonserver')}/maps").read_text()
    assert all(str(file) in maps for file in fresh)
    assert_all_regions_are_free(server)
