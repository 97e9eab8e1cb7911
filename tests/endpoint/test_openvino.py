"""Tests models on OpenVINO in the whole container, and models that OpenVINO refuses, such as one
with strings. ONNX Runtime serves the latter after a start, a reload or a load, and in a check, and
the log says so."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from serving.preparation.check import failures_in_tritonserver
from serving.settings.settings import Settings
from tests.backends.onnx_models import ONE, PLATFORM, arithmetic, identity, write_model, xy
from tests.backends.openvino_models import write_own_format
from tests.support.harness import ROOT, Server, link_model, wait_until

pytestmark = pytest.mark.stack

RESNET = ROOT / "model_repository/resnet"
STRINGS = identity("string[N, 3]")
CONFIG = PLATFORM + ONE + "max_batch_size: 8\n" + xy("STRING 3")
ENSEMBLE = (
    'platform: "ensemble"\nmax_batch_size: 8\n'
    + xy("STRING 3")
    + """ensemble_scheduling { step { model_name: "words" model_version: -1
        input_map { key: "x" value: "x" } output_map { key: "y" value: "y" } } }"""
)
OPENVINO = {"SERVE_CPU_ENGINE": "openvino", "SERVE_DEVICE": "cpu"}
WARNING = "words: ONNX Runtime, because OpenVINO refuses it"
BODY = {"inputs": [{"name": "x", "shape": [1, 3], "datatype": "BYTES", "data": ["a", "b", "c"]}]}


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make models that OpenVINO refuses (`calls`, an ensemble, comes before the model that it
    calls), the bundled `resnet`, and `sums` in OpenVINO's own format without a config.pbtxt."""
    folder, source = tmp_path_factory.mktemp("models"), tmp_path_factory.mktemp("source")
    link_model(RESNET, folder)
    write_model(source / "sums", arithmetic("float[N, 3]"), "")
    write_own_format(folder / "sums", source / "sums/1/model.onnx")
    write_model(folder / "words", STRINGS, CONFIG)
    write_model(folder / "bare", STRINGS, PLATFORM + ONE)
    write_model(folder / "lstm", quantized_lstm(), PLATFORM + ONE)
    (folder / "calls/1").mkdir(parents=True)
    (folder / "calls/config.pbtxt").write_text(ENSEMBLE)
    return folder


@pytest.fixture(scope="module")
def server(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    run_dir = tmp_path_factory.mktemp("serve")
    running = Server(run_dir, repository, SERVE_RELOAD="true", **OPENVINO).wait_ready()
    yield running
    running.stop_later()


def quantized_lstm() -> bytes:
    """Make a network with one node of the kind that ONNX Runtime's quantizer writes."""
    file = onnx.parser.parse_model("""
        <ir_version: 8, opset_import: ["": 17, "com.microsoft": 1]>
        lstm (float[2, 1, 1] x) => (float[2, 1, 1, 1] y)
        <uint8[1, 1, 4] w = {1, 1, 1, 1}, float[1] scale = {1.0}, uint8[1] zero = {0}> {
        y = com.microsoft.DynamicQuantizeLSTM <hidden_size = 1>
            (x, w, w, , , , , , scale, zero, scale, zero)
    }""")
    return bytes(file.SerializeToString())


def engine(server: Server, name: str) -> tuple[str, bool]:
    """Return the engine that GET /models lists, and whether its reason names OpenVINO."""
    model = next(each for each in server.get("/models").json()["models"] if each["name"] == name)
    return model["engine"], "OpenVINO refuses it" in model.get("engine_reason", "")


def answers(server: Server, name: str) -> bool:
    reply = server.post(f"/v2/models/{name}/infer", json=BODY)
    return reply.status_code == 200 and reply.json()["outputs"][0]["data"] == ["a", "b", "c"]


def test_list_and_log_the_engine_and_the_reason(server: Server) -> None:
    listed = {model["name"]: model for model in server.get("/models").json()["models"]}
    resnet, sums = listed["resnet"], listed["sums"]
    assert resnet["engine"] == "openvino" and "SERVE_CPU_ENGINE" in resnet["engine_reason"]
    assert [tensor["name"] for tensor in sums["inputs"]] == ["x", "y"]
    assert sums["engine"] == "openvino" and "engine_reason" not in sums, "it has no other"
    assert not [model for model in listed.values() if "error" in model]
    server.expect_message("resnet", "OpenVINO, because SERVE_CPU_ENGINE")


def test_send_images_to_a_model_with_a_client(server: Server) -> None:
    asked = {
        "data": (RESNET / "example.png").read_bytes(),
        "headers": {"Content-Type": "image/png"},
    }
    reply = server.post("/invocations?model_name=resnet&top_k=2", **asked)
    assert reply.status_code == 200, reply.text
    best, _ = reply.json()["predictions"][0]["classes"]
    # the README shows the score that ONNX Runtime computes
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


@pytest.mark.parametrize("name", ["words", "bare", "calls"])
def test_fall_back_to_onnx_runtime_if_openvino_refuses_a_model(server: Server, name: str) -> None:
    assert answers(server, name)
    if name != "calls":
        assert engine(server, name) == ("onnxruntime", True)
        process = "manager" if name == "words" else "serve"  # `bare` is completed before the start
        server.expect_message(f"{name}: ONNX Runtime, because OpenVINO refuses it", process=process)


def test_fall_back_to_onnx_runtime_if_openvino_computes_differently(
    server: Server, repository: Path
) -> None:
    x = np.array([[[0.5]], [[-1.0]]], np.float32)
    tensor = {"name": "x", "shape": [2, 1, 1], "datatype": "FP32", "data": x.flatten().tolist()}
    reply = server.post("/v2/models/lstm/infer", json={"inputs": [tensor]})
    network = onnxruntime.InferenceSession(repository / "lstm/1/model.onnx")
    (wanted,) = network.run(None, {"x": x})
    assert reply.json()["outputs"][0]["data"] == pytest.approx(wanted.flatten().tolist())
    assert engine(server, "lstm") == ("onnxruntime", True)


def test_start_a_new_tritonserver_with_onnx_runtime(server: Server) -> None:
    warnings = server.output().count(WARNING)
    server.replace("tritonserver")
    wait_until(lambda: answers(server, "words") and answers(server, "calls"), server.output)
    assert server.output().count(WARNING) == warnings


def test_serve_an_added_or_changed_folder_with_onnx_runtime(
    server: Server, repository: Path
) -> None:
    shutil.copytree(repository / "words", repository / "added")
    wait_until(lambda: answers(server, "added"), server.output)
    (repository / "added/config.pbtxt").write_text(CONFIG + "dynamic_batching { }\n")
    wait_until(lambda: server.output().count("added is now served") == 2, server.output)
    assert answers(server, "added")
    assert engine(server, "added") == ("onnxruntime", True)


def test_pass_the_check_with_a_warning(repository: Path, caplog: pytest.LogCaptureFixture) -> None:
    folders = {name: repository / name for name in ("calls", "words", "bare")}
    assert list(failures_in_tritonserver(Settings.from_env(OPENVINO), folders, list(folders))) == []
    assert any(message.startswith(WARNING) for message in caplog.messages)


@pytest.mark.parametrize("content", [b"this is not an ONNX file", b""])
def test_refuse_a_model_that_both_engines_refuse(tmp_path: Path, content: bytes) -> None:
    write_model(tmp_path / "broken", content, CONFIG)
    folders = {"broken": tmp_path / "broken"}
    ((name, reason),) = failures_in_tritonserver(Settings.from_env(OPENVINO), folders, ["broken"])
    assert name == "broken" and "broken/1/model.onnx" in reason


def test_serve_a_part_of_an_archive_with_onnx_runtime(repository: Path, tmp_path: Path) -> None:
    for name in ("calls", "words"):
        shutil.copytree(repository / name, tmp_path / "models/id/model" / name)
    mode = {"SAGEMAKER_MULTI_MODEL": "true"} | OPENVINO
    server = Server(tmp_path, tmp_path / "models", **mode).wait_ready()
    url = str(tmp_path / "models/id/model")
    loaded = server.post("/models", json={"model_name": "m", "url": url})
    assert loaded.status_code == 200, loaded.text
    reply = server.post("/models/m/invoke", json=BODY)
    assert reply.json()["outputs"][0]["data"] == ["a", "b", "c"]
    server.expect_message("m__words: ONNX Runtime", "OpenVINO refuses it", process="manager")
    server.stop_later()
