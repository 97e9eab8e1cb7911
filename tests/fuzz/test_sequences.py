"""Sends hostile `parameters` to models with every kind of sequence on a real server, while other
sessions must keep getting the right answers. FUZZ_CALLS is the number of requests; `make fuzz`
sends more."""

import json
import os
from concurrent.futures import ThreadPoolExecutor
from random import Random
from typing import Any

import numpy as np
import pytest
import requests

from tests.fuzz.parameters import parameters
from tests.support.harness import PATIENCE, Server, module_server
from tests.support.streaming_models import ID_TYPES, STRATEGIES, make_summers, summer_name

pytestmark = pytest.mark.full

CALLS = int(os.environ.get("FUZZ_CALLS") or 600)
THREADS = 4  # the direct strategy has 8 slots, and each caller has at most two sequences of a model
# the numbers that sessions send in their own steps, and that hostile requests send
STEP, HOSTILE = 4.0, 0.5
ANSWERS = {200, 400, 410, 413}
BINARY = "application/vnd.sagemaker-triton.binary+json;json-header-size=%d"
MODELS = [summer_name(strategy, id_type) for strategy in STRATEGIES for id_type in ID_TYPES]
# sequences with the direct strategy and strings as ids sometimes fail (quirks.py)
STEADY = [model for model in MODELS if model != summer_name("direct", "TYPE_STRING")]

server = module_server(
    lambda repository: make_summers(repository, idle_seconds=300), SERVE_STOP_TIMEOUT="2"
)


class Caller:
    """Keeps a session with each model, and sends hostile requests between its steps."""

    def __init__(self, server: Server, number: int) -> None:
        self.server, self.number, self.random = server, number, Random(number)
        self.http = requests.Session()
        self.steps = dict.fromkeys(MODELS, 0)

    def run(self, calls: int) -> int:
        """Send this many hostile requests between the steps. Return how many were answered with
        200."""
        taken = 0
        for call in range(calls):
            model = self.random.choice(MODELS)
            if call % 4 == 0 and model in STEADY:
                self.step(model)
            else:
                taken += self.attack(model)
        for model in STEADY:
            self.step(model)
        return taken

    def own_id(self, model: str) -> int | str:
        return f"own-{self.number}".ljust(128) if model.endswith("string") else 1000 + self.number

    def step(self, model: str) -> None:
        """Take the next step of the session. Assert that its total is the sum of its own steps
        only."""
        flags = {"sequence_start": True} if self.steps[model] == 0 else {}
        self.steps[model] += 1
        reply = self.send(model, STEP, {"sequence_id": self.own_id(model), **flags})
        assert reply.status_code == 200, (model, reply.text)
        assert self.total(reply) == STEP * self.steps[model], (model, reply.text)

    def attack(self, model: str) -> bool:
        """Send a hostile request, and end the sequence that it started. Return whether it was
        answered with 200."""
        own_ids = range(1000, 1000 + THREADS)
        sent = parameters(self.random, near=self.random.choice(own_ids))
        own_id = sent.get("sequence_id")
        if type(own_id) is int and own_id in own_ids:
            return False  # this is the id of a session, and any caller may use it
        reply = self.send(model, HOSTILE, sent)
        what = (model, sent, reply.status_code, reply.text[:500])
        assert reply.status_code in ANSWERS, what
        if reply.status_code != 200:
            return False
        if sent.get("sequence_start") is True:
            assert self.total(reply) == HOSTILE, what
        self.send(model, HOSTILE, {"sequence_id": own_id, "sequence_end": True})
        return True

    def send(self, model: str, number: float, sent: dict[str, Any]) -> requests.Response:
        """Send the parameters in one of the ways that a body can carry them."""
        tensor = {"name": "number", "datatype": "FP32", "shape": [1, 1], "data": [number]}
        body: dict[str, Any] = {"inputs": [tensor], "parameters": sent}
        flat = {"number": number, "parameters": sent}
        route = f"{self.server.url}/v2/models/{model}"
        way = self.random.randrange(4)
        if way == 0:
            return self.post(f"{route}/infer", body)
        if way == 1:
            return self.post(f"{route}/generate", flat)
        if way == 2:
            return self.post(f"{route}/generate_stream", flat)
        del tensor["data"]
        header = json.dumps(body | {"inputs": [tensor | {"parameters": {"binary_data_size": 4}}]})
        data = header.encode()
        named, kind = {"model_name": model}, {"Content-Type": BINARY % len(data)}
        url = f"{self.server.url}/invocations"
        data += np.float32(number).tobytes()
        return self.http.post(url, params=named, data=data, headers=kind, timeout=PATIENCE)

    def post(self, url: str, body: dict[str, Any]) -> requests.Response:
        return self.http.post(url, json=body, timeout=PATIENCE)

    def total(self, reply: requests.Response) -> float:
        document = json.loads(reply.text.removeprefix("data: "))
        outputs = {output["name"]: output["data"][0] for output in document.get("outputs", [])}
        return float((outputs or document)["total"])


def test_keep_tritonserver_and_sessions_safe_from_hostile_parameters(server: Server) -> None:
    pid = server.pid("tritonserver")
    callers = [Caller(server, number) for number in range(THREADS)]
    with ThreadPoolExecutor(THREADS) as pool:
        taken = list(pool.map(lambda caller: caller.run(CALLS // THREADS), callers))
    assert server.pid("tritonserver") == pid
    assert all(taken)
    print(f"{CALLS} calls, of which {sum(taken)} hostile ones were taken")
