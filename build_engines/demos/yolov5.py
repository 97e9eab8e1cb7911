"""`yolov5`: YOLOv5n with ten classes, which finds handwritten digits on pages: its committed weights, or training."""

from pathlib import Path

from build_engines.demos.committed import Committed
from build_engines.errors import UsageError
from build_engines.families import yolov5
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import REPOSITORY, Request

TRAINED = Committed(
    path=REPOSITORY / "yolov5/1/model.onnx", sha256="757b33d66e30992e109b10c268f3617dbcf713ded89d8ce7b9913e8ba04f5f33"
)
DIGITS = tuple("0123456789")


def export(request: Request, folder: Path) -> ModelSpec:
    """The model folder's files, from the committed weights or from training."""
    model = folder / "1" / "model.onnx"
    if request.source == "train":
        from build_engines.demos.yolov5_training import train

        yolov5.side_of(request)  # UsageError before the long work
        layout = yolov5.write_network(request, train(), model)
    else:
        layout = _copy_committed(request, model)
    return yolov5.finish(request, folder, DIGITS, layout)


def _copy_committed(request: Request, model: Path) -> str:
    if request.size not in (0, yolov5.SIDE) or request.max_batch_size == 0 or request.boxes >= 0:
        raise UsageError("--size, --boxes and --max-batch-size 0 need the network: build with --weights train")
    TRAINED.copy(model)
    return "yolov5"
