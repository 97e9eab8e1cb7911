"""What those who run a server see of it: `serve --status`, the log."""

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tests.support.harness import PATIENCE, ROOT, Server, make_scale, make_sleeper, wait_until

TENSORS = {"model_name": "scale", "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [7]}]}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A good call and bad ones, and a tritonserver that was killed."""
    folder = tmp_path_factory.mktemp("operators")
    make_scale(folder / "repository")
    make_sleeper(folder / "repository")
    running = Server(folder, folder / "repository").wait_ready()
    assert running.post(json=TENSORS).status_code == 200
    assert running.post(json=TENSORS | {"model_name": "nope"}).status_code == 404
    assert running.post(json={"model_name": "sleeper", "instances": [-1]}).status_code == 500
    running.replace("tritonserver")
    running.wait_ready()
    yield running
    assert running.stop() == 0


def status(server: Server) -> subprocess.CompletedProcess[str]:
    variables = {"PORT": str(server.port), "SERVE_HOST": "127.0.0.1", "SERVE_RUN_DIR": str(server.run_dir)}
    command = [sys.executable, str(ROOT / "serve"), "--status"]
    return subprocess.run(
        command, env=os.environ | variables, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


def test_status_tells_processes_models_queue_and_the_last_errors(server: Server) -> None:
    wait_until(
        lambda: "scale    2        READY  onnxruntime  1 " in status(server).stdout, "the door's request is counted"
    )
    done = status(server)
    assert (done.returncode, done.stderr) == (0, "")
    headline, processes, models, queue, errors = (block.splitlines() for block in done.stdout.split("\n\n"))
    assert headline[0].endswith(f" is ready at {server.url}, run folder {server.run_dir}; /ping: 200")
    rows = {row.split()[0]: row.split() for row in processes}
    assert list(rows) == ["PROCESS", "serve", "tritonserver", "gunicorn", "nginx"]
    assert [rows[name][2] for name in list(rows)[1:]] == [
        str(pid) for pid in (server.process.pid, *map(server.pid, ("tritonserver", "gunicorn", "nginx")))
    ]
    assert min(int(rows[name][3]) for name in list(rows)[1:]) > 0, "megabytes"
    assert [rows[name][7] for name in list(rows)[1:]] == ["0", "1", "0", "0"], "restarts"
    assert "was killed by SIGKILL" in processes[2]
    assert [row.split()[:6] for row in models[1:4]] == [
        ["scale", "1", "READY", "onnxruntime", "0", "0"],
        ["scale", "2", "READY", "onnxruntime", "1", "0"],
        ["sleeper", "1", "READY", "python", "0", "0"],
    ]
    assert models[4].split() == ["sleeper", "python", "1", "1", "0"], "requests that no version answered"
    assert queue == ["0 requests in work, 0 of them in the Flask app"]
    for text in (
        "told to fail",
        "nginx: POST /invocations 500 inference_failed sleeper",
        "serve: tritonserver was killed",
    ):
        assert text in "\n".join(errors)
