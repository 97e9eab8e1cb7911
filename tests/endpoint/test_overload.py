"""Tests more callers than slots: the other callers are refused, every slot is released, and models
that hang leave slots for others."""

import json
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import grpc
import pytest
import requests
from tritonclient.grpc.service_pb2 import ServerLiveRequest
from tritonclient.grpc.service_pb2_grpc import GRPCInferenceServiceStub

from serving.settings.settings import Settings
from tests.support.harness import (
    PATIENCE,
    SLEEPER,
    SLEEPER_CLIENT,
    Server,
    expect_error,
    free_port,
    make_scale,
    make_sleeper,
    module_server,
    tensor,
    wait_until,
)
from tests.support.load import Load

pytestmark = pytest.mark.stack

SLOTS = 4
CALLERS = 10 * SLOTS
REFUSED = 2 * CALLERS
SHARED = 16  # slots; if two models hang, at least four remain free
HANGING = ("sleeper", "dreamer")
BODY: dict[str, object] = {
    "inputs": [{"name": "seconds", "shape": [1], "datatype": "FP32", "data": [0.02]}]
}
WAYS: tuple[tuple[str, dict[str, object], dict[str, str]], ...] = (
    ("/invocations", {"instances": [0.02]}, {}),
    ("/v2/models/sleeper/infer", BODY, {}),
    ("/invocations", {"instances": [0.02]}, {"Accept": "application/jsonlines"}),
)
# a call into C that holds the GIL, so that no other thread of the worker can run
HANGING_CLIENT = SLEEPER_CLIENT.replace(
    '        return {"seconds"',
    "        if instances[0] < 0:\n            "
    '__import__("ctypes").PyDLL(None).sleep(1000)\n        return {"seconds"',
)


def make_hanging(repository: Path) -> None:
    """Make two models that sleep until the file `go` exists beside the repository."""
    loop = (
        f'while seconds and not __import__("os").path.exists("{repository.parent}/go"):\n     '
        "           "
    )
    for name in HANGING:
        code = SLEEPER.replace("time.sleep(seconds)", f"{loop}time.sleep(0.01)")
        make_sleeper(repository, name, code, HANGING_CLIENT)


running = module_server(
    make_sleeper,
    SERVE_MAX_CONCURRENCY=str(SLOTS),
    SERVE_WORKERS="2",
    SERVE_STOP_TIMEOUT="1",
    SERVE_REQUEST_TIMEOUT="60",
)
several = module_server(
    make_scale,
    make_hanging,
    SERVE_MAX_CONCURRENCY=str(SHARED),
    SERVE_WORKERS="2",
    SERVE_REQUEST_TIMEOUT="20",
    SERVE_HANG_TIMEOUT="3",
)


def ask(server: Server, number: int) -> requests.Response:
    path, body, headers = WAYS[number % len(WAYS)]
    return server.post(path, json=body, headers=headers)


def counted(server: Server) -> Counter[str]:
    """Return the numbers of requests by status from /metrics."""
    counts = Counter[str]()
    for code, number in re.findall(
        r'^serve_requests_total{code="(\d+)".*} (\S+)$', server.scrape().text, re.M
    ):
        counts[code] += int(float(number))
    return counts


def test_refuse_count_and_log_requests_beyond_the_limit(running: Server) -> None:
    before = counted(running)
    with Load(lambda number: ask(running, number), callers=CALLERS) as load:
        wait_until(lambda: load.answers["503 overloaded"] >= REFUSED, "many are refused")
        assert {running.ping() for _ in range(20)} == {200}
    answers = {name.split()[0]: number for name, number in load.answers.items()}
    assert (set(answers), load.refused, load.cut) == ({"200", "503"}, 0, 0)
    wait_until(
        lambda: counted(running) - before == Counter(answers),
        lambda: f"{counted(running)} are {answers}",
    )
    refused = {"status": 503, "code": "overloaded"}
    wait_until(
        lambda: len(running.entries("nginx", **refused)) == answers["503"], "the log has them"
    )
    with ThreadPoolExecutor(SLOTS) as pool:
        assert {
            reply.status_code for reply in pool.map(lambda n: ask(running, n), range(SLOTS))
        } == {200}


def test_leave_slots_for_small_bodies_beside_large_ones(running: Server) -> None:
    """Bodies of unknown length are treated as large."""
    body = json.dumps({"instances": [0.5]}).encode()
    held = 2 * Settings(workers=2, max_concurrency=SLOTS).large_connections
    with ThreadPoolExecutor(CALLERS // 4) as pool:
        large = [pool.submit(running.post, data=iter([body])) for _ in range(CALLERS // 4)]
        wait_until(lambda: running.in_flight() == held, "no more large bodies are accepted")
        small = [running.post(data=b"{").status_code for _ in range(20)]
    assert small == [400] * 20
    assert {caller.result().status_code for caller in large} == {200}


def test_hold_the_slot_of_a_caller_who_left_until_the_work_ends(running: Server) -> None:
    """The request accepts a stream, but the model does not stream, so its work continues after the
    caller has left."""
    body = json.dumps({"model_name": "sleeper", "instances": [30]}).encode()
    head = (
        "POST /invocations HTTP/1.1\r\nHost: localhost\r\nAccept: application/json, "
        "text/event-stream;q=0.1\r\n"
    )
    for number in range(SLOTS):
        with socket.create_connection(("127.0.0.1", running.port)) as caller:
            caller.sendall(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            wait_until(lambda: running.in_flight() == number + 1, "the request is in flight")  # noqa: B023
    assert {ask(running, number).json()["code"] for number in range(20)} == {"overloaded"}
    assert (running.in_flight(), running.ping()) == (SLOTS, 200)


def tensors(name: str, shape: list[int], value: float, **more: object) -> dict[str, object]:
    tensor = {"name": name, "shape": shape, "datatype": "FP32", "data": [value] * shape[-1]}
    return {"inputs": [tensor], **more}


def by_body(server: Server, model: str, body: dict[str, object]) -> requests.Response:
    return server.post("/invocations", json=body | {"model_name": model})


def by_path(server: Server, model: str, body: dict[str, object]) -> requests.Response:
    return server.post(f"/v2/models/{model}/infer", json=body)


@pytest.mark.parametrize("ask", [by_body, by_path])
def test_leave_slots_for_others_while_models_hang(
    several: Server, ask: Callable[[Server, str, Any], requests.Response]
) -> None:
    go, hang, sound = (
        several.run_dir.parent / "go",
        tensors("seconds", [1], 1),
        tensors("x", [1, 2], 1),
    )
    go.unlink(missing_ok=True)
    with ThreadPoolExecutor(2 * SHARED) as pool:
        callers = [
            pool.submit(ask, several, HANGING[number % 2], hang) for number in range(2 * SHARED)
        ]
        try:
            # A request holds a slot briefly even while it is refused. After so many answers, a slot
            # is free.
            wait_until(
                lambda: sum(caller.done() for caller in callers) > SHARED,
                "more of them are refused",
            )
            others = [ask(several, "scale", sound).status_code for _ in range(20)]
            wait_until(
                lambda: ask(several, "sleeper", hang).status_code == 503, "one more is refused"
            )
        finally:
            go.touch()
    assert others == [200] * 20
    assert {caller.result().status_code for caller in callers} == {200, 503}


def workers(server: Server) -> set[int]:
    wait_until(lambda: len(server.workers()) == 2, "two workers")
    return set(server.workers())


def test_replace_a_worker_that_hangs_in_a_client(several: Server) -> None:
    master, before = several.pid("gunicorn"), workers(several)
    reply = several.post(json={"model_name": "sleeper", "instances": [-1]})
    expect_error(reply, 503, "frontend_unavailable")
    wait_until(lambda: len(before - workers(several)) == 1, "another worker")
    calls = [
        several.post(json={"model_name": "sleeper", "instances": [0]}).status_code
        for _ in range(10)
    ]
    assert (calls, several.pid("gunicorn")) == ([200] * 10, master)


STREAMS = 512  # minimum number of streams that nginx holds at once


def test_answer_http_although_callers_keep_streams_of_grpc_open(tmp_path: Path) -> None:
    make_scale(tmp_path / "models")
    port = str(free_port())
    own = {"SAGEMAKER_TRITON_ALLOW_GRPC": "true", "SAGEMAKER_TRITON_GRPC_PORT": port}
    server = Server(tmp_path, tmp_path / "models", **own, SERVE_STOP_TIMEOUT="1").wait_ready()
    over = threading.Event()

    def nothing() -> Iterator[Any]:
        over.wait()
        yield from ()

    options = [("grpc.use_local_subchannel_pool", 1)]
    with ExitStack() as channels:
        channels.callback(over.set)
        stubs = [
            GRPCInferenceServiceStub(
                channels.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", options))
            )
            for _ in range(STREAMS // 64 + 1)  # nginx accepts 128 streams per connection
        ]
        # 64 more than fit, because a call of `is_full` may briefly take the place of a stream
        streams = [stub.ModelStreamInfer(nothing()) for stub in stubs for _ in range(64)]
        first = GRPCInferenceServiceStub(
            channels.enter_context(grpc.insecure_channel(f"127.0.0.1:{port}", options))
        )

        def is_full() -> bool:
            try:
                first.ServerLive(ServerLiveRequest(), timeout=PATIENCE)
            except grpc.RpcError as err:
                return "503" in str(err.details())
            return False

        wait_until(is_full, "no more streams are taken")
        assert server.post(params={"model_name": "scale"}, json={"inputs": [tensor([2])]}).ok
        for stream in streams:
            stream.cancel()
    assert server.stop() == 0
