"""Detects objects with networks whose output clients/_box_decoding.py can decode, such as YOLOv5,
and YOLOv8 to YOLO26. If the head has masks or keypoints, they are returned too."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from clients._box_decoding import (
    AUTO,
    COLUMNS,
    EXTRA_VALUES,
    FINAL,
    REMEDY,
    ROWS,
    Head,
    candidates,
    head_of,
    refused,
    without_batch,
)
from clients._boxes import Letterbox, confidence, detections_of, max_detections, nms
from clients._drawing import draw
from clients._image_settings import EXAMPLE, Size
from clients._labels import LABELS, labels_mismatch, labels_of
from clients._masks import outlines
from clients.base import (
    Array,
    Floats,
    Model,
    ModelClient,
    Names,
    Parameter,
    Tensors,
    TensorSpec,
    Values,
)
from serving.codecs import PIXELS
from serving.errors import InferenceFailed, InvalidRequest
from serving.named_value import unknown

Pixels = NDArray[np.uint8]
DATATYPES = {"UINT8": np.uint8, "FP16": np.float16, "FP32": np.float32}
# maximum number of masks for an image, because each may be as large as the network's input
MAX_MASKS = 300
DIGITS = 18  # maximum length of a class id; every number of 18 digits fits into INT64
# NMS gets at most this many boxes, those with the best scores (YOLOv5's max_nms)
MAX_CANDIDATES = 30_000


class Client(ModelClient):
    """Finds objects in an image, best first: `{"detections": [{"label", "class_id", "score", "box":
    {"xmin", "ymin", "xmax", "ymax"}}, …], "image": {"width", "height"}}`, with boxes in pixels of
    the original image. If the network has a segmentation head, a detection also has `"polygons":
    [[x1, y1, x2, y2, …], …]`, the outer edges of its mask (holes are filled). If it has a pose
    head, a detection has `"keypoints": [{"x", "y", "score"}, …]`.

    The network gets letterboxed RGB images from 0 to 1, or from 0 to 255 if its input is UINT8. A
    box counts only for its best class. Its score is the class score, multiplied by the objectness
    if there is one. NMS is applied within each class, except with an end-to-end head, which does
    not need it: `iou` then has no effect. The client uses the model's first input and first output
    and, for masks, an output with three dimensions, the prototypes.
    """

    task = "object-detection"
    codec = PIXELS
    example = EXAMPLE
    settings = (
        Parameter(
            "layout",
            AUTO,
            "format of the output; auto: detected from the number of labels and the shape",
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
        """Read settings and labels. Raise InvalidRequest if the input, output, settings and labels
        do not match, and OSError if the file that `labels` names is missing."""
        self.input = model.inputs[0]
        self.output = model.outputs[0]
        maps = [spec for spec in model.outputs[1:] if len(without_batch(spec.shape, 3)) == 3]
        self.prototypes = maps[0].name if maps else ""
        if self.prototypes:
            self.parameters = _with_masks(self.parameters)
        super().__init__(model)
        self.keypoint_shape = _keypoint_shape(self.options["keypoints"])
        self.height, self.width = _input_size(self.input)
        self.labels = labels_of(model, self.options["labels"])
        self._head(self.output.shape)  # raises InvalidRequest if it is not supported
        self.defaults["classes"] = self.class_ids(self.defaults["classes"])

    def read_parameters(self, values: Values) -> dict[str, Any]:
        """Read the parameters as ModelClient does, and convert `classes` to class ids. Raise
        InvalidRequest for an unknown class."""
        parameters = super().read_parameters(values)
        if "classes" in values:
            parameters["classes"] = self.class_ids(parameters["classes"])
        return parameters

    def class_ids(self, names: Sequence[str]) -> tuple[int, ...]:
        """Return the class ids for `names`, each of which is a label or a class id. A name that
        could be either is taken as a label. Raise InvalidRequest for an unknown name."""
        return tuple(chain.from_iterable(map(self._class_ids, names)))

    def _class_ids(self, name: str) -> list[int]:
        """Return the ids for one name. Several classes may have the same label."""
        ids = [class_id for class_id, label in enumerate(self.labels) if label == name]
        if ids:
            return ids
        if name.isdecimal() and len(name) <= DIGITS:
            class_id = int(name)
            if not self.labels or class_id < len(self.labels):
                return [class_id]
        reason = unknown("label or class id", name, self.labels or ["class ids"])
        raise InvalidRequest(f"parameter 'classes': {reason}")

    def prepare(self, instances: Sequence[Pixels], parameters: Values) -> Tensors:
        """Convert RGB images of any size to the input [n,3,height,width], with values from 0 to 1,
        or from 0 to 255 if it is UINT8.

        A variable side is the shortest multiple of `stride` into which all images fit after their
        longer sides have become `size`.
        """
        height, width = self._input_size_for(instances)
        shape = (len(instances), 3, height, width)
        rows = np.empty(shape, DATATYPES[self.input.datatype])
        scale = np.uint8(1) if rows.dtype == np.uint8 else np.float32(1 / 255)
        for row, pixels in zip(rows, instances, strict=True):
            fitted = Letterbox.fit(*_width_and_height(pixels), width, height).apply(pixels)
            # copy each channel to contiguous memory before the multiplication: this halves the time
            for channel, plane in enumerate(row):
                values = cv2.extractChannel(fitted, channel)
                np.multiply(values, scale, out=plane, casting="same_kind")
        if len(self.input.shape) == 4:  # with the network's own batch dimension
            rows = rows[:, None]
        return {self.input.name: rows}

    def _input_size_for(self, instances: Sequence[Pixels]) -> Size:
        """Return height and width of the network's input for these images."""
        longest = self.options["size"]
        stride = self.options["stride"]
        fits = [Letterbox.fit(*_width_and_height(pixels), longest, longest) for pixels in instances]
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
            without_duplicates = list(dict.fromkeys(self.labels))
            names = {"type": "string", "enum": without_duplicates}
            ids = {"type": "integer", "minimum": 0, "maximum": len(self.labels) - 1}
            schemas["classes"]["items"] = {"anyOf": [names, ids]}
        return schemas

    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[Pixels], parameters: Values
    ) -> list[Any]:
        """Return the detections of each image, highest score first, from an output [n,rows,5+C],
        [n,4+C,rows] or [n,rows,6].

        Raise InferenceFailed if an output has infinite or NaN values, or if the boxes do not fit
        the layout or the labels.
        """
        output = outputs[self.output.name]
        height, width = inputs[self.input.name].shape[-2:]
        try:
            head = self._head(output.shape[1:])
        except InvalidRequest as err:
            raise InferenceFailed(f"model '{self.model.name}': {err}") from err
        for name in filter(None, (self.output.name, self.prototypes)):
            # An infinite or NaN value makes the sum infinite or NaN. Unlike isfinite on the whole
            # output, it needs no second array.
            if not np.isfinite(outputs[name].sum(dtype=np.float32)):
                raise InferenceFailed(f"output '{name}' of model '{self.model.name}' is not finite")
        tables = output.reshape(len(instances), *output.shape[-2:])
        maps: Any = [None] * len(tables)  # the prototypes of each image, if there are masks
        if self.prototypes:
            prototypes = outputs[self.prototypes]
            maps = prototypes.reshape(-1, *prototypes.shape[-3:])
        fits = [Letterbox.fit(*_width_and_height(pixels), width, height) for pixels in instances]
        return [
            self._detect(table, own_maps, head, fit, parameters)
            for table, own_maps, fit in zip(tables, maps, fits, strict=True)
        ]

    def _detect(
        self, table: Array, prototypes: Array | None, head: Head, fit: Letterbox, parameters: Values
    ) -> dict[str, Any]:
        """Return the prediction for one image. The table that `candidates` returns has columns for
        the corners of a box, its score, its class id, and the values of masks and keypoints. Raise
        InferenceFailed if an end-to-end table contains values that are not class ids."""
        if head.layout == FINAL:
            self._check_final(table)
        kept = candidates(table, head, parameters["confidence"])
        if parameters["classes"]:
            kept = kept[np.isin(kept[:, 5], parameters["classes"])]
        kept = kept[np.argsort(-kept[:, 4], kind="stable")[:MAX_CANDIDATES]]
        limit = parameters["max_detections"]
        if head.layout == FINAL:
            kept = kept[:limit]  # end-to-end heads need no NMS
        else:
            best = nms(kept[:, :4], kept[:, 4], kept[:, 5], parameters["iou"], limit)
            kept = kept[best]
        boxes, scores, extras = kept[:, :4], kept[:, 4], kept[:, 6:]
        class_ids = kept[:, 5].astype(np.int64)
        detections = detections_of(self.labels, class_ids, scores, fit.to_image(boxes))
        if prototypes is not None and parameters["masks"] == "polygons":
            masks = outlines(boxes, extras[:, : head.masks], prototypes, fit)
            for detection, mask in zip(detections, masks, strict=True):
                detection["polygons"] = mask
        if self.keypoint_shape != (0, 0):
            values = extras[:, head.masks :].reshape(-1, *self.keypoint_shape)
            for detection, keypoints in zip(detections, _keypoints(values, fit), strict=True):
                detection["keypoints"] = keypoints
        return {"detections": detections, "image": {"width": fit.width, "height": fit.height}}

    def _check_final(self, table: Array) -> None:
        """Raise InferenceFailed if the sixth column has other values than class ids. YOLOv5's table
        for one class also has six columns, the last of which is a score."""
        ids = table[:, 5]
        classes = len(self.labels) or np.inf
        is_id = (ids == ids.round()) & (ids >= 0) & (ids < classes)
        if not is_id.all():
            raise InferenceFailed(
                f"output '{self.output.name}' of model '{self.model.name}' has other values in its "
                "sixth column than class ids: it is not an end-to-end head, or the labels are not "
                "its own; for YOLOv5's table of one class set the parameter 'layout' to yolov5"
            )

    def draw(self, instance: Pixels, prediction: Any) -> Image.Image:
        """Return the image with the box, the label, the mask and the keypoints of each
        detection."""
        return draw(Image.fromarray(instance), prediction["detections"])

    def _head(self, shape: Sequence[int]) -> Head:
        """Return the head of an output with this shape. Raise InvalidRequest if the head is not
        supported, or has another number of classes than the labels."""
        if len(shape) >= len(self.input.shape):
            raise refused(shape, "has as many dimensions as the image")
        others = [spec.shape for spec in self.model.outputs[1:]]
        layout = self.options["layout"]
        head = head_of(shape, others, layout, len(self.labels), self.keypoint_shape)
        if mismatch := labels_mismatch(self.model, self.labels, self.output.name, head.classes):
            raise InvalidRequest(
                f"{mismatch} if its layout is {head.layout}: give it its own labels, or set the "
                f"parameter 'layout' (--set layout={ROWS}, {COLUMNS} or {FINAL}); if further "
                f"values are {EXTRA_VALUES}: {REMEDY}"
            )
        return head


def _width_and_height(pixels: Pixels) -> tuple[int, int]:
    height, width = pixels.shape[:2]
    return width, height


def _input_size(spec: TensorSpec) -> Size:
    """Return (height, width), with -1 for a variable side. Raise InvalidRequest if the input is not
    one RGB image."""
    shape = spec.shape
    if len(shape) == 4 and shape[0] > 1:
        raise InvalidRequest(
            f"input '{spec.name}' is {list(shape)}, so the batch is fixed at {shape[0]}: "
            "export with batch=1 or dynamic=True"
        )
    is_image = len(shape) in (3, 4) and shape[-3] in (3, -1)
    if not is_image or spec.datatype not in DATATYPES:
        raise InvalidRequest(
            f"input '{spec.name}' is {spec.datatype} {list(shape)}; a detector takes one RGB image "
            "of UINT8, FP16 or FP32 as [3, height, width]"
        )
    return shape[-2], shape[-1]


def _with_masks(parameters: Sequence[Parameter]) -> tuple[Parameter, ...]:
    """Return the parameters for a segmentation head: add `masks`, and lower the maximum of
    `max_detections`."""
    limited = []
    for parameter in parameters:
        if parameter.name == "max_detections":
            parameter = replace(parameter, maximum=MAX_MASKS)
        limited.append(parameter)
    masks = Parameter("masks", "polygons", "how masks are returned", choices=("polygons", "none"))
    return (*limited, masks)


def _keypoint_shape(setting: tuple[float, ...]) -> tuple[int, int]:
    """Return the number of keypoints, and the number of values per keypoint. Both are 0 if the
    setting is empty. Raise InvalidRequest if it is invalid."""
    if not setting:
        return (0, 0)
    count, *values = setting
    if count < 1 or not count.is_integer() or values not in ([2], [3]):
        raise InvalidRequest(
            f"parameter 'keypoints': {setting} must be how many, and 2 or 3 values of each, "
            "such as 17,3"
        )
    return int(count), int(values[0])


def _keypoints(values: Floats, fit: Letterbox) -> list[list[dict[str, float]]]:
    """Convert keypoints [n, keypoints, 2 or 3] in the network's input to x and y in the image, and
    their scores if there are any."""
    positions = values[..., :2]
    scores = values[..., 2:]
    points = fit.points_to_image(positions.reshape(-1, 2)).astype(np.float64).round(2)
    rows = np.concatenate((points.reshape(positions.shape), scores), 2)
    names = ("x", "y", "score")[: rows.shape[2]]
    return [[dict(zip(names, keypoint, strict=True)) for keypoint in row] for row in rows.tolist()]
