"""Makes archives of tiny models, loads and unloads them as SageMaker does, and measures the
resources that `serve` uses."""

import os
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import requests

from serving.host.machine import memory_limit
from serving.host.processes import memory_used_by
from tests.support.harness import PATIENCE

MODEL = '''
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    """y = FACTOR * x"""

    def execute(self, requests):
        return [pb_utils.InferenceResponse([self.multiply(request)]) for request in requests]

    def multiply(self, request):
        x = pb_utils.get_input_tensor_by_name(request, "x").as_numpy()
        return pb_utils.Tensor("y", FACTOR * x)
'''
CONFIG = """
backend: "python"
max_batch_size: 8
input { name: "x" data_type: TYPE_FP32 dims: [1] }
output { name: "y" data_type: TYPE_FP32 dims: [1] }
instance_group { count: 1 kind: KIND_CPU }
"""
PER_MODEL = 19 * 2**20  # bytes that one of these models uses, as measured
TRITON = 60 * 2**20  # bytes that Triton uses, and that `serve` reserves for a load


def files_of(number: int) -> dict[str, str]:
    """Return the files of a model that multiplies by `number`, as {path: text}."""
    code = MODEL.replace("FACTOR", str(float(number)))
    return {"multiply/config.pbtxt": CONFIG, "multiply/1/model.py": code}


def make_archive(root: Path, number: int) -> None:
    """Write the files of the model `number`, unpacked as the platform provides an archive."""
    for name, text in files_of(number).items():
        path = root / f"id{number}/model" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def share_for(models: int) -> float:
    """Return the SERVE_MODEL_MEMORY_SHARE with room for about `models` models."""
    return (TRITON + models * PER_MODEL) / memory_limit()


class Loader:
    """Loads and unloads archives below `root` in the container at `url`."""

    def __init__(self, url: str, root: Path) -> None:
        self.url = url
        self.root = root

    def invoke(self, number: int, x: float) -> requests.Response:
        tensor = {"name": "x", "shape": [1, 1], "datatype": "FP32", "data": [x]}
        return self._send("POST", f"/models/m{number}/invoke", number, {"inputs": [tensor]})

    def load(self, number: int) -> requests.Response:
        document = {"model_name": f"m{number}", "url": str(self.root / f"id{number}/model")}
        return self._send("POST", "/models", number, document)

    def unload(self, number: int) -> requests.Response:
        return self._send("DELETE", f"/models/m{number}", number)

    def cycle(self, numbers: Sequence[int]) -> None:
        """Load, call and unload each model, three at a time."""
        with ThreadPoolExecutor(3) as threads:
            list(threads.map(self._load_call_unload, numbers))

    def _load_call_unload(self, number: int) -> None:
        loaded = self.load(number)
        assert loaded.status_code == 200, loaded.text
        assert self.invoke(number, 2.0).json()["outputs"][0]["data"] == [2.0 * number]
        unloaded = self.unload(number)
        assert unloaded.status_code == 200, unloaded.text

    def _send(
        self, method: str, path: str, number: int, document: object = None
    ) -> requests.Response:
        headers = {"X-Amzn-SageMaker-Target-Model": f"multiply-{number}.tar.gz"}
        return requests.request(
            method, self.url + path, json=document, headers=headers, timeout=4 * PATIENCE
        )


@dataclass(frozen=True)
class Usage:
    """The resources that a `serve` uses: bytes of memory, processes, threads, open files, the
    number of files for archives and in shared memory, and the bytes of shared memory and of
    unpacked archives."""

    memory: int
    processes: int
    threads: int
    descriptors: int
    files: int
    shared: int
    unpacked: int


def usage(pid: int, run_dir: Path) -> Usage:
    """Return the resources that a `serve` and its run folder use. Processes may end, and files may
    be removed, while this looks at them."""
    first = psutil.Process(pid)
    processes = [first, *first.children(recursive=True)]
    shared: set[Path] = set()
    for process in processes:
        shared.update(_shared_files(process))
    return Usage(
        memory=memory_used_by(pid),
        processes=len(processes),
        threads=_sum(psutil.Process.num_threads, processes),
        descriptors=_sum(psutil.Process.num_fds, processes),
        files=len(_paths_below(run_dir / "models")) + len(shared),
        shared=_sum(_bytes_on_disk, shared),
        unpacked=_sum(_bytes_on_disk, _paths_below(run_dir / "unpacked")),
    )


def _sum(measure: Callable[[Any], int], things: Iterable[Any]) -> int:
    """Return the sum of a measure of things, without those that no longer exist."""
    total = 0
    for thing in things:
        with suppress(psutil.NoSuchProcess, FileNotFoundError):
            total += measure(thing)
    return total


def _bytes_on_disk(file: Path) -> int:
    return file.stat().st_blocks * 512


def _paths_below(folder: Path) -> list[Path]:
    """Return all files and folders. Unlike rglob, os.walk ignores folders that are removed
    meanwhile."""
    paths = []
    for path, folders, files in os.walk(folder):
        paths += [Path(path, name) for name in folders + files]
    return paths


def _shared_files(process: psutil.Process) -> list[Path]:
    """Return the files of shared memory that a process maps."""
    try:
        paths = [region.path for region in process.memory_maps()]
    except psutil.Error:
        return []
    return [Path(path) for path in paths if path.startswith("/dev/shm/")]
