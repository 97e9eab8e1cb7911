"""Tests model folders that change while the server is running (SERVE_RELOAD)."""

import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.support import harness
from tests.support.harness import ONE_INSTANCE, Server, expect_error, save_graph, tensor

pytestmark = pytest.mark.stack

# a change takes seconds, and each check is a request
wait_until = partial(harness.wait_until, pause=0.2)
# seconds between two calls of a caller; without a pause, four callers use one and a half processors
PAUSE = 0.25

CLIENT = '''
"""A number -> its product with the model's factor, and the word in the model's folder."""

import numpy as np

from clients.base import ModelClient
from serving.codecs import JSON


class Client(ModelClient):
    codec = JSON
    example = b"1"

    def __init__(self, model):
        super().__init__(model)
        self.word = (model.path / "word.txt").read_text()

    def prepare(self, instances, parameters):
        return {"x": np.array([[float(each)] for each in instances], dtype=np.float32)}

    def postprocess(self, outputs, inputs, instances, parameters):
        return [[float(row[0]), self.word] for row in outputs["y"]]
'''
CONFIG = (
    'platform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
    'input { name: "x" data_type: TYPE_FP32 dims: [1] }\noutput { name: "y" data_type: '
    "TYPE_FP32 dims: [1] }\n"
)
ENSEMBLE = (
    'platform: "ensemble"\nmax_batch_size: 8\n'
    'input { name: "x" data_type: TYPE_FP32 dims: [1] }\noutput { name: "y" data_type: '
    'TYPE_FP32 dims: [1] }\nensemble_scheduling { step { model_name: "inner" model_version: -1 '
    'input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }\n'
)


def write_weights(folder: Path, factor: float) -> None:
    graph = f"""product (float[batch, 1] x) => (float[batch, 1] y)
        <float k = {{{float(factor)}}}> {{ y = Mul (x, k) }}"""
    save_graph(graph, folder / "1/model.onnx")


def write_model(repository: Path, name: str, factor: float, word: str) -> Path:
    """Write a model that answers the input 3 with [3 * factor, word]."""
    folder = repository / name
    write_weights(folder, factor)
    (folder / "config.pbtxt").write_text(CONFIG + ONE_INSTANCE)
    (folder / "client.py").write_text(CLIENT)
    (folder / "word.txt").write_text(word)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = tmp_path_factory.mktemp("repository")
    write_model(repository, "product", 2, "two")
    write_model(repository, "other", 5, "five")
    return repository


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    run_dir = tmp_path_factory.mktemp("serve")
    running = Server(run_dir, folder, SERVE_RELOAD="true", SERVE_WORKERS="2").wait_ready()
    yield running
    running.stop_later()


def answer(server: Server, name: str) -> Any:
    """Return the model's answer to 3, or the status if it is not 200."""
    reply = server.post(json={"model_name": name, "instances": [3]})
    return reply.json()["predictions"][0] if reply.status_code == 200 else reply.status_code


def wait_for_answer(server: Server, name: str, expected: Any) -> None:
    wait_until(
        lambda: answer(server, name) == expected, lambda: f"{expected}:\n{server.output()[-3000:]}"
    )


def described(server: Server) -> dict[str, Any]:
    return {model["name"]: model for model in listed(server)["models"]}


def listed(server: Server) -> dict[str, Any]:
    """Return the reply of GET /models. On a busy machine, Triton may not answer in time."""
    document: dict[str, Any] = wait_until(
        lambda: server.get("/models"), "GET /models is 200"
    ).json()
    return document


def refused(server: Server) -> dict[str, str]:
    """Return the changes that are not served, as GET /models lists them: {models: reasons}."""
    entries = listed(server).get("refused", [])
    return {",".join(each["models"]): "\n".join(each["reasons"]) for each in entries}


def wait_for_calls(answers: list[Any], number: int) -> None:
    before = len(answers)
    wait_until(lambda: len(answers) >= before + number, "calls")


def wait_for_refusal(server: Server, model: str, reason: str) -> None:
    wait_until(
        lambda: re.search(reason, refused(server).get(model, "")),
        lambda: f"{reason} in {refused(server)}\n{server.output()[-3000:]}",
    )


def errors(server: Server, pattern: str) -> list[str]:
    messages = [str(entry["message"]) for entry in server.entries("manager", level="error")]
    return [message for message in messages if re.search(pattern, message)]


def wait_tidy(server: Server) -> None:
    """Wait until Triton has only the served models, under their own names."""

    def is_tidy() -> bool:
        index = server.triton().post("/v2/repository/index").json()
        return {entry["name"] for entry in index if entry.get("state") == "READY"} == described(
            server
        ).keys()

    wait_until(is_tidy, lambda: f"Triton has what is served, no more:\n{server.output()[-3000:]}")


@contextmanager
def constant_load(ask: Callable[[], Any], callers: int = 4) -> Iterator[list[Any]]:
    """Let callers call the model continuously in this context. Yield the list of their answers and
    errors."""
    answers: list[Any] = []
    ended = threading.Event()

    def call() -> None:
        while not ended.wait(PAUSE):
            try:
                answers.append(ask())
            except requests.RequestException as err:
                answers.append(repr(err))

    threads = [threading.Thread(target=call) for _ in range(callers)]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        ended.set()
        for thread in threads:
            thread.join()


def test_replace_a_changed_model_without_an_error_to_any_caller(
    server: Server, folder: Path
) -> None:
    def look() -> tuple[int, int]:
        return server.ping(), server.get("/v2/models/product/ready").status_code

    with (
        constant_load(lambda: answer(server, "product")) as answers,
        constant_load(look, 1) as states,
    ):
        for factor, word in ((3, "three"), (4, "four")):
            wait_for_calls(answers, 20)
            write_model(folder, "product", factor, word)
            wait_for_answer(server, "product", [3.0 * factor, word])
            wait_tidy(server)
        wait_for_calls(answers, 20)
    # Calls in flight during the change may be answered by the new model. Errors and other statuses
    # would not be among these answers.
    assert {(6.0, "two"), (9.0, "three"), (12.0, "four")} <= {tuple(each) for each in answers}
    assert {product for product, _ in answers} == {6.0, 9.0, 12.0}
    assert set(states) == {(200, 200)}
    assert answer(server, "other") == [15.0, "five"]
    one = tensor([3])
    reply = server.triton().post("/v2/models/product/infer", json={"inputs": [one]})
    # under this name, Triton itself also has the new model
    assert reply.json()["outputs"][0]["data"] == [12.0]


def not_found_no_more(server: Server, name: str) -> Any:
    """Wait until a call is not answered with 404. Return the reply."""
    reply = server.post(json={"model_name": name, "instances": [3]})
    return None if reply.status_code == 404 else reply.json()


def test_serve_an_added_model(server: Server, folder: Path) -> None:
    assert answer(server, "added") == 404
    write_model(folder, "added", 7, "seven")
    told = wait_until(lambda: not_found_no_more(server, "added"), server.output)
    assert told["code"] == "model_not_ready" and "'added' is being checked" in told["error"]
    wait_until(lambda: "added" in described(server), server.output)
    assert answer(server, "added") == [21.0, "seven"]
    assert server.get("/v2/models/added").json()["name"] == "added"


def test_answer_404_for_a_removed_model_and_serve_the_others(server: Server, folder: Path) -> None:
    write_model(folder, "leaving", 8, "eight")
    wait_for_answer(server, "leaving", [24.0, "eight"])
    shutil.rmtree(folder / "leaving")
    wait_for_answer(server, "leaving", 404)
    reply = server.post(json={"model_name": "leaving", "instances": [3]})
    assert reply.json()["code"] == "model_not_found"
    assert "leaving" not in described(server)
    assert server.ping() == 200
    wait_tidy(server)


def break_weights(model: Path) -> None:
    (model / "1/model.onnx").write_bytes(b"no ONNX")


def break_client(model: Path) -> None:
    (model / "client.py").write_text(CLIENT.replace('outputs["y"]', 'outputs["z"]'))


BROKEN: tuple[tuple[Callable[[Path], object], str], ...] = (
    (break_weights, "product/1/model.onnx"),
    (break_client, "product.*KeyError.*client.py"),  # it fails on its example
    (lambda model: (model / "config.pbtxt").write_text("platform: onnx"), "product/config.pbtxt"),
)


def test_refuse_a_broken_model_and_keep_serving_the_old_one(server: Server, folder: Path) -> None:
    before = answer(server, "product")
    for spoil, reason in BROKEN:
        spoil(write_model(folder, "product", 10, "ten"))
        wait_for_refusal(server, "product", reason)
        assert str(server.run_dir) not in refused(server)["product"]
        wait_until(partial(errors, server, reason), server.output)
        assert answer(server, "product") == before
        assert server.ping() == 200
    write_model(folder, "product", 10, "ten")
    wait_for_answer(server, "product", [30.0, "ten"])
    assert refused(server) == {}
    (folder / "product/loop").symlink_to("loop")  # with this link, the folder cannot be read
    for factor, word in ((6, "six"), (5, "five")):
        write_model(folder, "other", factor, word)
        wait_for_answer(server, "other", [3.0 * factor, word])
        assert answer(server, "product") == [30.0, "ten"]
    (folder / "product/loop").unlink()


def test_reload_the_models_that_use_a_changed_client(server: Server, folder: Path) -> None:
    (folder / "clients").mkdir()
    shared, names = CLIENT.replace("self.word]", "WORD]"), ("one", "two")
    (folder / "clients/shared.py").write_text(f"from ._word import WORD\n{shared}")
    (folder / "clients/_word.py").write_text('WORD = "before"\n')
    for name in names:
        model = write_model(folder, name, 2, "")
        (model / "client.py").unlink()
        named = 'parameters { key: "client" value: { string_value: "shared" } }\n'
        (model / "config.pbtxt").write_text(CONFIG + ONE_INSTANCE + named)
    for name in names:
        wait_for_answer(server, name, [6.0, "before"])
    (folder / "clients/_word.py").write_text("WORD = 1 / 0\n")
    wait_for_refusal(server, "one", "ZeroDivisionError")
    assert answer(server, "one") == [6.0, "before"]
    (folder / "clients/_word.py").write_text('WORD = "after"\n')
    for name in names:
        wait_for_answer(server, name, [6.0, "after"])
        shutil.rmtree(folder / name)
    shutil.rmtree(folder / "clients")
    wait_until(lambda: not set(names) & described(server).keys(), server.output)


def test_change_models_together_that_call_each_other(server: Server, folder: Path) -> None:
    write_model(folder, "inner", 2, "inner")
    outer = write_model(folder, "outer", 2, "outer, of 2")
    shutil.rmtree(outer / "1")
    (outer / "1").mkdir()
    (outer / "config.pbtxt").write_text(ENSEMBLE)
    wait_for_answer(server, "outer", [6.0, "outer, of 2"])
    wait_tidy(server)
    with constant_load(lambda: answer(server, "outer")) as answers:
        wait_for_calls(answers, 20)
        write_weights(folder / "inner", 9)
        (outer / "word.txt").write_text("outer, of 9")
        wait_until(
            lambda: [27.0, "outer, of 9"] in answers, lambda: f"of 9\n{server.output()[-3000:]}"
        )
        wait_tidy(server)
    assert {product for product, _ in answers} == {6.0, 27.0}
    shutil.rmtree(folder / "inner")
    wait_until(lambda: refused(server), server.output)
    assert refused(server).keys() == {"inner,outer"}
    assert answer(server, "outer") == [27.0, "outer, of 9"]
    shutil.rmtree(outer)
    wait_until(lambda: not {"inner", "outer"} & described(server).keys(), server.output)
    assert refused(server) == {}


def test_retry_a_refused_folder_after_a_file_is_touched(server: Server, folder: Path) -> None:
    model = write_model(folder, "again", 2, "two")
    break_weights(model)
    wait_until(lambda: "again" in refused(server), server.output)
    reply = server.post(params={"model_name": "again"}, json={"instances": [1]})
    expect_error(reply, 503, "model_failed")
    count = len(wait_until(lambda: errors(server, "^again: "), server.output))
    (model / "config.pbtxt").touch()
    wait_until(lambda: len(errors(server, "^again: ")) > count, server.output)
    shutil.rmtree(model)
    wait_until(lambda: not refused(server), "what is gone is refused no more")


def test_start_a_new_tritonserver_with_the_models_served_before(
    server: Server, folder: Path
) -> None:
    wait_tidy(server)
    before = answer(server, "other")
    break_weights(folder / "other")
    wait_until(lambda: "other" in refused(server), server.output)
    server.replace("tritonserver")
    wait_until(lambda: server.ping() == 200, server.output)
    assert answer(server, "other") == before
    write_model(folder, "other", 6, "six")
    wait_for_answer(server, "other", [18.0, "six"])


def test_start_without_a_model_that_fails_on_its_example(tmp_path: Path) -> None:
    repository = tmp_path / "models"
    write_model(repository, "sound", 2, "two")
    (write_model(repository, "refuses", 2, "two") / "example.json").write_text("[no JSON")
    server = Server(tmp_path, repository, SERVE_RELOAD="true", SERVE_WORKERS="1").wait_ready()
    wait_until(lambda: "refuses" in refused(server), server.output)
    assert answer(server, "sound") == [6.0, "two"]
    reply = server.post(json={"model_name": "refuses", "instances": [3]})
    expect_error(reply, 503, "model_failed")
    server.stop_later()


def test_fail_ping_until_there_is_a_model(server: Server, folder: Path) -> None:
    for model in list(folder.iterdir()):
        shutil.rmtree(model)
    wait_until(lambda: "model_not_ready" in server.get("/ping").text, server.output)
    assert server.ping() == 503
    write_model(folder, "product", 2, "two")
    wait_until(lambda: server.ping() == 200, server.output)
    # the only model need not be named
    assert server.post(json={"instances": [3]}).json()["predictions"] == [[6.0, "two"]]
