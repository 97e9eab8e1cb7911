"""What those who run a server see of it: `serve --status`, the log."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.harness import ONE_INSTANCE, PATIENCE, ROOT, Server, make_scale, make_sleeper, wait_until

TENSORS = {"model_name": "scale", "inputs": [{"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [7]}]}


PRINTER = """
import sys
import traceback

import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        try:
            raise ValueError("printed")
        except ValueError:
            traceback.print_exc()
        print('{"is": json, "not": this}', file=sys.stderr)
        print("it goes on", file=sys.stderr, flush=True)
        return [pb_utils.InferenceResponse([pb_utils.Tensor("y", self.x(each))]) for each in requests]

    def x(self, request):
        return pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
"""
PORTS = (("input", "x"), ("output", "y"))


def make_printer(repository: Path) -> None:
    """`printer`: writes a traceback and other lines to its standard error."""
    folder = repository / "printer"
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.py").write_text(PRINTER)
    tensors = [f'{side} {{ name: "{name}" data_type: TYPE_FP32 dims: [1, 1] }}\n' for side, name in PORTS]
    (folder / "config.pbtxt").write_text(f'backend: "python"\n{"".join(tensors)}{ONE_INSTANCE}')


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A good call and bad ones, a model that prints, and a tritonserver that was killed."""
    folder = tmp_path_factory.mktemp("operators")
    make_scale(folder / "repository")
    make_sleeper(folder / "repository")
    make_printer(folder / "repository")
    running = Server(folder, folder / "repository", SERVE_LOG_FORMAT="json").wait_ready()
    assert running.post(json=TENSORS).status_code == 200
    assert running.post(json=TENSORS | {"model_name": "nope"}).status_code == 404
    assert running.post(json={"model_name": "sleeper", "instances": [-1]}).status_code == 500
    assert running.post(json=TENSORS | {"model_name": "printer"}).status_code == 200
    wait_until(lambda: "it goes on" in running.output(), "what the model printed")
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
    # the door's request is counted a moment later, and a probe of `serve` may be in work
    settled = ("scale    2        READY  onnxruntime  1 ", "\n\n0 requests in work")
    done = wait_until(
        lambda: (said := status(server)) and all(part in said.stdout for part in settled) and said, "nothing is in work"
    )
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
    assert [row.split()[:6] for row in models[1:5]] == [
        ["printer", "1", "READY", "python", "1", "0"],
        ["scale", "1", "READY", "onnxruntime", "0", "0"],
        ["scale", "2", "READY", "onnxruntime", "1", "0"],
        ["sleeper", "1", "READY", "python", "1", "1"],
    ]
    assert queue == ["0 requests in work, 0 of them in the Flask app"]
    for text in (
        "told to fail",
        "nginx: POST /invocations 500 inference_failed sleeper",
        "serve: tritonserver was killed",
    ):
        assert text in "\n".join(errors)


def entries(server: Server, **wanted: Any) -> list[dict[str, Any]]:
    """The lines of the log that have these values; every line is a JSON object. The last one may be in the making."""
    found = [json.loads(line) for line in server.output().split("\n")[:-1]]
    assert all({"time", "process", "level"} <= each.keys() for each in found)
    return [each for each in found if wanted.items() <= each.items()]


def test_as_json_every_line_is_an_object_whoever_wrote_it(server: Server) -> None:
    assert {each["process"] for each in entries(server)} == {"serve", "tritonserver", "gunicorn", "nginx"}
    assert {each["status"] for each in entries(server, process="nginx", path="/invocations")} == {200, 404, 500}
    [death] = entries(server, process="serve", level="error")
    assert death["message"].startswith("tritonserver was killed by SIGKILL (")
    assert "ready after" in entries(server, process="serve", level="info")[0]["message"]


def test_as_json_a_model_s_traceback_is_one_object(server: Server) -> None:
    [printed] = [each for each in entries(server, process="tritonserver") if "ValueError: printed" in each["message"]]
    assert printed["message"].startswith("Traceback (most recent call last):\n  File")
    assert len(entries(server, message='{"is": json, "not": this}')) == 1
    [failed] = [each for each in entries(server, process="tritonserver", level="error") if "told to" in each["message"]]
    assert failed["logger"].startswith("pb_stub.cc:") and "\n" in failed["message"]


def test_as_json_a_start_that_fails_says_why_in_objects(tmp_path: Path) -> None:
    server = Server(tmp_path, tmp_path, SERVE_LOG_FORMAT="json", SERVE_WORKERS="-1", SERVE_DEVICE="tpu")
    assert server.wait_ended() == 2
    lines = entries(server, process="serve", level="critical")
    assert [line["message"].partition("=")[0] for line in lines] == ["SERVE_DEVICE", "SERVE_WORKERS"]
