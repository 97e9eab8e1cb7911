"""Detects objects with a head that clients/_box_decoding.py reads, such as those of YOLOv5, and
of YOLOv8 to YOLO26. If the head has masks or keypoints, they are returned too."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients._box_decoding import (
    AUTO,
    COLUMNS,
    DETECTION,
    FINAL,
    ROWS,
    Head,
    candidates,
    head_of,
    refused,
    without_batch,
)
from clients._boxes import Letterbox, confidence, detections_of, max_detections, nms
from clients._drawing import draw
from clients._image_settings import EXAMPLE
from clients._labels import LABELS, labels_mismatch, labels_of
from clients._masks import outlines
from clients.base import Model, ModelClient, Names, Parameter, Tensors, TensorSpec
from serving.codecs import PIXELS
from serving.errors import InferenceFailed, InvalidRequest

Pixels = NDArray[np.uint8]
DATATYPES = {"UINT8": np.uint8, "FP16": np.float16, "FP32": np.float32}
MAX_MASKS = 300  # per image: each may take as long as a map of the network's input size
RUN_LENGTHS = "take polygons, and fill them with COCO's own tools (frPyObjects, merge)"
DIGITS = 18  # the longest class id: every number of 18 digits fits INT64
MAX_CANDIDATES = 30_000  # the most boxes that enter NMS, best scores first (YOLOv5's max_nms)


class Client(ModelClient):
    """Finds objects in an image, best first: `{"detections": [{"label", "class_id", "score", "box":
    {"xmin", "ymin", "xmax", "ymax"}}, …], "image": {"width", "height"}}`, boxes in pixels of the
    image as it was sent. With a segmentation head, a detection also has `"polygons": [[x1, y1, x2,
    y2, …], …]`, the outer edges of its mask (holes are filled); with a pose head, `"keypoints":
    [{"x", "y", "score"}, …]`.

    The network gets letterboxed RGB from 0 to 1, or from 0 to 255 when its input is UINT8. A box
    counts only for its best class, and its score is objectness · class score. NMS is done within
    each class. An end-to-end head needs none, so `iou` has no effect on it. The client uses the
    model's first input and first output, and for masks an output of three dimensions, the
    prototypes.
    """

    task = "object-detection"
    codec = PIXELS
    example = EXAMPLE
    settings = (
        Parameter(
            "layout",
            AUTO,
            "format of the output; auto: found from the number of labels and the shape",
            choices=(AUTO, ROWS, COLUMNS, FINAL),
        ),
        Parameter(
            "keypoints",
            (),
            "number of keypoints, and of values per keypoint, such as 17,3",
            minimum=0,
        ),
        Parameter("size", 640, "longer side, if the input size is variable", minimum=32),
        Parameter("stride", 32, "variable sides are rounded to multiples of this", minimum=1),
        LABELS,
    )
    parameters: tuple[Parameter, ...] = (
        confidence(0.25),
        Parameter(
            "iou",
            0.45,
            "if two boxes of a class overlap more than this, drop the one with the lower score",
            minimum=0,
            maximum=1,
        ),
        max_detections(300),
        Parameter("classes", Names(), "labels or class ids to keep; all when empty"),
    )

    def __init__(self, model: Model) -> None:
        """Read settings and labels. Raise InvalidRequest if input, settings and labels do not fit
        together, and OSError if the file that `labels` names is missing."""
        self.input = model.inputs[0]
        self.output = model.outputs[0]
        others = model.outputs[1:]
        maps = [spec.name for spec in others if len(without_batch(spec.shape, 3)) == 3]
        prototypes = maps[0] if maps else ""
        if prototypes:
            self.parameters = _with_masks(self.parameters)
        super().__init__(model)
        self.prototypes = prototypes
        self.keypoints = _keypoints(self.options["keypoints"])
        self.height, self.width = _input_size(self.input)
        self.labels = labels_of(model, self.options["labels"])
        head = self._head(self.output.shape)
        if mismatch := labels_mismatch(model, self.labels, self.output.name, head.classes):
            raise InvalidRequest(
                f"{mismatch} if its layout is {head.layout}: give it its own labels, or set the "
                f"parameter 'layout' (--set layout={ROWS}, {COLUMNS} or {FINAL})"
            )
        self.defaults["classes"] = self.class_ids(self.defaults["classes"])

    def read_parameters(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Read as ModelClient does, and turn `classes` into class ids. Raise InvalidRequest for an
        unknown class."""
        parameters = super().read_parameters(values)
        return parameters | (
            {"classes": self.class_ids(parameters["classes"])} if "classes" in values else {}
        )

    def class_ids(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the class ids of labels or numbers; a label that is a number counts as a label."""
        return tuple(class_id for name in names for class_id in self._class_ids(name))

    def _class_ids(self, name: str) -> list[int]:
        if ids := [class_id for class_id, label in enumerate(self.labels) if label == name]:
            return ids
        if (
            name.isdecimal()
            and len(name) <= DIGITS
            and (not self.labels or int(name) < len(self.labels))
        ):
            return [int(name)]
        labels = ", ".join(self.labels[:100])
        if len(self.labels) > 100:
            labels += ", …"
        raise InvalidRequest(
            f"parameter 'classes': '{name}' is neither a label nor a class id of model "
            f"'{self.model.name}'; its labels are: {labels or 'unknown, send class ids'}"
        )

    def prepare(self, instances: Sequence[Pixels], parameters: Mapping[str, Any]) -> Tensors:
        """Return RGB images of any sizes as the input [n,3,height,width], 0 to 1, or 0 to 255 when
        it is UINT8.

        If the model's height and width are variable, they are the smallest that fit all the images.
        """
        height, width = self._target([_size(pixels) for pixels in instances])
        shape = (len(instances), 3, height, width)
        rows = np.empty(shape, DATATYPES[self.input.datatype])
        is_raw = rows.dtype == np.uint8
        scale = np.uint8(1) if is_raw else np.float32(1 / 255)
        for row, pixels in zip(rows, instances, strict=True):
            fitted = Letterbox.fit(*_size(pixels), width, height).apply(pixels)
            # extracting contiguous channels first halves the time
            for channel, plane in enumerate(row):
                values = cv2.extractChannel(fitted, channel)
                np.multiply(values, scale, out=plane, casting="same_kind")
        if len(self.input.shape) == 4:
            rows = rows[:, None]
        return {self.input.name: rows}

    def _target(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Return height and width of the network's input for images of these (width, height)."""
        longest = self.options["size"]
        stride = self.options["stride"]
        fits = [Letterbox.fit(*size, longest, longest) for size in sizes]
        height, width = self.height, self.width
        if height <= 0:
            tallest = max(fit.new_height for fit in fits)
            height = math.ceil(tallest / stride) * stride
        if width <= 0:
            widest = max(fit.new_width for fit in fits)
            width = math.ceil(widest / stride) * stride
        return height, width

    def parameter_schemas(self) -> dict[str, dict[str, Any]]:
        schemas = super().parameter_schemas()
        if self.labels:
            ids = range(len(self.labels))
            texts = dict.fromkeys([*self.labels, *map(str, ids)])
            names = {"type": "string", "enum": list(texts)}
            schemas["classes"]["items"] = {
                "anyOf": [names, {"type": "integer", "minimum": 0, "maximum": ids[-1]}]
            }
        return schemas

    def postprocess(
        self,
        outputs: Tensors,
        inputs: Tensors,
        instances: Sequence[Pixels],
        parameters: Mapping[str, Any],
    ) -> list[Any]:
        """Return the detections of each image, highest score first, from [n,rows,5+C], [n,4+C,rows]
        or [n,rows,6].

        Raise InferenceFailed if the output is not finite or its number of classes is not that of
        the labels.
        """
        output = outputs[self.output.name]
        height, width = inputs[self.input.name].shape[-2:]
        try:
            head = self._head(output.shape[1:])
        except InvalidRequest as err:
            raise InferenceFailed(f"model '{self.model.name}': {err}") from err
        if mismatch := labels_mismatch(self.model, self.labels, self.output.name, head.classes):
            raise InferenceFailed(mismatch)
        prototypes = outputs.get(self.prototypes)
        for name in filter(None, (self.output.name, self.prototypes)):
            if not np.isfinite(outputs[name].sum(dtype=np.float32)):
                raise InferenceFailed(f"output '{name}' of model '{self.model.name}' is not finite")
        tables = output.reshape(len(instances), *output.shape[-2:])
        maps: Any = [None] * len(tables)
        if prototypes is not None:
            maps = prototypes.reshape(-1, *prototypes.shape[-3:])
        return [
            self._detect(
                table, protos, head, Letterbox.fit(*_size(pixels), width, height), parameters
            )
            for table, protos, pixels in zip(tables, maps, instances, strict=True)
        ]

    def _detect(
        self,
        table: NDArray[Any],
        prototypes: NDArray[Any] | None,
        head: Head,
        fit: Letterbox,
        parameters: Mapping[str, Any],
    ) -> dict[str, Any]:
        if head.layout == FINAL:
            self._check_final(table)
        kept = candidates(table, head, parameters["confidence"])
        if parameters["classes"]:
            kept = kept.take(np.isin(kept.classes, parameters["classes"]))
        kept = kept.take(np.argsort(-kept.scores, kind="stable")[:MAX_CANDIDATES])
        limit = parameters["max_detections"]
        if head.layout == FINAL:
            kept = kept.take(slice(limit))
        else:
            best = nms(kept.boxes, kept.scores, kept.classes, parameters["iou"], limit)
            kept = kept.take(best)
        corners = fit.to_image(kept.boxes)
        detections = detections_of(self.labels, kept.classes, kept.scores, corners)
        if prototypes is not None and parameters["masks"] == "polygons":
            coefficients = kept.extras[:, : head.masks]
            masks = outlines(kept.boxes, coefficients, prototypes, fit)
            for detection, mask in zip(detections, masks, strict=True):
                detection["polygons"] = mask
        if head.keypoints[0]:
            values = kept.extras[:, head.masks :].reshape(-1, *head.keypoints)
            for detection, points in zip(detections, _points(values, fit), strict=True):
                detection["keypoints"] = points
        return {"detections": detections, "image": {"width": fit.width, "height": fit.height}}

    def _check_final(self, table: NDArray[Any]) -> None:
        """Raise InferenceFailed if the table is not an end-to-end head's. YOLOv5's table for one
        class has six columns too."""
        ids = table[:, 5]
        classes = len(self.labels) or np.inf
        is_id = (ids == ids.round()) & (ids >= 0) & (ids < classes)
        if not is_id.all():
            raise InferenceFailed(
                f"the last column of output '{self.output.name}' of model "
                f"'{self.model.name}' has other values than class "
                f"ids{f' of {classes} labels' if self.labels else ''}: it is not an "
                "end-to-end head, or the labels are not its own; for YOLOv5's table of one "
                "class set the parameter 'layout' to yolov5"
            )

    def draw(self, instance: Pixels, prediction: Any) -> Image.Image:
        """Return the image with its masks, a box and a label for each detection, and its
        keypoints."""
        return draw(Image.fromarray(instance), prediction["detections"])

    def _head(self, shape: Sequence[int]) -> Head:
        """Return the head of an output with this shape. Raise InvalidRequest if it is not
        supported."""
        if len(shape) >= len(self.input.shape):
            raise refused(
                shape, "is not a table of boxes: it has as many dimensions as the image", DETECTION
            )
        others = [spec.shape for spec in self.model.outputs[1:]]
        return head_of(shape, others, self.options["layout"], len(self.labels), self.keypoints)


def _size(pixels: Pixels) -> tuple[int, int]:
    """Return an image's width and height."""
    height, width = pixels.shape[:2]
    return width, height


def _input_size(spec: TensorSpec) -> tuple[int, int]:
    """Return (height, width), with -1 for a variable side. Raise InvalidRequest if the input is not
    one RGB image."""
    if len(spec.shape) == 4 and spec.shape[0] > 1:
        raise InvalidRequest(
            f"input '{spec.name}' is {list(spec.shape)}, so the batch is fixed at {spec.shape[0]}: "
            "export with batch=1 or dynamic=True"
        )
    if (
        len(spec.shape) not in (3, 4)
        or spec.shape[-3] not in (3, -1)
        or spec.datatype not in DATATYPES
    ):
        raise InvalidRequest(
            f"input '{spec.name}' is {spec.datatype} {list(spec.shape)}; a detector takes "
            f"one RGB image of UINT8, FP16 or FP32 as [3, height, width]"
        )
    return spec.shape[-2], spec.shape[-1]


def _with_masks(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Return the parameters of a segmentation head."""
    limited = [
        replace(p, maximum=MAX_MASKS) if p.name == "max_detections" else p for p in parameters
    ]
    masks = Parameter(
        "masks",
        "polygons",
        "how masks are returned",
        choices=("polygons", "none"),
        removed=(("rle", RUN_LENGTHS),),
    )
    return (*limited, masks)


def _keypoints(setting: tuple[float, ...]) -> tuple[int, int]:
    """Return the number of keypoints, and the number of values per keypoint: 0 and 0 if there are
    none."""
    if not setting:
        return (0, 0)
    count, *values = setting
    if count < 1 or not count.is_integer() or values not in ([2], [3]):
        raise InvalidRequest(
            f"parameter 'keypoints': {setting} must be how many, and 2 or 3 values of each, "
            "such as 17,3"
        )
    return int(count), int(values[0])


def _points(values: NDArray[np.float32], fit: Letterbox) -> list[list[dict[str, float]]]:
    """Return keypoints [n, keypoints, 2 or 3] of the network's input as x and y in the image, with
    their scores if there are any."""
    places = values[..., :2]
    points = fit.points_to_image(places.reshape(-1, 2))
    rounded = points.astype(np.float64).round(2)
    rows = np.concatenate((rounded.reshape(places.shape), values[..., 2:]), 2)
    return [
        [dict(zip(("x", "y", "score"), point, strict=False)) for point in row]
        for row in rows.tolist()
    ]
