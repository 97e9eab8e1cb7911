"""`doctor`: what this machine can build and run, and why not."""

import argparse
import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from build_engines.recipes import RECIPES
from build_engines.request import REPOSITORY
from build_engines.weights.downloads import cache_folder
from serving.host import machine, tritonserver
from serving.repository.fingerprint import find_trtexec

DISK, SHM = 2 << 30, 256 << 20  # bytes: of a large model's build; of batches of 8 images (PyPI's Triton)
PACKAGES = {
    "onnx": "every build",
    "onnxruntime": "CPU engines, verify, inspect",
    "safetensors": "BERT",
    "torch": "ResNet-50, YOLOv5 and TorchScript (make dev)",
    "transformers": "ResNet-50 and ResNet checkpoints",
    "sklearn": "INT8 and verify of image models without images of your own (make dev)",
    "huggingface_hub": "HUB-ID",
}


@dataclass(frozen=True)
class Fact:
    """One line of the report: whether a thing is there, its name, and its version or what to do."""

    there: bool
    name: str
    detail: str

    def __str__(self) -> str:
        return f"{'yes' if self.there else 'no ':<4}{self.name:<21}{self.detail}"


def run(_: argparse.Namespace) -> int:
    """Prints the facts."""
    print(f"Python {sys.version.split()[0]}, {machine.cpu_quota():g} processors, {machine.memory_limit() / 1e9:.0f} GB")
    for fact in facts():
        print(fact)
    return 0


def facts() -> Iterator[Fact]:
    """Everything that is checked; nothing asks the network."""
    yield from (_package(name, purpose) for name, purpose in PACKAGES.items())
    yield from (_tensorrt(), _gpu(), _triton())
    yield from (_backend(platform) for platform in ("onnxruntime", "openvino", "pytorch", "python", "dali"))
    yield _disk("model repository", REPOSITORY)
    yield _disk("download cache", cache_folder())
    yield _shared_memory()
    yield from (_recipe(name) for name in RECIPES)


def _package(name: str, purpose: str) -> Fact:
    if importlib.util.find_spec(name) is None:
        return Fact(False, name, f"not installed; needed for: {purpose}")
    distribution = {"sklearn": "scikit-learn"}.get(name, name)
    try:
        version = metadata.version(distribution)
    except metadata.PackageNotFoundError:
        version = "of unknown version"
    return Fact(True, name, version)


def _tensorrt() -> Fact:
    path = find_trtexec(os.environ)
    return Fact(
        bool(path),
        "trtexec",
        path
        or "not found; --for tensorrt needs it: run in NVIDIA's TensorRT image "
        "(nvcr.io/nvidia/tensorrt:YY.MM-py3), of the same YY.MM as the Triton that serves",
    )


def _gpu() -> Fact:
    if not machine.has_gpu():
        return Fact(False, "GPU", "no NVIDIA device; engines for a CPU only")
    query = ["nvidia-smi", "--query-gpu=name,compute_cap,driver_version,memory.total", "--format=csv,noheader"]
    try:
        found = subprocess.run(query, capture_output=True, text=True, timeout=20, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError) as err:
        return Fact(False, "GPU", f"there is a device, and nvidia-smi fails: {err}")
    return Fact(True, "GPU", "; ".join(found.splitlines()))


def _triton() -> Fact:
    try:
        return Fact(True, "tritonserver", str(tritonserver.binary()))
    except FileNotFoundError as err:
        return Fact(False, "tritonserver", str(err))


def _backend(name: str) -> Fact:
    folder = tritonserver.backend_directory() / name
    there = folder.is_dir()
    return Fact(
        there, f"backend {name}", str(folder) if there else f"not in {folder.parent}: python -m backends.install"
    )


def _disk(name: str, folder: Path) -> Fact:
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(existing).free
    writable = os.access(existing, os.W_OK)
    detail = f"{folder}, {free / 1e9:.0f} GB free" + ("" if writable else ", not writable: name another with --out")
    return Fact(writable and free > DISK, name, detail)


def _shared_memory() -> Fact:
    size = machine.shm_size()
    advice = "" if size >= SHM else "; batches of images need more: docker run --shm-size=1g"
    return Fact(size >= SHM, "shared memory", f"/dev/shm of {size / 1e6:.0f} MB{advice}")


def _recipe(name: str) -> Fact:
    """Whether a recipe's packages are there, for each kind of weights."""
    recipe = RECIPES[name]
    lacking = {
        word: [package for package in recipe.needs.get(word, ()) if importlib.util.find_spec(package) is None]
        for word in recipe.weights
    }
    possible = [word for word, missing in lacking.items() if not missing]
    reasons = [f"{word} needs {', '.join(missing)}" for word, missing in lacking.items() if missing]
    detail = "; ".join([f"weights {', '.join(possible)}"] * bool(possible) + reasons)
    return Fact(bool(possible), f"build {name}", detail)
