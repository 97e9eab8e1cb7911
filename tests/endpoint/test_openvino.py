"""Models of `backend: "openvino"` through the whole container: surveyed, checked, listed, called,
and started again."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.onnx_models import arithmetic, write_model
from tests.backends.openvino_models import write_own_format
from tests.pid1.test_serve import run
from tests.support.harness import ROOT, Server, link_model

pytestmark = pytest.mark.stack

EXAMPLE = ROOT / "model_repository/resnet/example.png"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a repository with the bundled `resnet`, which SERVE_CPU_ENGINE gives to OpenVINO, and
    `sums` in OpenVINO's own format without a config.pbtxt."""
    folder, source = tmp_path_factory.mktemp("openvino"), tmp_path_factory.mktemp("source")
    link_model(ROOT / "model_repository/resnet", folder)
    write_model(source / "sums", arithmetic("float[N, 3]"), "")
    write_own_format(folder / "sums", source / "sums/1/model.onnx")
    return folder


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def start(folder: Path, repository: Path, cache: Path) -> Server:
    variables = {"TMPDIR": str(cache), "SERVE_CPU_ENGINE": "openvino", "SERVE_LOG_LEVEL": "info"}
    return Server(folder, repository, **variables).wait_ready()


@pytest.fixture(scope="module")
def server(
    repository: Path, cache: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Server]:
    running = start(tmp_path_factory.mktemp("serve"), repository, cache)
    yield running
    assert running.stop() == 0


def test_list_and_log_the_engine_and_the_reason(server: Server) -> None:
    listed = {model["name"]: model for model in server.get("/models").json()["models"]}
    assert (
        listed["resnet"]["engine"] == "openvino"
        and "SERVE_CPU_ENGINE" in listed["resnet"]["engine_reason"]
    )
    assert ["error" in model for model in listed.values()] == [False, False]
    assert [tensor["name"] for tensor in listed["sums"]["inputs"]] == ["x", "y"]
    assert listed["sums"]["engine"] == "openvino" and "engine_reason" not in listed["sums"], (
        "it has no other"
    )
    server.expect_message("resnet: OpenVINO", "SERVE_CPU_ENGINE")


def test_send_images_to_a_model_with_a_client(server: Server) -> None:
    asked = {"data": EXAMPLE.read_bytes(), "headers": {"Content-Type": "image/png"}}
    reply = server.post("/invocations?model_name=resnet&top_k=2", **asked)
    assert reply.status_code == 200, reply.text
    best, _ = reply.json()["predictions"][0]["classes"]
    # ONNX Runtime's, in the README
    assert (best["label"], best["score"]) == ("6", pytest.approx(0.956, abs=0.02))


def test_send_tensors_to_a_model_without_a_config(server: Server) -> None:
    tensor = {"shape": [2, 3], "datatype": "FP32", "data": [1, 2, 3, 4, 5, 6]}
    body = {"inputs": [{"name": name, **tensor} for name in ("x", "y")]}
    reply = server.post("/invocations?model_name=sums", json=body)
    assert reply.status_code == 200, reply.text
    outputs = {
        output["name"].removesuffix("_too"): output["data"] for output in reply.json()["outputs"]
    }
    assert outputs == {"sum": [2, 4, 6, 8, 10, 12], "product": [1, 4, 9, 16, 25, 36]}


def test_pass_the_check(repository: Path) -> None:
    done = run("--check", SERVE_MODEL_REPOSITORY=str(repository), SERVE_DEVICE="cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert "resnet" in done.stdout and "sums" in done.stdout
