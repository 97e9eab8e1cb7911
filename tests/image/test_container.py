"""A container as platforms start, watch, limit and stop it: read-only, no capability, no network, a user of its own."""

import base64
import json
import re
import shlex
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import requests

from tests.image.conftest import Start
from tests.image.container import BUILD_SECONDS, Container, podman
from tests.support.harness import ROOT, wait_until

EXAMPLE = (ROOT / "model_repository/yolov5/example.jpg").read_bytes()
HOG = '''
import pathlib

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Takes as many megabytes as it is sent, for as long as a call lasts, and its weights' all the time."""

    def initialize(self, args):
        folder = pathlib.Path(args["model_repository"]) / args["model_version"]
        self.weights = (folder / "weights").read_bytes()

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.take(request)]) for request in requests]

    def take(self, request):
        megabytes = int(pb_utils.get_input_tensor_by_name(request, "megabytes").as_numpy()[0])
        return pb_utils.Tensor("taken", np.array([len(np.ones(megabytes * 2**20, np.uint8))], np.int64))
'''
HOG_CONFIG = """
backend: "python"
input { name: "megabytes" data_type: TYPE_INT32 dims: [1] }
output { name: "taken" data_type: TYPE_INT64 dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
"""


def make_hog(repository: Path, weight: int = 0) -> Path:
    """A repository with that model; its weights are that many bytes."""
    version = repository / "hog/1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(HOG)
    (version / "weights").write_bytes(bytes(weight))
    (version.parent / "config.pbtxt").write_text(HOG_CONFIG)
    repository.chmod(0o755)
    return repository


def take(container: Container, megabytes: int, path: str = "/invocations") -> requests.Response:
    tensor = {"name": "megabytes", "datatype": "INT32", "shape": [1], "data": [megabytes]}
    return container.post(path, json={"inputs": [tensor]})


def find(container: Container) -> requests.Response:
    return container.post(params={"model_name": "yolov5"}, data=EXAMPLE, headers={"Content-Type": "image/jpeg"})


def shown_calls(container: Container) -> list[str]:
    said = [entry["message"] for entry in map(json.loads, container.output().splitlines()) if "message" in entry]
    return [text for text in said if text.startswith("curl ")]


def ended(container: Container) -> tuple[int, str]:
    """(exit code, what it said) of a container that ends by itself."""
    return container.process.wait(BUILD_SECONDS), container.output()


def test_it_serves_its_own_models_and_the_calls_in_its_log_work(start: Start) -> None:
    container = start().wait_ready()
    wait_until(lambda: len(shown_calls(container)) == 3, "a call of each model in the log")
    for call in shown_calls(container):
        _curl, url, _h, kind, _data, file = shlex.split(call)
        body = (ROOT / file.removeprefix("@")).read_bytes()
        reply = container.post(url.partition(":8080")[2], data=body, headers=dict([kind.split(": ")]))
        assert reply.status_code == 200, reply.text
        assert len(reply.json()["predictions"]) == 1
    assert podman("healthcheck", "run", container.name) == ""
    assert container.run("serve", "--ping") == "healthy\n"
    assert container.run("id", "-u") == "10001\n"


def test_sagemaker_s_argument_serves_too_and_a_killed_tritonserver_comes_back(start: Start) -> None:
    container = start(arguments=("serve",)).wait_ready()
    before = container.pid("tritonserver")
    container.kill(before)
    wait_until(lambda: container.ping() == 503, "/ping says 503")
    container.wait_ready()
    assert container.pid("tritonserver") != before
    assert find(container).status_code == 200
    assert container.stop() == 0


def test_any_user_will_do(start: Start) -> None:
    """As OpenShift picks one for each project."""
    container = start("--user", "12345:0").wait_ready()
    assert find(container).status_code == 200
    assert "nothing is wrong" in container.run("serve", "--check")


@pytest.mark.parametrize("arguments", [("train",), ("serve", "fast"), ("bash", "-c", "true")])
def test_a_wrong_argument_is_told_with_the_right_ones(start: Start, arguments: tuple[str, ...]) -> None:
    code, said = ended(start(arguments=arguments))
    assert code == 2
    assert " ".join(arguments) in said
    assert "--check" in said


def test_without_a_place_to_write_it_says_what_to_mount(start: Start) -> None:
    """Kubernetes' readOnlyRootFilesystem, its emptyDir forgotten."""
    code, said = ended(start("--tmpfs", "/opt/nothing", SERVE_RUN_DIR="/run/serve"))
    assert code == 2
    assert "--tmpfs /tmp" in said
    assert "SERVE_RUN_DIR" in said
    assert "Traceback" not in said


def test_models_that_its_user_may_not_read_are_named(start: Start, tmp_path: Path) -> None:
    repository = make_hog(tmp_path / "models")
    (repository / "hog/config.pbtxt").chmod(0o600)
    code, said = ended(start("--volume", f"{repository}:/opt/ml/model:ro"))
    assert code == 2
    assert "the user of this process, 10001, may not read /opt/ml/model/hog/config.pbtxt: chmod" in said
    assert "Traceback" not in said


def test_settings_follow_the_limits_of_the_control_group(start: Start) -> None:
    container = start("--cpus", "1", memory="600m", arguments=("--print-config",))
    assert ended(container)[0] == 0
    shown = dict(re.findall(r"^(SERVE_\w+)=(\S*)", container.output(), re.MULTILINE))
    assert (shown["SERVE_WORKERS"], shown["SERVE_INFERENCE_THREADS"]) == ("1", "1")


def test_a_call_beyond_the_memory_limit_is_a_503_and_the_next_one_is_served(start: Start, tmp_path: Path) -> None:
    repository = make_hog(tmp_path / "models")
    container = start("--volume", f"{repository}:/opt/ml/model:ro", memory="500m").wait_ready()
    assert take(container, 50).json()["outputs"][0]["data"] == [50 * 2**20]
    reply = take(container, 600)
    assert (reply.status_code, reply.json()["code"]) == (503, "model_restarting")
    wait_until(lambda: take(container, 50).status_code == 200, "it serves again")
    assert container.process.poll() is None
    container.wait_ready()
    assert container.stop() == 0


def test_a_small_dev_shm_is_told_at_the_start_and_a_batch_beyond_it_is_a_507_that_says_what_to_set(
    start: Start,
) -> None:
    container = start("--shm-size", "10m", memory="3g").wait_ready()
    assert "/dev/shm has 10 MB" in container.output()
    assert "--shm-size=1g" in container.output()
    assert find(container).status_code == 200
    image = {"b64": base64.b64encode(EXAMPLE).decode()}
    batch = {"model_name": "yolov5", "instances": [image] * 8}  # 9.8 MB of pixels
    with ThreadPoolExecutor(4) as threads:
        replies = list(threads.map(lambda _: container.post(json=batch), range(8)))
    assert {reply.status_code for reply in replies} <= {200, 507, 503}
    assert any(reply.status_code == 507 and "--shm-size" in reply.json()["error"] for reply in replies)
    wait_until(lambda: find(container).status_code == 200, "a single call is served")


def load(container: Container, number: int) -> requests.Response:
    body = {"model_name": f"m{number}", "url": f"/opt/ml/models/h{number}/model"}
    return container.post("/models", json=body, headers={"X-Amzn-SageMaker-Target-Model": f"hog-{number}.tar.gz"})


def test_in_multi_model_mode_a_load_beyond_the_memory_limit_is_a_507_until_another_is_unloaded(
    start: Start, tmp_path: Path
) -> None:
    root, archives = tmp_path / "archives", 6
    for number in range(archives):
        make_hog(root / f"h{number}/model", weight=60 * 2**20)
    root.chmod(0o755)
    volume = ("--volume", f"{root}:/opt/ml/models:ro")
    container = start(*volume, memory="500m", SAGEMAKER_MULTI_MODEL="true").wait_ready()
    replies = list(loads_until_refused(container, archives))
    refused = len(replies) - 1
    assert 0 < refused < archives
    assert (replies[-1].status_code, replies[-1].json()["code"]) == (507, "out_of_memory")
    assert container.ask("DELETE", "/models/m0").status_code == 200
    assert load(container, refused).status_code == 200
    assert take(container, 10, f"/models/m{refused}/invoke").status_code == 200
    assert take(container, 10, "/models/m0/invoke").status_code == 404
    assert container.stop() == 0


def loads_until_refused(container: Container, archives: int) -> Iterator[requests.Response]:
    """The replies to loads, up to the first that fails."""
    for number in range(archives):
        yield (reply := load(container, number))
        if reply.status_code != 200:
            return
