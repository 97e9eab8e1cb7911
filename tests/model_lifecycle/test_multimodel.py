"""Tests multi-model mode over real HTTP, with archives of small models for Triton's Python
backend."""

import os
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psutil
import pytest
import requests

from serving.host.machine import memory_limit
from serving.host.processes import process_tree
from serving.repository.checks import PER_INSTANCE
from tests.backends.onnx_models import arithmetic, write_model
from tests.support.archives import Loader, make_archive, usage
from tests.support.harness import NUMBER_CLIENT, Server, expect_error, tensor, wait_until
from tests.support.load import Load

pytestmark = pytest.mark.stack

TARGET = "X-Amzn-SageMaker-Target-Model"
MODEL = '''
import time
from pathlib import Path
import numpy as np
import triton_python_backend_utils as pb_utils

HERE = Path(__file__).resolve().parent


def hold():
    """Until the test says go."""
    (HERE / "held").touch()
    while not (HERE / "go").exists():
        time.sleep(0.01)


class TritonPythonModel:
    """y = FACTOR * x; MemoryError when x is negative, held when it is 101."""

    def initialize(self, args):
        INITIALIZE

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.answer(request)]) for request in requests]

    def answer(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        if x.max() < 0:
            raise MemoryError("no room for this call")
        if x.max() == 101:
            hold()
        return pb_utils.Tensor("y", np.float32(FACTOR) * x)
'''
PORTS = """
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
"""
CONFIG = f'backend: "python"{PORTS}instance_group {{ count: 1 kind: KIND_CPU }}\n'
COMPLETES = """
    @staticmethod
    def auto_complete_config(config):
        print("completing")
        pb_utils.Logger.log_info("completing")
        config.set_max_batch_size(8)
        config.add_input({"name": "x", "data_type": "TYPE_FP32", "dims": [1]})
        config.add_output({"name": "y", "data_type": "TYPE_FP32", "dims": [1]})
        return config

"""
ENSEMBLE = f"""platform: "ensemble"{PORTS}
ensemble_scheduling {{ step {{
  model_name: "part" model_version: -1
  input_map {{ key: "x" value: "x" }}
  output_map {{ key: "y" value: "y" }}
}} }}
"""
CLIENT = NUMBER_CLIENT.replace("INPUT", "x").replace(
    "PREDICTION", '{"LABEL": float(outputs["y"][n][0])}'
)


def make_model(folder: Path, factor: float = 1, initialize: str = "pass", label: str = "") -> None:
    """Make a model folder. If there is a label, the model has its own client."""
    (folder / "1").mkdir(parents=True, exist_ok=True)
    code = MODEL.replace("FACTOR", str(factor)).replace("INITIALIZE", initialize)
    (folder / "1/model.py").write_text(code)
    (folder / "config.pbtxt").write_text(CONFIG)
    if label:
        (folder / "client.py").write_text(CLIENT.replace("LABEL", label))


def make_ensemble(archive: Path, factor: float, label: str, initialize: str = "pass") -> None:
    make_model(archive / "part", factor, initialize)
    (archive / "whole/1").mkdir(parents=True)
    (archive / "whole/config.pbtxt").write_text(ENSEMBLE)
    (archive / "whole/client.py").write_text(CLIENT.replace("LABEL", label))


def make_parts(archive: Path, initialize: str) -> None:
    """Make an ensemble of a sound part, and of another one that runs `initialize` when it
    starts."""
    make_ensemble(archive, 2, "half", initialize)
    make_model(archive / "sound")
    config = archive / "whole/config.pbtxt"
    sound = 'step { model_name: "sound" model_version: -1 input_map { key: "x" value: "x" } '
    sound += 'output_map { key: "y" value: "m" } } step {'
    text = config.read_text().replace(
        'input_map { key: "x" value: "x" }', 'input_map { key: "x" value: "m" }'
    )
    config.write_text(text.replace("step {", sound, 1))


class Container:
    """Runs a server in multi-model mode, and makes SageMaker's calls to it."""

    def __init__(self, server: Server, root: Path) -> None:
        self.server, self.root = server, root

    def path(self, identifier: str) -> Path:
        return self.root / identifier / "model"

    def load(self, name: str, identifier: str, target: str = "") -> requests.Response:
        body = {"model_name": name, "url": str(self.path(identifier))}
        return self.server.post("/models", json=body, headers={TARGET: target} if target else {})

    def unload(self, name: str) -> requests.Response:
        path = f"/models/{quote(name, safe='')}"
        return self.server.ask("DELETE", path)

    def invoke(self, name: str, *numbers: float, **request: Any) -> requests.Response:
        request = request or {"json": {"instances": list(numbers)}}
        return self.server.post(f"/models/{quote(name, safe='')}/invoke", **request)

    def get(self, path: str, **query: str) -> Any:
        return self.server.get(f"/models{path}", params=query)

    def listed(self) -> list[str]:
        return [model["modelName"] for model in self.get("").json()["models"]]

    def is_held(self, identifier: str) -> bool:
        return (self.path(identifier) / "net/1/held").exists()

    def go_on(self, identifier: str) -> None:
        (self.path(identifier) / "net/1/go").touch()

    def stubs(self) -> int:
        return len(list(process_tree(self.server.pid("tritonserver")))) - 1


LOADED = {  # model_name -> (folder, Target-Model)
    "first": ("h1", "net-1.tar.gz"),
    "sec/ond %20": ("h2", "team a/net-2.tar.gz"),
    "ensemble-1": ("e1", ""),
}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Container]:
    """Load the models of LOADED, all at the same time."""
    folder = tmp_path_factory.mktemp("multi")
    root = folder / "models"
    make_model(root / "h1/model/net", 10, label="ten")
    make_model(root / "h2/model/net", 20, label="twenty")
    make_ensemble(root / "e1/model", 3, "three")
    own = {
        "SAGEMAKER_MULTI_MODEL": "true",
        "SERVE_MODEL_REPOSITORY": str(root),
        "SERVE_WORKERS": "2",
    }
    server = Server(folder, folder / "none", **own)
    server.wait_ready()
    container = Container(server, root)
    with ThreadPoolExecutor() as threads:
        replies = list(threads.map(lambda name: container.load(name, *LOADED[name]), LOADED))
    assert [reply.status_code for reply in replies] == [200] * len(LOADED), [
        reply.text for reply in replies
    ]
    yield container
    server.stop_later()


def predictions(reply: requests.Response) -> Any:
    assert reply.status_code == 200, reply.text
    return reply.json()["predictions"]


def test_list_loaded_models_page_by_page_with_their_urls(running: Container) -> None:
    assert running.listed() == sorted(LOADED)
    assert running.get("/first").json() == {
        "modelName": "first",
        "modelUrl": str(running.path("h1")),
    }
    assert running.get("/sec%2Fond%20%2520").json()["modelName"] == "sec/ond %20"
    assert running.get("", limit="1" * 5000).status_code == 400
    names, token = [], ""
    while page := running.get("", limit="2", next_page_token=token).json():
        names += [model["modelName"] for model in page["models"]]
        if not (token := page.get("nextPageToken", "")):
            break
        assert len(page["models"]) == 2
    assert names == sorted(LOADED)


def test_give_archives_with_one_model_name_their_own_clients(running: Container) -> None:
    assert predictions(running.invoke("first", 1, 2)) == [{"ten": 10.0}, {"ten": 20.0}]
    assert predictions(running.invoke("sec/ond %20", 1)) == [{"twenty": 20.0}]


@pytest.mark.parametrize(
    ("target", "factor"),
    [("net-1.tar.gz", 10.0), ("team a/net-2.tar.gz", 20.0), ("ensemble-1", 3.0)],
)
def test_find_a_model_by_its_target(running: Container, target: str, factor: float) -> None:
    reply = running.server.post(headers={TARGET: target}, json={"inputs": [tensor([2.0])]})
    assert reply.status_code == 200, reply.text
    assert reply.json()["outputs"][0]["data"] == [2 * factor]
    assert reply.json()["model_name"] == target
    predicted = running.server.post(headers={TARGET: target}, json={"instances": [1]})
    assert predicted.json()["model_name"] == target


def test_listen_on_no_port_with_triton_and_the_manager(running: Container) -> None:
    for name in ("tritonserver", "manager"):
        assert not psutil.Process(running.server.pid(name)).net_connections("inet")
    assert (running.server.run_dir / "manager.sock").is_socket()


def test_answer_400_without_a_target_and_404_for_an_unknown_one(running: Container) -> None:
    expect_error(running.server.post(json={"instances": [1]}), 400, "invalid_request", TARGET)
    expect_error(
        running.server.post(headers={TARGET: "absent"}, json={"instances": [1]}),
        404,
        "model_not_loaded",
        "absent",
    )


def test_ignore_a_name_in_the_body_beside_the_model_in_the_path(running: Container) -> None:
    body = {"modelname": "resnet", "payload": 7}
    assert running.invoke("first", json=body).json()["result"] == {"ten": 70.0}


def test_ignore_a_name_in_the_query_beside_the_model_in_the_path(running: Container) -> None:
    for kind, body in (("application/json", '{"instances": [7]}'), ("application/jsonlines", "7")):
        headers = {"Content-Type": kind}
        reply = running.invoke("first", data=body, headers=headers, params={"model_name": "b"})
        assert reply.status_code == 200, reply.text


@pytest.mark.parametrize(
    "query", [{"limit": "0"}, {"limit": "x"}, {"next_page_token": "a"}, {"next_page_token": "_w=="}]
)
def test_answer_400_for_a_wrong_page(running: Container, query: dict[str, str]) -> None:
    expect_error(running.get("", **query), 400, "invalid_request", next(iter(query)))


def test_answer_400_for_an_unknown_version(running: Container) -> None:
    reply = running.invoke("first", json={"model_version": "9", "instances": [1]})
    expect_error(reply, 400, "invalid_request", "'9'", "latest")


def test_answer_507_to_a_call_that_runs_out_of_memory(running: Container) -> None:
    expect_error(running.invoke("first", -1), 507, "out_of_memory", "no room for this call")
    expect_error(running.invoke("first", json={"inputs": [tensor([-1.0])]}), 507, "out_of_memory")
    assert predictions(running.invoke("first", 1)) == [{"ten": 10.0}]


def test_answer_400_without_trying_if_a_model_can_never_fit(running: Container) -> None:
    make_model(running.path("huge") / "net")
    with (running.path("huge") / "net/1/weights").open("wb") as weights:
        weights.truncate(2**40)
    expect_error(
        running.load("huge", "huge"), 400, "load_failed", "never", "SERVE_MODEL_MEMORY_SHARE"
    )
    expect_error(running.get("/huge"), 404, "model_not_loaded")


def test_answer_507_without_trying_if_a_model_does_not_fit_now(running: Container) -> None:
    """The estimated memory is twice the size of the file: just below the memory that all models may
    take."""
    make_model(running.path("large") / "net")
    with (running.path("large") / "net/1/weights").open("wb") as weights:
        weights.truncate(int(0.8 * memory_limit() - PER_INSTANCE) // 2 - 2**20)
    expect_error(running.load("large", "large"), 507, "out_of_memory", "SERVE_MODEL_MEMORY_SHARE")
    expect_error(running.get("/large"), 404, "model_not_loaded")


@pytest.mark.parametrize("name", ["..", ".", "", "a/../b", "a//b", "/a", "a/", "a\nb", "n" * 1025])
def test_refuse_a_name_that_no_path_can_have(running: Container, name: str) -> None:
    make_model(running.path("named") / "net")
    expect_error(running.load(name, "named"), 400, "invalid_request", "model_name")
    assert running.listed() == sorted(LOADED)


def test_leave_nothing_of_a_failed_load_and_load_it_once_fixed(running: Container) -> None:
    stubs = running.stubs()
    make_ensemble(running.path("broken"), 5, "five", "raise ValueError('bad weights')")
    expect_error(running.load("broken", "broken"), 400, "load_failed", "bad weights")
    make_model(running.path("broken") / "part", 5, "raise MemoryError('no room for weights')")
    expect_error(running.load("broken", "broken"), 507, "out_of_memory", "no room for weights")
    assert "broken" not in running.listed()
    wait_until(lambda: running.stubs() <= stubs, f"of {stubs} processes not more are left")
    make_model(running.path("broken") / "part", 5)
    client = running.path("broken") / "whole/client.py"
    sound = client.read_text()
    for code in (
        "import a_library_that_is_missing\n",
        "import sys\nsys.exit('a_library_that_is_missing')\n",
    ):
        client.write_text(code)
        expect_error(
            running.load("broken", "broken"), 400, "load_failed", "a_library_that_is_missing"
        )
    assert "broken" not in running.listed()
    client.write_text(sound)
    assert running.load("broken", "broken").status_code == 200
    assert predictions(running.invoke("broken", 1)) == [{"five": 5.0}]
    assert running.unload("broken").status_code == 200


def test_unload_all_parts_of_an_ensemble_if_one_fails(running: Container) -> None:
    wait_until(lambda: running.stubs() == len(LOADED), "one process for each loaded model")
    make_parts(running.path("half"), "time.sleep(1); raise ValueError('it cannot start')")
    expect_error(running.load("half", "half"), 400, "load_failed", "part")
    wait_until(lambda: running.stubs() == len(LOADED), "the sound part is gone too")


def test_unload_the_sound_part_of_an_ensemble_that_failed_later(
    running: Container, tmp_path: Path
) -> None:
    """The other part cannot start again after tritonserver has been restarted."""
    missing = tmp_path / "missing"
    make_parts(running.path("late"), f"open({str(missing)!r})")
    missing.touch()
    assert running.load("late", "late").status_code == 200
    missing.unlink()
    running.server.replace("tritonserver")
    wait_until(lambda: running.listed() == sorted(LOADED), "the others are loaded again")
    wait_until(lambda: running.stubs() == len(LOADED) + 1, "the sound part is loaded again")
    assert running.unload("late").status_code == 200
    wait_until(lambda: running.stubs() == len(LOADED), "the sound part is gone too")


def test_complete_an_archive_from_its_onnx_file(running: Container) -> None:
    write_model(running.path("bare") / "net", arithmetic("float[batch, 3]"), None)
    assert running.load("bare", "bare").status_code == 200
    inputs = [
        {"name": name, "shape": [1, 3], "datatype": "FP32", "data": [1, 2, 3]} for name in "xy"
    ]
    reply = running.invoke("bare", json={"inputs": inputs})
    assert {each["name"]: each["data"] for each in reply.json()["outputs"]} == {
        "sum": [2, 4, 6],
        "product": [1, 4, 9],
    }
    assert running.unload("bare").status_code == 200


def test_complete_an_archive_from_its_code(running: Container) -> None:
    make_model(running.path("says") / "net", 6)
    code = running.path("says") / "net/1/model.py"
    prints = "import helper, os\nos.system('echo printed')\n"
    code.write_text(
        prints + code.read_text().replace("    def initialize", COMPLETES + "    def initialize")
    )
    (code.parent / "helper.py").touch()
    (running.path("says") / "net/config.pbtxt").write_text('backend: "python"\n')
    # valid as a Target-Model, but not as the name of a folder in Triton
    reply = running.load("says", "says", "..")
    assert reply.status_code == 200, reply.text
    reply = running.invoke("says", json={"inputs": [tensor([7])]})
    assert reply.json()["outputs"][0]["data"] == [42.0]
    assert running.unload("says").status_code == 200


def test_refuse_an_archive_that_cannot_be_completed(running: Container) -> None:
    write_model(running.path("torn") / "net", b"this is no ONNX file", None)
    expect_error(running.load("torn", "torn"), 400, "load_failed", "'net'", "ONNX Runtime")
    make_model(running.path("mute") / "net")
    (running.path("mute") / "net/config.pbtxt").write_text(CONFIG.replace("dims: [1]", "", 1))
    expect_error(running.load("mute", "mute"), 400, "load_failed", "'net'", "'x'")
    (running.path("mute") / "net/config.pbtxt").write_text("backend = python\n")
    expect_error(running.load("mute", "mute"), 400, "load_failed", "net/config.pbtxt", "1:9")


def test_run_slow_loads_in_parallel_without_delaying_calls(running: Container) -> None:
    names = ["slow_1", "slow_2"]
    for name in names:
        make_model(running.path(name) / "net", initialize="hold()")
    with ThreadPoolExecutor() as threads:
        loads = [threads.submit(running.load, name, name) for name in names]
        wait_until(lambda: all(running.is_held(name) for name in names), "both are being loaded")
        for _ in range(20):
            assert predictions(running.invoke("first", 1)) == [{"ten": 10.0}]
        assert not any(load.done() for load in loads)
        for name in names:
            running.go_on(name)
        assert [load.result().text for load in loads if load.result().status_code != 200] == []
        assert [reply.status_code for reply in threads.map(running.unload, names)] == [200] * 2


def test_finish_a_model_s_calls_before_its_unload(running: Container) -> None:
    make_model(running.path("busy") / "net", 2, label="two")
    assert running.load("busy", "busy").status_code == 200
    with ThreadPoolExecutor() as threads:
        call = threads.submit(running.invoke, "busy", *[101.0] * 9)  # two batches of instances
        wait_until(lambda: running.is_held("busy"), "it is called")
        unload = threads.submit(running.unload, "busy")
        wait_until(lambda: running.get("/busy").status_code == 404, "it is listed no more")
        expect_error(running.invoke("busy", 1), 404, "model_not_loaded")
        assert predictions(running.invoke("first", 1)) == [{"ten": 10.0}]
        assert not call.done() and not unload.done()
        running.go_on("busy")
        assert predictions(call.result()) == [{"two": 202.0}] * 9
        assert unload.result().status_code == 200
    assert "busy" not in running.listed()


def test_bring_a_new_client_to_all_workers_with_a_new_load(running: Container) -> None:
    for label in ("before", "after"):
        make_model(running.path("again") / "net", label=label)
        assert running.load("again", "again", "again.tar.gz").status_code == 200
        with ThreadPoolExecutor(8) as threads:
            replies = list(threads.map(lambda _: running.invoke("again", 1), range(16)))
        assert [predictions(reply) for reply in replies] == [[{label: 1.0}]] * 16
        assert running.unload("again").status_code == 200


def test_use_clients_that_an_archive_brings(running: Container) -> None:
    for number in (1, 2):
        archive = running.path("beside")
        make_model(archive / "net")
        (archive / "clients").mkdir(exist_ok=True)
        (archive / "clients/net.py").write_text(
            f"from ._label import LABEL\n{CLIENT}".replace('"LABEL"', "LABEL")
        )
        (archive / "clients/_label.py").write_text(f'LABEL = "{number}"\n')
        assert running.load("beside", "beside", "beside.tar.gz").status_code == 200
        assert predictions(running.invoke("beside", 5)) == [{str(number): 5.0}]
        assert running.unload("beside").status_code == 200


def test_leave_no_process_file_or_memory_after_unloads(running: Container) -> None:
    root = running.root
    for number in range(3):
        make_archive(root, number)
    loader = Loader(running.server.url, root)
    loader.cycle(range(3))
    wait_until(lambda: running.stubs() == len(LOADED), "one process for each loaded model")
    before = usage(running.server.process.pid, running.server.run_dir)
    # one after the other, because an archive must be unloaded before it is loaded again
    for _ in range(3):
        loader.cycle(range(3))

    def nothing_is_left() -> bool:
        after = usage(running.server.process.pid, running.server.run_dir)
        return (
            after.processes == before.processes
            and after.files <= before.files
            and after.threads - before.threads < 10
            and after.descriptors - before.descriptors < 10
            and after.memory - before.memory < 10 * 2**20
        )

    wait_until(
        nothing_is_left,
        lambda: (
            f"it was {before}, and is {usage(running.server.process.pid, running.server.run_dir)}"
        ),
    )


def test_load_everything_again_after_tritonserver_died(running: Container) -> None:
    listed = running.listed()
    running.server.replace("tritonserver")
    wait_until(
        lambda: running.server.ping() == 200 and running.listed() == listed, "all are ready again"
    )
    assert predictions(running.invoke("first", 1)) == [{"ten": 10.0}]
    assert predictions(running.invoke("ensemble-1", 1)) == [{"three": 3.0}]
    expect_error(running.load("first", "h1", "net-1.tar.gz"), 409, "model_already_loaded")
    expect_error(running.load("net-1.tar.gz", "h1", "another.tar.gz"), 409, "model_already_loaded")
    assert running.unload("first").status_code == 200
    assert running.load("first", "h1", "net-1.tar.gz").status_code == 200


@pytest.mark.parametrize("stopped", [signal.SIGKILL, signal.SIGSTOP])
def test_answer_for_loaded_models_without_the_manager(
    running: Container, stopped: signal.Signals
) -> None:
    make_model(running.path("meanwhile") / "net", 3, label="three")
    killed = running.server.pid("manager")
    with Load(lambda _: running.invoke("first", 1), callers=2, pause=0.2) as load:
        os.kill(killed, stopped)
        wait_until(lambda: load.answers["200"] > 20, "calls")
        wait_until(lambda: running.server.pid("manager") not in (None, killed), "another manager")
        wait_until(
            lambda: running.load("meanwhile", "meanwhile").status_code in (200, 409), "it loads"
        )
    assert set(load.answers) == {"200"}
    assert predictions(running.invoke("meanwhile", 1)) == [{"three": 3.0}]
    assert running.unload("meanwhile").status_code == 200


def test_hold_a_load_until_the_manager_has_started(running: Container) -> None:
    make_model(running.path("early") / "net", 3, label="three")
    killed = running.server.pid("manager")
    os.kill(killed, signal.SIGKILL)
    wait_until(
        lambda: running.server.pid("manager") != killed,
        "its end is seen; the next one starts 0.25 s later",
    )
    loaded = running.load("early", "early")
    assert loaded.status_code == 200, loaded.text
    assert predictions(running.invoke("early", 1)) == [{"three": 3.0}]
    assert running.unload("early").status_code == 200


def test_undo_a_load_if_the_manager_dies(running: Container) -> None:
    make_model(running.path("halfway") / "net", 3, initialize="hold()", label="three")
    with ThreadPoolExecutor() as threads:
        load = threads.submit(running.load, "halfway", "halfway")
        wait_until(lambda: running.is_held("halfway"), "it is being loaded")
        running.server.replace("manager")
        expect_error(load.result(), 503, "model_not_ready")
    running.go_on("halfway")
    wait_until(lambda: running.load("halfway", "halfway").status_code == 200, "it loads")
    assert predictions(running.invoke("halfway", 1)) == [{"three": 3.0}]
    assert running.unload("halfway").status_code == 200


def test_forget_a_load_if_tritonserver_dies(running: Container) -> None:
    make_model(running.path("cut") / "net", 3, initialize="hold()", label="three")
    listed = running.listed()
    with ThreadPoolExecutor() as threads:
        load = threads.submit(running.load, "cut", "cut")
        wait_until(lambda: running.is_held("cut"), "it is being loaded")
        running.server.replace("tritonserver")
        expect_error(load.result(), 503, "triton_unavailable")
    wait_until(
        lambda: running.server.ping() == 200 and running.listed() == listed,
        "all others are ready again",
    )
    assert running.stubs() == len(listed)
    running.go_on("cut")
    assert running.load("cut", "cut").status_code == 200
    assert running.unload("cut").status_code == 200
