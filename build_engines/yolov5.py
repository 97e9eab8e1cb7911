"""YOLOv5 as model folders: one that finds digits on pages, and every size of the release.

`yolov5` is the network of size n with ten classes, small enough to be committed with its weights. The others take an
official checkpoint, or random weights for load tests: nonsense at the true speed. What needs torch is imported late.
"""

import re
import shutil
from pathlib import Path

from build_engines.downloads import digest, fetch
from build_engines.draft import BuildError, Draft, UsageError
from build_engines.own import describe, write_labels
from build_engines.recipes import REPOSITORY, Request
from clients.yolov5 import DEFAULT_LABELS

MAX_BATCH_SIZE = 8
STRIDE = 32
BOXES = 1000  # that leave the network; next to none of the others would be a detection
TRAINED = REPOSITORY / "yolov5/1/model.onnx"
TRAINED_SHA256 = "757b33d66e30992e109b10c268f3617dbcf713ded89d8ce7b9913e8ba04f5f33"
EXAMPLE = REPOSITORY / "yolov5/example.jpg"
DIGITS = tuple("0123456789")
CLASSES = 80  # of COCO


def draft(request: Request, path: Path | None, folder: Path) -> Draft:
    """The model folder's files, from the committed weights, training, random weights or a checkpoint at `path`."""
    model = folder / "1" / "model.onnx"
    if path is None and request.model == "yolov5" and request.source == "pretrained":
        labels, layout = committed(request, model), "yolov5"
    else:
        labels, layout = exported(request, path, model)
    shutil.copyfile(EXAMPLE, folder / "example.jpg")
    write_labels(folder / DEFAULT_LABELS, labels, request.labels)
    empty = Draft("yolov5", (), (), MAX_BATCH_SIZE, {"layout": layout}, lengths=(STRIDE, 640, 1280))
    return describe(request, folder, empty)


def committed(request: Request, model: Path) -> tuple[str, ...]:
    """The trained network of this checkout; its labels."""
    if request.size not in (0, 640) or request.max_batch_size == 0 or request.boxes >= 0:
        raise UsageError("--size, --boxes and --max-batch-size 0 need the network: build with --weights train")
    if not TRAINED.is_file() or digest(TRAINED) != TRAINED_SHA256:
        raise BuildError(
            f"{TRAINED} is not the network that was trained: get it back (git checkout {TRAINED.name}), "
            "or train it again with --weights train"
        )
    shutil.copyfile(TRAINED, model)
    return DIGITS


def exported(request: Request, path: Path | None, model: Path) -> tuple[tuple[str, ...], str]:
    """Writes the ONNX file; the labels, none where they are not known, and the client's `layout`."""
    from build_engines import yolov5_random
    from build_engines.yolov5_network import YoloV5

    side = side_of(request)
    if path is None and request.source == "train":
        from build_engines.yolov5_training import train

        network, labels = train(), DIGITS
    elif path is None and request.source == "random":
        size, u = size_of(request.model)
        network, labels = yolov5_random.network(size, CLASSES, anchor_free=bool(u)), ()
    else:
        from build_engines.yolov5_checkpoint import read

        network, labels = read(path or fetch(f"{request.model}.pt"))
    boxes = BOXES if request.boxes < 0 else request.boxes
    yolov5_random.write_onnx(network, side, model, boxes, batching=request.max_batch_size != 0)
    return labels, "yolov5" if isinstance(network, YoloV5) else "yolov5u"


def size_of(name: str) -> tuple[str, str]:
    """yolov5su -> ("s", "u"); UsageError for a name without a size."""
    found = re.fullmatch(r"yolov5([nsmlx])(u?)", name)
    if not found:
        raise UsageError(f"'{name}' does not say which size; the sizes are yolov5n, s, m, l and x, and yolov5nu …")
    return found[1], found[2]


def side_of(request: Request) -> int:
    """Height and width of the input; a multiple of the largest stride."""
    side = request.size or 640
    if side < STRIDE or side % STRIDE:
        raise UsageError(f"--size {side}: YOLOv5's input is a multiple of {STRIDE}")
    return side
