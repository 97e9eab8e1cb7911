"""The model repository that every peer serves: `.cache/bench/repository`, created once.

resnet50 (ResNet-50 with random weights: nonsense at the true speed), yolov5 (YOLOv5n at 640) and bert (MiniLM) with
their clients, INT8 of the first two for the engine in their names, and `mean`: FP32 x [n] -> y [1], for requests where
the model costs nothing.
Each folder gets a `subject.json`, with what bench.subject needs to know, because it cannot use Triton's protobuf.
"""

import json
import shutil
import subprocess
import sys
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path

import onnx
from onnx import TensorProto, helper

from clients.base import Model
from serving.inference.registry import describe_model
from serving.repository.model_config import read_config

ROOT = Path(__file__).resolve().parents[1]
CACHE = ROOT / ".cache" / "bench"
BUNDLED = ("resnet", "yolov5", "bert")
RECIPES = {
    "resnet50": ("resnet50", "--weights", "random"),
    "resnet50_int8": ("resnet50", "--weights", "random", "--precision", "int8"),
    "resnet50_openvino_int8": ("resnet50", "--weights", "random", "--precision", "int8", "--for", "openvino"),
    "yolov5_openvino_int8": ("yolov5", "--precision", "int8", "--for", "openvino"),
}
MEAN_CONFIG = """\
platform: "onnxruntime_onnx"
max_batch_size: 64
input { name: "x" data_type: TYPE_FP32 dims: [ -1 ] }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] }
instance_group { kind: KIND_CPU count: 2 }
"""


class Unprepared(Exception):
    """The bench cannot start; the message says what to do."""


def prepare(names: Iterable[str], folder: Path) -> Path:
    """The repository `folder` with those models, built by this checkout. Unprepared when a recipe fails."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        if name == "mean":
            _make_mean(folder / name)
        elif name in BUNDLED:
            _copy(ROOT / "model_repository" / name, folder / name)
        else:
            _build(name, folder)
        _describe(folder / name)
    return folder


def _make_mean(folder: Path) -> None:
    """The mean of a row: a reply of one number for a request of any size."""
    graph = helper.make_graph(
        [helper.make_node("ReduceMean", ["x"], ["y"], axes=[1], keepdims=1)],
        "mean",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", "n"])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["batch", 1])],
    )
    (folder / "1").mkdir(parents=True, exist_ok=True)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(model, folder / "1" / "model.onnx")
    (folder / "config.pbtxt").write_text(MEAN_CONFIG)


def _copy(source: Path, target: Path) -> None:
    if not (source / "1" / "model.onnx").is_file():
        raise Unprepared(f"{source} has no weights: run `make models` first")
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(source, target)


def _build(name: str, folder: Path) -> None:
    """Builds the model unless it is up to date."""
    command = [sys.executable, "-m", "build_engines", "build", *RECIPES[name], "--name", name, "--out", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it says nothing"])[-1]
        raise Unprepared(f"`{' '.join(command[1:])}` fails ({last}); `make dev` installs what it needs")


def _describe(folder: Path) -> None:
    model: Model = describe_model(folder.name, folder, read_config(folder, "cpu"))
    facts = asdict(model) | {"path": str(folder)}
    (folder / "subject.json").write_text(json.dumps(facts, indent=1))
