"""YOLOv5 as model folders, in every size of the release, from an official checkpoint or with random weights.

Random weights are for load tests: nonsense at the true speed. What needs torch is imported late.
"""

import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from build_engines.errors import BuildError, UsageError
from build_engines.families.onnx_file import with_tensors
from build_engines.model_folder.labels import write_labels
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import REPOSITORY, Request
from build_engines.weights.downloads import fetch
from clients._image import DEFAULT_LABELS

if TYPE_CHECKING:
    from build_engines.families.yolov5_network import YoloV5, YoloV5u

MAX_BATCH_SIZE = 8
SIDE, STRIDE = 640, 32
BOXES = 1000  # that the network returns; hardly any of the others would be a detection
EXAMPLE = REPOSITORY / "yolov5/example.jpg"
CLASSES = 80  # of COCO


def export(request: Request, path: Path | None, folder: Path) -> ModelSpec:
    """The model folder's files, from random weights, the release's checkpoint or one at `path`."""
    side_of(request)  # UsageError before the long work
    if path and path.is_dir():
        raise BuildError(f"{path} is a folder, and a YOLOv5 is one file, its checkpoint best.pt or an ONNX file of it")
    network, labels = _network(request, path)
    layout = write_network(request, network, folder / "1" / "model.onnx")
    return finish(request, folder, labels, layout)


def _network(request: Request, path: Path | None) -> "tuple[YoloV5 | YoloV5u, tuple[str, ...]]":
    """The network and its labels; no labels if they are unknown."""
    from build_engines.families import yolov5_checkpoint, yolov5_random

    if path is None and request.source == "random":
        size, u = size_of(request.model)
        return yolov5_random.network(size, CLASSES, anchor_free=bool(u)), ()
    return yolov5_checkpoint.read(path or fetch(f"{request.model}.pt"))


def write_network(request: Request, network: "YoloV5 | YoloV5u", model: Path) -> str:
    """Writes the ONNX file and returns the client's `layout`."""
    from build_engines.families.yolov5_network import YoloV5
    from build_engines.families.yolov5_random import write_onnx

    boxes = BOXES if request.boxes < 0 else request.boxes
    write_onnx(network, side_of(request), model, boxes, batching=request.max_batch_size != 0)
    return "yolov5" if isinstance(network, YoloV5) else "yolov5u"


def finish(request: Request, folder: Path, labels: tuple[str, ...], layout: str) -> ModelSpec:
    """Writes the labels and the example; what Triton must know."""
    shutil.copyfile(EXAMPLE, folder / "example.jpg")
    write_labels(folder / DEFAULT_LABELS, labels, request.labels)
    model_spec = ModelSpec(
        client="yolov5", max_batch_size=MAX_BATCH_SIZE, settings={"layout": layout}, lengths=(STRIDE, SIDE, 2 * SIDE)
    )
    return with_tensors(request, folder, model_spec)


def size_of(name: str) -> tuple[str, str]:
    """yolov5su -> ("s", "u"); UsageError for a name without a size."""
    found = re.fullmatch(r"yolov5([nsmlx])(u?)", name)
    if not found:
        raise UsageError(f"'{name}' does not say which size; the sizes are yolov5n, s, m, l and x, and yolov5nu …")
    return found[1], found[2]


def side_of(request: Request) -> int:
    """Height and width of the input; a multiple of the largest stride."""
    side = request.size or SIDE
    if side < STRIDE or side % STRIDE:
        raise UsageError(f"--size {side}: YOLOv5's input is a multiple of {STRIDE}")
    return side
