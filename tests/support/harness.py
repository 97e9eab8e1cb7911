"""Starts the whole container's software on free loopback ports, and makes the models for tests."""

import base64
import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import onnx.parser
import psutil
import pytest
import requests
from google.protobuf.text_format import MessageToString
from PIL import Image

from serving.repository.model_config import read_config
from simulate.ports import PortPicker
from tests.support.started import ends_with

ROOT = Path(__file__).resolve().parents[2]
# two values of each datatype, for the model that make_identity writes
IDENTITY_VALUES: dict[str, list[Any]] = {
    "FP32": [1.5, -2.25],
    "FP64": [1e300, -0.1],
    "FP16": [0.5, -65504.0],
    "INT8": [-128, 127],
    "INT16": [-32768, 32767],
    "INT32": [-(2**31), 2**31 - 1],
    "INT64": [-(2**62), 2**62],
    "UINT8": [0, 255],
    "UINT16": [0, 65535],
    "UINT32": [0, 2**32 - 1],
    "UINT64": [0, 2**63],
    "BOOL": [True, False],
    "BYTES": ["digit", "Ziffer ✓"],
}
# ONNX's names for the datatypes that have other names in ONNX's text format
_ONNX = {"FP32": "float", "FP64": "double", "FP16": "float16", "BYTES": "string"}
BUNDLED = ("bert", "efficientnet", "resnet", "yolov4_tiny", "yolov5")
# If the processor has BF16, `auto` chooses OpenVINO, whose answers differ from ONNX Runtime's by a
# few thousandths.
FP32 = {"SERVE_CPU_ENGINE": "onnxruntime"}
LARGE = 2**20  # larger files, in bytes, are linked instead of copied
PATIENCE = 120.0  # seconds; even on a slow machine, what has not happened by then never will
LONGEST_PAUSE = 0.1  # seconds
_PORTS = PortPicker(range(10000, 12000))


def free_port() -> int:
    """Return a port that no other test gets, even in another run. It is below the kernel's own
    range."""
    return _PORTS.pick()


def encoded(image: Image.Image, format: str = "PNG", **options: Any) -> bytes:
    """Return the image as the content of a file. `options` are Pillow's."""
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


def npy(array: Any, **options: Any) -> bytes:
    """Return the array as the content of a .npy file. `options` are those of np.save."""
    buffer = io.BytesIO()
    np.save(buffer, array, **options)
    return buffer.getvalue()


def tensor(data: list[Any], shape: list[int] | None = None, datatype: str = "FP32") -> Any:
    """Return the input `x` of a KServe request, by default one row of FP32."""
    return {"name": "x", "shape": shape or [1, len(data)], "datatype": datatype, "data": data}


def expect_error(reply: Any, status: int, code: str, *names: str) -> None:
    """Assert that the reply is an error in this project's format, with each of the names in its
    text."""
    assert (reply.status_code, reply.headers["Content-Type"]) == (status, "application/json"), (
        reply.text
    )
    body = reply.json()
    assert set(body) == {"error", "code", "request_id"}
    assert body["code"] == code
    assert body["request_id"] == reply.headers["X-Request-Id"] != ""
    assert "Traceback" not in body["error"]
    missing = [name for name in names if name not in body["error"]]
    assert not missing, body["error"]


def b64(data: bytes) -> dict[str, str]:
    """Return an instance that contains the bytes in base64."""
    return {"b64": base64.b64encode(data).decode()}


def png_that_claims(width: int, height: int) -> bytes:
    """Return a PNG of one pixel whose header, with a valid checksum, claims another size."""
    data = bytearray(encoded(Image.new("L", (1, 1))))
    # after the signature (8 bytes) and the length of IHDR (4): its name (4), its 13 bytes of data,
    # which begin with width and height, and the checksum of name and data (4)
    data[16:24] = width.to_bytes(4, "big") + height.to_bytes(4, "big")
    data[29:33] = zlib.crc32(data[12:29]).to_bytes(4, "big")
    return bytes(data)


def wait_until(
    condition: Callable[[], Any],
    what: str | Callable[[], str],
    seconds: float = PATIENCE,
    pause: float = 0.02,
) -> Any:
    """Wait until the condition is true, and return its value. Fail with `what` if that takes too
    long. `pause` is the time between the first two checks. It grows up to LONGEST_PAUSE, because
    most checks cost the server work."""
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            text = what if isinstance(what, str) else what()
            raise AssertionError(f"not within {seconds} s: {text}")
        time.sleep(pause)
        pause = max(pause, min(1.2 * pause, LONGEST_PAUSE))
    return value


class HttpCaller:
    """Sends requests to `url`."""

    url: str

    def get(self, path: str, **request: Any) -> requests.Response:
        return self.ask("GET", path, **request)

    def post(self, path: str = "/invocations", **request: Any) -> requests.Response:
        return self.ask("POST", path, **request)

    def ask(self, method: str, path: str, **request: Any) -> requests.Response:
        return requests.request(method, self.url + path, timeout=PATIENCE, **request)


class Server(HttpCaller):
    """Runs one `serve` with its processes. `log` is the file that contains its output. `prefix` is
    a command that runs first and then becomes `serve` (exec)."""

    prefix: tuple[str, ...] = ()

    def __init__(self, folder: Path, repository: Path, **variables: str) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.log = folder / "serve.log"
        self.run_dir = folder / "run"
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("SERVE_", "SAGEMAKER_"))
        }
        ours = {
            "PORT": str(self.port),
            "SERVE_HOST": "127.0.0.1",
            "SERVE_MODEL_REPOSITORY": str(repository),
            "SERVE_RUN_DIR": str(self.run_dir),
        }
        ends_with(self.kill_all)
        with self.log.open("wb") as output:
            self.process = subprocess.Popen(
                [*self.prefix, sys.executable, ROOT / "serve"],
                stdout=output,
                stderr=subprocess.STDOUT,
                env=inherited | ours | variables,
            )

    def wait_ready(self) -> "Server":
        """Wait until /ping returns 200. If it does not, stop the server."""

        def ready() -> bool:
            if self.process.poll() is not None:
                raise AssertionError(
                    f"serve has ended with {self.process.returncode}:\n{self.output()[-3000:]}"
                )
            return self.ping() == 200

        try:
            wait_until(ready, lambda: f"/ping is 200; the log ends with\n{self.output()[-3000:]}")
        except BaseException:
            self.kill_all()
            raise
        return self

    def ping(self) -> int:
        """Return the status of /ping, or 0 if there is no answer. `requests` would be too slow for
        tests that poll."""
        connection = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("GET", "/ping")
            return connection.getresponse().status
        except (OSError, HTTPException):
            return 0
        finally:
            connection.close()

    def output(self) -> str:
        """Return the complete lines of the server's output."""
        text = self.log.read_text(encoding="utf-8", errors="replace")
        return text[: text.rfind("\n") + 1]

    def entries(self, process: str = "", **wanted: Any) -> list[dict[str, Any]]:
        """Return the log entries of one process, or of all processes, that have these values."""
        logged = [json.loads(line) for line in self.output().splitlines() if line.startswith('{"')]
        if process:
            wanted["process"] = process
        return [entry for entry in logged if wanted.items() <= entry.items()]

    def says(self, *words: str, process: str = "serve") -> bool:
        """Return whether the log contains a message of the process with all of the words."""
        messages = [entry.get("message", "") for entry in self.entries(process)]
        return any(all(word in message for word in words) for message in messages)

    def expect_message(self, *words: str, process: str = "serve") -> None:
        """Wait until the log contains such a message, which may be written after the reply to which
        it belongs."""
        wait_until(lambda: self.says(*words, process=process), f"the log says {words}")

    def process_of(self, name: str) -> dict[str, Any]:
        """Return a process in the supervisor's status: its pid (None if it is not running) and its
        number of starts."""
        process: dict[str, Any] = self.status()["processes"][name]
        return process

    def status(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads((self.run_dir / "status.json").read_text())
        return document

    def pid(self, name: str) -> int:
        pid: int = self.process_of(name)["pid"]
        return pid

    def workers(self, file: str = "gunicorn.sock") -> list[int]:
        """Return the pids of gunicorn's workers that accept connections only on this socket."""
        pids = []
        for child in psutil.Process(self.pid("gunicorn")).children():
            paths = {str(sock.laddr) for sock in child.net_connections("unix") if sock.laddr}
            if paths == {str(self.run_dir / file)}:
                pids.append(child.pid)
        return pids

    def replace(self, name: str, number: int = signal.SIGKILL) -> int:
        """Kill a process, and wait until the supervisor has started another one. Return the pid of
        the killed process."""
        killed = self.pid(name)
        self.kill(killed, number)
        self.wait_replaced(name, killed)
        return killed

    def kill(self, pid: int, number: int = signal.SIGKILL) -> None:
        os.kill(pid, number)

    def wait_replaced(self, name: str, killed: int) -> None:
        wait_until(lambda: self.pid(name) not in (None, killed), f"another {name}")

    @contextlib.contextmanager
    def unattended(self) -> Iterator[None]:
        """Pause the supervisor in this context, so that it restarts nothing."""
        self.process.send_signal(signal.SIGSTOP)
        try:
            yield
        finally:
            self.process.send_signal(signal.SIGCONT)

    def in_flight(self) -> int:
        """Return the number of requests in flight, according to the metrics."""
        (count,) = re.findall(r"^serve_in_flight (\S+)$", self.scrape().text, re.MULTILINE)
        return int(float(count))

    def scrape(self) -> httpx.Response:
        """Return the reply of /metrics directly from gunicorn, because nginx caches it for a
        second."""
        with self.behind_nginx("gunicorn.sock") as front:
            return front.get("/metrics")

    def triton(self) -> httpx.Client:
        """Return a client of Triton's own HTTP endpoint."""
        return self.behind_nginx("triton/http.sock")

    def behind_nginx(self, file: str) -> httpx.Client:
        """Return a client of a socket in the run folder. It does not load certificates, which would
        take 40 ms."""
        transport = httpx.HTTPTransport(uds=str(self.run_dir / file), verify=False)
        return httpx.Client(transport=transport, base_url="http://server", timeout=PATIENCE)

    def processes(self) -> list[int]:
        """Return all processes of this server. They have its run folder in their environment."""
        marker = f"SERVE_RUN_DIR={self.run_dir}".encode()
        return [
            int(entry.name) for entry in Path("/proc").glob("[0-9]*") if has_variable(entry, marker)
        ]

    def wait_gone(self) -> None:
        """Wait until none of the server's processes is left. A killed process may take a moment to
        end."""
        wait_until(lambda: not self.processes(), lambda: f"{self.processes()} are gone")

    def wait_ended(self) -> int:
        return self.process.wait(timeout=PATIENCE)

    def stop(self, number: int = signal.SIGTERM) -> int:
        """Send the signal, and return the exit code. Kill all processes if the server does not
        stop."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            return self.wait_ended()
        except BaseException:
            self.kill_all()
            raise

    def stop_later(self) -> None:
        """Send SIGTERM, but do not wait: the next tests run while the server stops. Expect that the
        previous such server has stopped."""
        expect_stopped()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        _stopping.append(self)

    def kill_all(self) -> None:
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if self.process.pid in pids:
                self.process.wait()
            time.sleep(0.02)


_stopping: list[Server] = []


def expect_stopped() -> None:
    """Wait until the servers that `stop_later` stopped have ended. Expect the exit code 0, and that
    none of their processes is left."""
    while _stopping:
        server = _stopping.pop()
        assert server.wait_ended() == 0, server.output()[-3000:]
        server.wait_gone()


def module_server(*makers: Callable[[Path], object], **variables: str) -> Any:
    """Return a fixture that runs one server for the tests of a module. The server serves the models
    that `makers` write into its folder `models`."""

    @pytest.fixture(scope="module")
    def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
        folder = tmp_path_factory.mktemp("serve")
        (folder / "models").mkdir()
        for make in makers:
            make(folder / "models")
        running = Server(folder, folder / "models", **variables).wait_ready()
        yield running
        running.stop_later()

    return server


def has_variable(entry: Path, marker: bytes) -> bool:
    """Return whether the process has the environment variable. Return False for zombies, which have
    no environment."""
    try:
        return marker in (entry / "environ").read_bytes().split(b"\0")
    except OSError:
        return False


def memory(pid: int, field: str) -> int:
    """Return a field of /proc/PID/status, which is in kB there, in MB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    line = next(line for line in lines if line.startswith(field))
    return int(line.split()[1]) // 1024


def config_for_cpu(model: Path) -> str:
    """Return the complete configuration with which `serve` serves a folder on a machine without a
    GPU."""
    return str(MessageToString(read_config(model, "cpu")))


def link_model(source: Path, repository: Path) -> None:
    """Copy a model folder into another repository. Link its large files instead of copying them."""
    for file in source.rglob("*"):
        if file.is_file():
            target = repository / source.name / file.relative_to(source)
            target.parent.mkdir(parents=True, exist_ok=True)
            is_same_file_system = file.stat().st_dev == repository.stat().st_dev
            if is_same_file_system and file.stat().st_size > LARGE:
                os.link(file, target)
            else:
                shutil.copy2(file, target)


def parsed(text: str) -> onnx.ModelProto:
    """Return a model of opset 17, given its graph in the syntax of ONNX's parser."""
    return onnx.parser.parse_model(f'<ir_version: 8, opset_import: ["": 17]> {text}')


def save_graph(text: str, path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(parsed(text), path)
    return path


def _write_config(folder: Path, text: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(text)


def identity_graph(datatypes: Iterable[str]) -> str:
    """Return a graph that copies `in_NAME` to `out_NAME` for each datatype, [batch, n]."""
    kinds = {name: _ONNX.get(name, name.lower()) for name in datatypes}
    inputs = ", ".join(f"{kind}[batch, n] in_{name}" for name, kind in kinds.items())
    outputs = ", ".join(f"{kind}[batch, n] out_{name}" for name, kind in kinds.items())
    nodes = " ".join(f"out_{name} = Identity (in_{name})" for name in kinds)
    return f"identity ({inputs}) => ({outputs}) {{ {nodes} }}"


def make_identity(repository: Path, datatypes: Iterable[str] = IDENTITY_VALUES) -> None:
    """Make `identity`, which has one input and one output of each datatype, [batch, n]."""
    save_graph(identity_graph(datatypes), repository / "identity/1/model.onnx")
    config = 'platform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
    for name in datatypes:
        kind = f"TYPE_{name.replace('BYTES', 'STRING')}"
        config += f'input {{ name: "in_{name}" data_type: {kind} dims: [-1] }}\n'
        config += f'output {{ name: "out_{name}" data_type: {kind} dims: [-1] }}\n'
    _write_config(repository / "identity", config + ONE_INSTANCE)


ONE_INSTANCE = "instance_group { count: 1 kind: KIND_CPU }\n"


def make_scale(repository: Path, loaded: str = "latest { num_versions: 1 }") -> None:
    """Make `scale`: FP32 x [batch, n] -> y. Version 1 doubles x. Version 2 triples it, and is the
    only one that is loaded by default."""
    for version, factor in (("1", 2.0), ("2", 3.0)):
        graph = f"""scale (float[batch, n] x) => (float[batch, n] y)
            <float k = {{{factor}}}> {{ y = Mul (x, k) }}"""
        save_graph(graph, repository / "scale" / version / "model.onnx")
    _write_config(
        repository / "scale",
        'platform: "onnxruntime_onnx"\nmax_batch_size: 8\n'
        'input { name: "x" data_type: TYPE_FP32 dims: [-1] }\n'
        'output { name: "y" data_type: TYPE_FP32 dims: [-1] }\n'
        f"version_policy {{ {loaded} }}\n{ONE_INSTANCE}",
    )


def make_both_scales(repository: Path) -> None:
    """Make `scale`, with both versions loaded."""
    make_scale(repository, "all { }")


SLEEPER = '''
import time
import numpy as np
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    """Sleep for the seconds that it is sent. Below 0, fail: -n repeats the text n times."""

    def execute(self, requests):
        replies = []
        for request in requests:
            seconds = float(pb_utils.get_input_tensor_by_name(request, "seconds").as_numpy().max())
            if seconds < 0:
                raise ValueError(", ".join(["it was told to fail"] * max(1, int(-seconds))))
            time.sleep(seconds)
            output = pb_utils.Tensor("slept", np.array([seconds], dtype=np.float32))
            replies.append(pb_utils.InferenceResponse([output]))
        return replies
'''

EXITS = '''
import os
import time
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """y = x. Its process exits with status 3 at 13, and hangs at 101."""

    def execute(self, requests):
        inputs = [pb_utils.get_input_tensor_by_name(request, "x") for request in requests]
        return [self.answer(tensor.as_numpy()) for tensor in inputs]

    def answer(self, x):
        if x.max() == 13:
            os._exit(3)
        while x.max() == 101:
            time.sleep(1)
        return pb_utils.InferenceResponse([pb_utils.Tensor("y", x)])
'''

# the code of a client whose instances are numbers; replace INPUT and PREDICTION
NUMBER_CLIENT = """
import numpy as np

from clients.base import ModelClient
from serving.codecs import JSON


class Client(ModelClient):
    codec = JSON
    example = b"1"

    def prepare(self, instances, parameters):
        return {"INPUT": np.array([[number] for number in instances], dtype=np.float32)}

    def postprocess(self, outputs, inputs, instances, parameters):
        return [PREDICTION for n in range(len(instances))]
"""

SLEEPER_CLIENT = '''
"""A model folder's own client: any JSON number is an instance."""

import numpy as np

from clients.base import ModelClient, Parameter
from serving.codecs import JSON


class Client(ModelClient):
    codec = JSON
    example = b"0"
    parameters = (
        Parameter("mistake", "", "what goes wrong in postprocess", choices=("", "raise", "lose")),
    )

    def prepare(self, instances, parameters):
        return {"seconds": np.array([instances], dtype=np.float32)}

    def postprocess(self, outputs, inputs, instances, parameters):
        if parameters["mistake"] == "raise":
            raise KeyError("a secret of the client")
        if parameters["mistake"] == "lose":
            return []
        return [float(row[0]) for row in outputs["slept"]]
'''


def make_sleeper(
    repository: Path, name: str = "sleeper", code: str = SLEEPER, client: str = SLEEPER_CLIENT
) -> None:
    """Make a model for Triton's Python backend, without a batch dimension, with its own
    client.py."""
    config = (
        'input { name: "seconds" data_type: TYPE_FP32 dims: [1] }\n'
        'output { name: "slept" data_type: TYPE_FP32 dims: [1] }\n'
    )
    make_python_model(repository / name, config, code, client)


def make_python_model(folder: Path, config: str, code: str, client: str = "") -> None:
    """Write a model for Triton's Python backend. `config` is the rest of its config.pbtxt."""
    (folder / "1").mkdir(parents=True)
    (folder / "1/model.py").write_text(code)
    (folder / "config.pbtxt").write_text(f'backend: "python"\n{config}{ONE_INSTANCE}')
    if client:
        (folder / "client.py").write_text(client)
