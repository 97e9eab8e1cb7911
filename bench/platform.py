"""What the multi-model benches share: archives of tiny models, a container, and SageMaker's part."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests

from serving.host.ports import PortPicker

ROOT = Path(__file__).resolve().parents[1]
PORTS = PortPicker(range(12000, 14000))  # below those that the kernel gives to callers
MODEL = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """y = FACTOR * x"""

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.multiply(request)]) for request in requests]

    def multiply(self, request):
        return pb_utils.Tensor("y", FACTOR * pb_utils.get_input_tensor_by_name(request, "x").as_numpy())
'''
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
"""


def make_archive(root: Path, number: int) -> str:
    """The URL of an archive whose model multiplies by `number`."""
    model = root / f"id{number}" / "model" / "multiply"
    (model / "1").mkdir(parents=True)
    (model / "1/model.py").write_text(MODEL.replace("FACTOR", str(float(number))))
    (model / "config.pbtxt").write_text(CONFIG)
    return str(model.parent)


class Platform:
    """Acts as SageMaker: loads a model at its first call, evicts the least recently used one on a 507."""

    def __init__(self, url: str, root: Path) -> None:
        self.url, self.root = url, root
        self.loads = self.unloads = self.refused = 0
        self._used: OrderedDict[int, None] = OrderedDict()  # loaded models, the least recently used first
        self._lock = threading.Lock()
        self._changing: dict[int, threading.Lock] = {}

    def call(self, number: int, x: float) -> requests.Response:
        """A call's reply; loads the model first if need be."""
        while True:
            reply = self.invoke(number, x)
            if reply.status_code != 404:
                self._note(number)
                return reply
            self._load_with_room(number)

    def invoke(self, number: int, x: float) -> requests.Response:
        tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}
        headers = {"X-Amzn-SageMaker-Target-Model": f"multiply-{number}.tar.gz"}
        url = f"{self.url}/models/m{number}/invoke"
        return requests.post(url, json={"inputs": [tensor]}, headers=headers, timeout=400)

    def load(self, number: int) -> int:
        """Returns the status."""
        body = {"model_name": f"m{number}", "url": str(self.root / f"id{number}" / "model")}
        headers = {"X-Amzn-SageMaker-Target-Model": f"multiply-{number}.tar.gz"}
        reply = requests.post(f"{self.url}/models", json=body, headers=headers, timeout=400)
        if reply.status_code not in (200, 409, 507):
            raise RuntimeError(reply.text)
        return reply.status_code

    def unload(self, number: int) -> int:
        """Returns the status."""
        headers = {"X-Amzn-SageMaker-Target-Model": f"multiply-{number}.tar.gz"}
        reply = requests.delete(f"{self.url}/models/m{number}", headers=headers, timeout=400)
        if reply.status_code not in (200, 404):
            raise RuntimeError(reply.text)
        return reply.status_code

    def loaded(self) -> list[str]:
        """The names of all models that are ready, page after page."""
        names: list[str] = []
        token = ""
        while True:
            page = requests.get(f"{self.url}/models", params={"next_page_token": token}, timeout=60).json()
            names += [model["modelName"] for model in page["models"]]
            token = page.get("nextPageToken", "")
            if not token:
                return names

    def _note(self, number: int) -> None:
        with self._lock:
            self._used[number] = None
            self._used.move_to_end(number)

    def _load_with_room(self, number: int) -> None:
        with self._lock:
            changing = self._changing.setdefault(number, threading.Lock())
        with changing:
            while (status := self.load(number)) == 507:
                with self._lock:
                    self.refused += 1
                self._evict()
            with self._lock:
                self.loads += status == 200
            self._note(number)

    def _evict(self) -> None:
        with self._lock:
            victim = next(iter(self._used), None)
            if victim is not None:
                del self._used[victim]
        if victim is None:
            time.sleep(0.2)  # all models are being loaded or unloaded
        else:
            done = self.unload(victim) == 200
            with self._lock:
                self.unloads += done


def end_on_sigterm() -> None:
    """Turns SIGTERM into SystemExit, so that a stopped bench stops its container too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))


@contextmanager
def container(folder: Path, **variables: str) -> Iterator[tuple[str, int]]:
    """Runs a `serve` in multi-model mode with its archives in folder/models: (URL, process id)."""
    [port] = PORTS.pick(1)
    environ = (
        os.environ
        | {
            "PORT": str(port),
            "SERVE_HOST": "127.0.0.1",
            "SERVE_RUN_DIR": str(folder / "run"),
            "SAGEMAKER_MULTI_MODEL": "true",
            "SERVE_MODELS_ROOT": str(folder / "models"),
            "SERVE_LOG_LEVEL": "warning",
        }
        | variables
    )
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen([sys.executable, ROOT / "serve"], env=environ, stdout=log, stderr=log)
    try:
        yield _ready(f"http://127.0.0.1:{port}", process), process.pid
    finally:
        process.terminate()
        process.wait()


def _ready(url: str, process: subprocess.Popen[bytes]) -> str:
    while process.poll() is None:
        try:
            if requests.get(f"{url}/ping", timeout=3).status_code == 200:
                return url
        except requests.RequestException:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"serve has ended with {process.returncode}")
