"""Tests whole containers: which ports listen and answer, which warnings appear, and what a killed
container leaves behind."""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest
import requests
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from serving.pid1.resources import SHARED_MEMORY
from tests.pid1.test_variables import NATIVE
from tests.support.harness import PATIENCE, Server, make_scale, make_sleeper, tensor, wait_until

pytestmark = pytest.mark.stack


def free_range(count: int, lowest: int) -> range:
    """Return consecutive free ports below those that the system assigns. Other runs of these tests
    begin at other ports."""
    for low in range(lowest + os.getpid() % 300 * 20, 32000 - count, 20):
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for port in range(low, low + count):
                stack.enter_context(socket.create_server(("", port)))
            return range(low, low + count)
    raise AssertionError(f"no {count} ports in a row are free")


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Server, range]]:
    """Start two containers on one host with the same range of ports. The second exposes every port
    that can be exposed."""
    low = free_range(10, lowest=24000)[0]  # the simulator's containers have 23000 to 23999
    allowed = {"SAGEMAKER_SAFE_PORT_RANGE": f"{low}-{low + 9}"}
    exposed = {
        f"{NATIVE}ALLOW_GRPC": "true",
        f"{NATIVE}GRPC_PORT": str(low + 8),
        f"{NATIVE}ALLOW_METRICS": "true",
        f"{NATIVE}METRICS_PORT": str(low + 9),
        f"{NATIVE}OVERRIDE_PING_MODE": "live",
        f"{NATIVE}THREAD_COUNT": "2",
        f"{NATIVE}BUFFER_MANAGER_THREAD_COUNT": "1",
        f"{NATIVE}LOG_VERBOSE": "1",
        f"{NATIVE}MODEL_LOAD_GPU_LIMIT": "0.9",
        f"{NATIVE}TENSORFLOW_VERSION": "1",
        f"{NATIVE}SHM_DEFAULT_BYTE_SIZE": "16777216",
        f"{NATIVE}SHM_GROWTH_BYTE_SIZE": "1048576",
        f"{NATIVE}ADDITIONAL_ARGS": "--model-load-retry-count=1 --log-format 'ISO8601'",
    }
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    for folder in folders:
        make_scale(folder / "models")
    one, other = folders
    first = Server(one, one / "models", **allowed)
    second = Server(other, other / "models", **allowed, **exposed)
    second.wait_ready()  # its ping mode is live, so its model may still be loading
    wait_until(
        lambda: triton.InferenceServerClient(f"127.0.0.1:{low + 8}").is_model_ready("scale"),
        "it is loaded",
    )
    yield first.wait_ready(), second, range(low, low + 10)
    assert (first.stop(), second.stop()) == (0, 0)


def test_run_two_containers_with_the_same_port_range(pair: tuple[Server, Server, range]) -> None:
    values = {"inputs": [tensor([2])]}
    for server in pair[:2]:
        assert server.post(json=values).json()["outputs"][0]["data"] == [6]


def test_let_only_nginx_listen_on_its_port(pair: tuple[Server, Server, range]) -> None:
    for server in pair[:2]:
        owners = {pid for pid in server.processes() if psutil.Process(pid).net_connections("inet")}
        assert owners <= {server.pid("nginx"), server.process.pid}


def test_expose_grpc_and_metrics_on_their_ports_if_allowed(
    pair: tuple[Server, Server, range],
) -> None:
    low = pair[2][0]
    assert triton.InferenceServerClient(f"127.0.0.1:{low + 8}").is_model_ready("scale")
    assert (
        "nv_inference_request_success"
        in requests.get(f"http://127.0.0.1:{low + 9}/metrics", timeout=PATIENCE).text
    )
    assert "nv_inference_request_success" in pair[1].get("/metrics").text


def test_allow_inference_but_no_management_over_exposed_grpc(
    pair: tuple[Server, Server, range],
) -> None:
    client = triton.InferenceServerClient(f"127.0.0.1:{pair[2][8]}")
    tensor = triton.InferInput("x", [1, 1], "FP32")
    tensor.set_data_from_numpy(np.array([[2]], np.float32))
    assert client.infer("scale", [tensor]).as_numpy("y").tolist() == [[6]]
    for call in (
        client.get_model_repository_index,
        client.get_system_shared_memory_status,
        client.get_log_settings,
        client.get_trace_settings,
        lambda: client.load_model("scale"),
        lambda: client.unload_model("scale"),
    ):
        with pytest.raises(InferenceServerException, match="PERMISSION_DENIED"):
            call()


def test_report_over_exposed_grpc_that_triton_is_down(pair: tuple[Server, Server, range]) -> None:
    client, server = triton.InferenceServerClient(f"127.0.0.1:{pair[2][8]}"), pair[1]
    with server.unattended():
        server.kill(server.pid("tritonserver"))
        with pytest.raises(InferenceServerException, match="UNAVAILABLE"):
            client.is_server_ready()
    server.wait_ready()


def test_check_only_triton_in_ping_mode_live(tmp_path: Path) -> None:
    """A model that fails to load keeps /ping at 503, except in this mode."""
    make_scale(tmp_path / "models")
    for file in (tmp_path / "models").rglob("model.onnx"):
        # an operator that does not exist
        file.write_bytes(file.read_bytes().replace(b"Mul", b"Mux"))
    server = Server(tmp_path, tmp_path / "models", SAGEMAKER_TRITON_PING_MODE="live").wait_ready()
    assert server.post(json={"inputs": []}).status_code == 503
    assert server.stop() == 0


def test_remove_what_a_killed_serve_and_its_processes_left(tmp_path: Path) -> None:
    make_sleeper(tmp_path / "models")
    (tmp_path / "second").mkdir()
    server = Server(tmp_path, tmp_path / "models").wait_ready()
    prefix = (server.run_dir / "triton/shared-memory").read_text()
    assert list(SHARED_MEMORY.glob(f"{prefix}*"))
    server.kill_all()
    server = Server(tmp_path / "second", tmp_path / "models").wait_ready()
    assert list(SHARED_MEMORY.glob(f"*{prefix}*")) == []
    assert server.stop() == 0
