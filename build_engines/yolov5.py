"""YOLOv5 as model folders: one that finds digits on pages, one full-size stand-in.

`yolov5` is the network of size n with ten classes, trained here on pages strewn with handwritten digits and
small enough to be committed. `yolov5s` has the architecture and the size of the original with random weights:
it answers nonsense at the true speed, for load tests. Needs torch and onnx.
"""

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from build_engines.held_out_pages import held_out_pages
from build_engines.yolov5_network import SIDE, Decoded, YoloV5
from build_engines.yolov5_training import letterboxed, train

OPSET = 17
EXAMPLE_SEED = 311
ROWS = 25_200  # 3 anchors at each cell of 80×80, 40×40 and 20×20
CALIBRATION = 12  # pages that the stand-in's statistics come from
PASSING = 30  # boxes of the stand-in whose objectness is above 0.3, per page and on average


@dataclass(frozen=True)
class Recipe:
    """One detector: the network, and a label for each of its classes (or none)."""

    network: Callable[[], YoloV5]
    classes: int
    labels: tuple[str, ...] = ()


def build(name: str, folder: Path) -> None:
    """Fills the model folder: config.pbtxt, configs/cpu.pbtxt, labels, example and 1/model.onnx."""
    recipe = RECIPES[name]
    write_folder(folder, recipe, recipe.network())


def write_folder(folder: Path, recipe: Recipe, network: YoloV5) -> None:
    """The model folder of a network whose weights are there already."""
    (folder / "configs").mkdir(parents=True, exist_ok=True)
    (folder / "1").mkdir(exist_ok=True)
    (folder / "config.pbtxt").write_text(config(recipe.classes, "KIND_GPU", 1))
    (folder / "configs" / "cpu.pbtxt").write_text(config(recipe.classes, "KIND_CPU", 2))
    if recipe.labels:
        (folder / "labels.txt").write_text("".join(f"{label}\n" for label in recipe.labels))
    page = next(held_out_pages(EXAMPLE_SEED))
    page.image.save(folder / "example.jpg", quality=85)
    partial = folder / "1" / "model.onnx.partial"
    export(network, partial)
    partial.replace(folder / "1" / "model.onnx")


def config(classes: int, kind: str, instances: int) -> str:
    """config.pbtxt for Triton's ONNX Runtime backend."""
    return f"""\
# Written by build_engines/yolov5.py.
platform: "onnxruntime_onnx"
max_batch_size: 8
input [
  {{ name: "images" data_type: TYPE_FP32 dims: [ 3, {SIDE}, {SIDE} ] }}
]
output [
  {{ name: "output0" data_type: TYPE_FP32 dims: [ {ROWS}, {5 + classes} ] }}
]
instance_group [ {{ kind: {kind} count: {instances} }} ]
dynamic_batching {{ }}
parameters {{ key: "client" value: {{ string_value: "yolov5" }} }}
"""


def export(network: YoloV5, path: Path) -> None:
    """ONNX with a free batch size: images [N,3,640,640] -> output0 [N,25200,5+classes]."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)  # sizes and anchors are meant as constants
        warnings.simplefilter("ignore", DeprecationWarning)  # the older exporter: same graph, 0.5 MB smaller
        _trace(network, path)
    _name_rows(path, 5 + network.classes)


def _trace(network: YoloV5, path: Path) -> None:
    torch.onnx.export(
        Decoded(network.fuse()).eval(),
        (torch.zeros(2, 3, SIDE, SIDE),),
        str(path),
        input_names=["images"],
        output_names=["output0"],
        dynamic_axes={"images": {0: "batch"}, "output0": {0: "batch"}},
        opset_version=OPSET,
        dynamo=False,
    )


def _name_rows(path: Path, columns: int) -> None:
    """Writes the output's shape into the file, where the exporter leaves it open."""
    model = onnx.load(path)
    dimensions = model.graph.output[0].type.tensor_type.shape.dim
    dimensions[1].dim_value, dimensions[2].dim_value = ROWS, columns
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def stand_in(size: str, classes: int) -> YoloV5:
    """Random weights of a fixed seed, set so that on a page some boxes pass and are worth suppressing."""
    torch.manual_seed(0)
    network = YoloV5(size, classes)
    pages = [letterboxed(page)[0].transpose(2, 0, 1) for page in islice(held_out_pages(0), CALIBRATION)]
    images = torch.from_numpy(np.stack(pages)).float() / 255
    with torch.no_grad():
        _measure_norms(network, images)
        logits = torch.cat([rows.flatten(1, 3) for rows in network(images)], 1)
        threshold = logits[..., 4].flatten().topk(PASSING * len(pages)).values[-1]
        for head in network.heads:
            bias = head.bias.view(3, -1)
            bias[:, 4] += math.log(0.3 / 0.7) - threshold
            bias[:, 5:] = math.log(0.8 / 0.2)
    return network


def _measure_norms(network: YoloV5, images: torch.Tensor) -> None:
    """Sets every batch norm's statistics from these images, or random layers fade to a constant."""
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.momentum = None  # plain average
    network.train()(images)
    network.eval()


RECIPES = {
    "yolov5": Recipe(train, 10, tuple("0123456789")),
    "yolov5s": Recipe(lambda: stand_in("s", 80), 80),
}
