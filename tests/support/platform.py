"""SageMaker's part in multi-model mode: archives of tiny models, loads at the first call, evictions."""

import os
import random
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import requests

from serving.host.machine import memory_limit
from serving.host.processes import tree, used_by
from tests.support.harness import ROOT, free_port

PER_MODEL = 19 * 2**20  # measured memory of one of these models
TRITON = 60 * 2**20  # memory of tritonserver, and the reserve of a load
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


@dataclass(frozen=True)
class Usage:
    """What a container uses: bytes of memory, processes, threads, open files, and files for archives and in shared
    memory."""

    memory: int
    processes: int
    threads: int
    descriptors: int
    files: int

    def __str__(self) -> str:
        return (
            f"{self.memory / 2**20:.0f} MB, {self.processes} processes, {self.threads} threads, "
            f"{self.descriptors} open files, {self.files} files"
        )


def usage(pid: int, run_dir: Path) -> Usage:
    """The usage of a `serve` and its run folder."""
    processes = list(tree(pid))
    return Usage(
        memory=used_by(pid),
        processes=len(processes),
        threads=sum(_count(each, "task") for each in processes),
        descriptors=sum(_count(each, "fd") for each in processes),
        files=sum(1 for _ in (run_dir / "models").rglob("*")) + len(set().union(*map(_shared, processes))),
    )


def _shared(pid: int) -> set[str]:
    """The shared-memory files that a process maps."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:
        return set()
    return {line.split(maxsplit=5)[5] for line in lines if " /dev/shm/" in line}


def _count(pid: int, kind: str) -> int:
    try:
        return sum(1 for _ in Path(f"/proc/{pid}/{kind}").iterdir())
    except OSError:
        return 0


def cycle(platform: Platform, numbers: Sequence[int], at_once: int) -> list[tuple[float, float]]:
    """Loads, calls and unloads each model; (seconds of each load, seconds of each unload)."""
    with ThreadPoolExecutor(at_once) as threads:
        return list(threads.map(lambda number: _one(platform, number), numbers))


def _one(platform: Platform, number: int) -> tuple[float, float]:
    begun = time.monotonic()
    if platform.load(number) != 200:
        raise RuntimeError(f"model {number} is not loaded")
    loaded = time.monotonic()
    if platform.invoke(number, 2.0).json()["outputs"][0]["data"] != [2.0 * number]:
        raise RuntimeError(f"model {number} gives a wrong answer")
    called = time.monotonic()
    platform.unload(number)
    return loaded - begun, time.monotonic() - called


@dataclass
class Outcome:
    """The seconds of each call, and the wrong answers."""

    seconds: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


def share_for(models: int) -> float:
    """The SERVE_MODEL_MEMORY_SHARE with room for about that many models."""
    return (TRITON + models * PER_MODEL) / memory_limit()


def numbers(archives: int, requests: int, exponent: float, seed: int = 1) -> list[int]:
    """The model of each request: the k-th most popular has a probability proportional to k ** -exponent."""
    generator = random.Random(seed)
    ranks = list(range(1, archives + 1))
    generator.shuffle(ranks)
    weights = [rank**-exponent for rank in ranks]
    return generator.choices(range(archives), weights, k=requests)


def drive(platform: Platform, called: list[int], callers: int) -> Outcome:
    """Calls the models in this order, by `callers` concurrent callers."""
    outcome = Outcome()
    lock = threading.Lock()
    with ThreadPoolExecutor(callers) as threads:
        list(threads.map(lambda number: _note(outcome, lock, platform, number), called))
    return outcome


def _note(outcome: Outcome, lock: threading.Lock, platform: Platform, number: int) -> None:
    begun = time.monotonic()
    reply = platform.call(number, 3.0)
    right = reply.status_code == 200 and reply.json()["outputs"][0]["data"] == [3.0 * number]
    with lock:
        outcome.seconds.append(time.monotonic() - begun)
        if not right:
            outcome.wrong.append(f"model {number}: {reply.status_code} {reply.text}")


@contextmanager
def container(folder: Path, **variables: str) -> Iterator[tuple[str, int]]:
    """Runs a `serve` in multi-model mode with its archives in folder/models: (URL, process id)."""
    port = free_port()
    environ = (
        os.environ
        | {
            "PORT": str(port),
            "SERVE_HOST": "127.0.0.1",
            "SERVE_RUN_DIR": str(folder / "run"),
            "SAGEMAKER_MULTI_MODEL": "true",
            "SERVE_MODEL_REPOSITORY": str(folder / "models"),
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
