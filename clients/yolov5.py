"""Object detection with YOLOv5, or any network whose output has the form of YOLOv5, YOLOv5u or YOLOv8."""

import colorsys
import math
from collections.abc import Mapping, Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from clients._boxes import Letterbox, nms
from clients._heads import AUTO, COLUMNS, ROWS, Head, head_of
from clients._schemas import INTEGER, NUMBER, STRING, listed, record
from clients.base import Model, ModelClient, Names, Parameter, Tensors, TensorSpec, labels_of
from serving.codecs import IMAGE, decode_base64
from serving.errors import InferenceFailed, InvalidRequest

DEFAULT_LABELS = "labels.txt"
DATATYPES = {"UINT8": np.uint8, "FP16": np.float16, "FP32": np.float32}
MAX_CANDIDATES = 30_000  # the most boxes that enter NMS, best scores first (YOLOv5's max_nms)
_EXAMPLE = "iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAAAAADhZOFXAAAAEElEQVR42mNkEIAAJgGKGACOGAQAwSeVywAAAABJRU5ErkJggg=="

Colour = tuple[int, int, int]
Candidates = tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.intp]]  # boxes [n,4], scores, classes


class Client(ModelClient):
    """Objects in an image, best first:
    `{"detections": [{"label", "class_id", "score", "box": {"xmin", "ymin", "xmax", "ymax"}}, …],
    "image": {"width", "height"}}`, boxes in pixels of the image as it was sent.

    The settings of a detector, set by `parameters` in config.pbtxt:

    | Setting | Default | Meaning |
    |---|---|---|
    | `layout` | auto | yolov5: rows of cx, cy, w, h, objectness, class scores, `[N,25200,5+C]`; yolov5u: columns of cx, cy, w, h, class scores, `[N,4+C,8400]`; auto: the longer dimension decides, and what looks like a table after NMS is refused |
    | `size` | 640 | longer side in pixels, when the input's height and width are -1 |
    | `stride` | 32 | height and width are rounded up to a multiple of it, when they are -1 |
    | `labels` | labels.txt | a file in the model's folder, one label per line; without it the class ids are the labels |

    The network gets letterboxed RGB from 0 to 1, or from 0 to 255 when its input is UINT8. A box counts only for its best class, with the score
    objectness · class score; NMS is done per class. The client uses the model's first input and first output.
    """  # noqa: E501

    codec = IMAGE
    example = decode_base64(_EXAMPLE)  # a grey gradient, 8×8
    settings = (
        Parameter("layout", "auto", "form of the output", choices=(AUTO, ROWS, COLUMNS)),
        Parameter("size", 640, "longer side, when the input's size is variable", minimum=32),
        Parameter("stride", 32, "the input's sides are multiples of it, when they are variable", minimum=1),
        Parameter("labels", DEFAULT_LABELS, "file of labels in the model's folder"),
    )
    parameters = (
        Parameter("confidence", 0.25, "return only detections with a score above it", minimum=0, maximum=1),
        Parameter("iou", 0.45, "of two boxes of a class that overlap more, keep only the better", minimum=0, maximum=1),
        Parameter("max_detections", 300, "how many to return per image", minimum=1, maximum=MAX_CANDIDATES),
        Parameter("classes", Names(), "labels or class ids to keep; all when empty"),
    )

    def __init__(self, model: Model) -> None:
        """Raises InvalidRequest when input, settings and labels do not fit together, OSError when the file
        that `labels` names is missing."""
        super().__init__(model)
        self.input, self.output = model.inputs[0], model.outputs[0]
        self.height, self.width = _input_size(self.input)
        self.labels = labels_of(model, self.options["labels"])
        if mismatch := self._mismatch(self._head(self.output.shape)):
            raise InvalidRequest(mismatch)
        self.defaults["classes"] = self.class_ids(self.defaults["classes"])

    def read_parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """As ModelClient.read_parameters; turns `classes` into class ids, InvalidRequest for an unknown class."""
        parameters = super().read_parameters(given)
        return parameters | ({"classes": self.class_ids(parameters["classes"])} if "classes" in given else {})

    def class_ids(self, names: Sequence[str]) -> tuple[int, ...]:
        """Labels or numbers -> class ids; a label that is a number counts as a label."""
        return tuple(self._class_id(name) for name in names)

    def _class_id(self, name: str) -> int:
        if name in self.labels:
            return self.labels.index(name)
        if name.isdecimal() and (not self.labels or int(name) < len(self.labels)):
            return int(name)
        known = ", ".join(self.labels[:100]) + (", …" if len(self.labels) > 100 else "")
        raise InvalidRequest(
            f"parameter 'classes': '{name}' is neither a label nor a class id of model "
            f"'{self.model.name}'; its labels are: {known or 'unknown, send class ids'}"
        )

    def preprocess(self, instances: Sequence[Image.Image]) -> Tensors:
        """n RGB images of any sizes -> the input [n,3,height,width], 0 to 1, or 0 to 255 when it is UINT8.

        If the model's height and width are variable, they are the smallest that fit all the images.
        """
        height, width = self._target([image.size for image in instances])
        rows = np.empty((len(instances), 3, height, width), DATATYPES[self.input.datatype])
        scale = np.uint8(1) if rows.dtype == np.uint8 else np.float32(1 / 255)
        for row, image in zip(rows, instances, strict=True):
            pixels = Letterbox.fit(*image.size, width, height).apply(np.asarray(image))
            for channel, plane in enumerate(row):  # extracting contiguous channels first halves the time
                values = cv2.extractChannel(pixels, channel)
                np.multiply(values, scale, out=plane, casting="same_kind")
        return {self.input.name: rows[:, None] if len(self.input.shape) == 4 else rows}

    def _target(self, sizes: Sequence[tuple[int, int]]) -> tuple[int, int]:
        """Height and width of the network's input for images of these (width, height)."""
        longest, stride = self.options["size"], self.options["stride"]
        fits = [Letterbox.fit(*size, longest, longest) for size in sizes]
        height = math.ceil(max(fit.new_height for fit in fits) / stride) * stride
        width = math.ceil(max(fit.new_width for fit in fits) / stride) * stride
        return self.height if self.height > 0 else height, self.width if self.width > 0 else width

    def parameter_schemas(self) -> dict[str, dict[str, Any]]:
        schemas = super().parameter_schemas()
        if self.labels:
            ids = range(len(self.labels))
            names = {"type": "string", "enum": list(dict.fromkeys([*self.labels, *map(str, ids)]))}
            schemas["classes"]["items"] = {"anyOf": [names, {"type": "integer", "minimum": 0, "maximum": ids[-1]}]}
        return schemas

    def prediction_schema(self) -> dict[str, Any]:
        box = record(xmin=NUMBER, ymin=NUMBER, xmax=NUMBER, ymax=NUMBER)
        detection = record(label=STRING, class_id=INTEGER, score=NUMBER, box=box)
        return record(detections=listed(detection), image=record(width=INTEGER, height=INTEGER))

    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[Image.Image], parameters: Mapping[str, Any]
    ) -> list[Any]:
        """The output, [n,rows,5+C] or [n,4+C,rows] -> the detections of each image, highest score first.

        Raises InferenceFailed when the output is not finite or its number of classes is not that of the labels.
        """
        output = outputs[self.output.name]
        height, width = inputs[self.input.name].shape[-2:]
        try:
            head = self._head(output.shape[1:])
        except InvalidRequest as err:
            raise InferenceFailed(f"model '{self.model.name}': {err}") from err
        if mismatch := self._mismatch(head):
            raise InferenceFailed(mismatch)
        if not np.isfinite(output.sum(dtype=np.float32)):
            raise InferenceFailed(f"output '{self.output.name}' of model '{self.model.name}' is not finite")
        maps = output.reshape(len(instances), *output.shape[-2:])
        return [
            self._detect(table, head.layout, Letterbox.fit(*image.size, width, height), parameters)
            for table, image in zip(maps, instances, strict=True)
        ]

    def _detect(
        self, table: NDArray[Any], layout: str, fit: Letterbox, parameters: Mapping[str, Any]
    ) -> dict[str, Any]:
        boxes, scores, classes = _candidates(table, layout, parameters["confidence"])
        if parameters["classes"]:
            wanted = np.isin(classes, parameters["classes"])
            boxes, scores, classes = boxes[wanted], scores[wanted], classes[wanted]
        best = np.argsort(-scores, kind="stable")[:MAX_CANDIDATES]
        boxes, scores, classes = boxes[best], scores[best], classes[best]
        kept = nms(boxes, scores, classes, parameters["iou"], parameters["max_detections"])
        corners = fit.to_image(boxes[kept]).astype(np.float64).round(2)
        found = zip(classes[kept].tolist(), scores[kept].tolist(), corners.tolist(), strict=True)
        return {
            "detections": [self._detection(*each) for each in found],
            "image": {"width": fit.width, "height": fit.height},
        }

    def _detection(self, class_id: int, score: float, corners: Sequence[float]) -> dict[str, Any]:
        box = dict(zip(("xmin", "ymin", "xmax", "ymax"), corners, strict=True))
        return {"label": self._label(class_id), "class_id": class_id, "score": score, "box": box}

    def _label(self, class_id: int) -> str:
        return self.labels[class_id] if self.labels else str(class_id)

    def draw(self, instance: Image.Image, prediction: Any) -> Image.Image:
        """A copy of the image with a frame, the label and the score of each detection; each class has its colour."""
        picture = instance.copy()
        drawing = ImageDraw.Draw(picture)
        stroke = max(round(sum(picture.size) * 0.0015), 2)
        font = ImageFont.load_default(max(stroke * 6, 11))
        for found in reversed(prediction["detections"]):  # the best on top
            x, y, *_ = corners = tuple(found["box"].values())
            colour = class_colour(found["class_id"])
            drawing.rectangle(corners, outline=colour, width=stroke)
            text = f"{found['label']} {found['score']:.2f}"
            _, _, width, height = drawing.textbbox((0, 0), text, font)
            width, height = width + 4, height + 4
            x, y = max(min(x, picture.width - width), 0), y - height if y >= height else y
            drawing.rectangle((x, y, x + width, y + height), fill=colour)
            drawing.text((x + 2, y + 1), text, _ink(colour), font)
        return picture

    def _head(self, shape: Sequence[int]) -> Head:
        """That of an output with this shape; raises InvalidRequest."""
        others = [spec.shape for spec in self.model.outputs[1:]]
        return head_of(shape, others, self.options["layout"], len(self.labels))

    def _mismatch(self, head: Head) -> str:
        """An error text when the numbers of labels and classes differ; "" when they agree or one is unknown."""
        classes = head.classes
        if not self.labels or classes in (-1, len(self.labels)):
            return ""
        return (
            f"file '{self.options['labels']}' of model '{self.model.name}' has {len(self.labels)} labels, "
            f"output '{self.output.name}' has {classes} classes"
        )


def _candidates(table: NDArray[Any], layout: str, confidence: float) -> Candidates:
    """The rows with a score above `confidence`: corners in the network's input, scores, best classes."""
    if layout == ROWS:
        rows = table[table[:, 4] > confidence].astype(np.float32)  # no score exceeds the objectness
        spans, merits = rows[:, :4], rows[:, 5:] * rows[:, 4:5]
    else:
        rows = table[:, table[4:].max(0) > confidence].T.astype(np.float32)
        spans, merits = rows[:, :4], rows[:, 4:]
    classes = merits.argmax(1)
    scores = merits[np.arange(len(merits)), classes]
    passed = scores > confidence
    half = spans[passed, 2:] / 2
    boxes = np.concatenate((spans[passed, :2] - half, spans[passed, :2] + half), 1)
    return boxes, scores[passed], classes[passed]


def _input_size(spec: TensorSpec) -> tuple[int, int]:
    """(height, width), -1 for a variable one."""
    if len(spec.shape) not in (3, 4) or spec.shape[-3] not in (3, -1) or spec.datatype not in DATATYPES:
        raise InvalidRequest(
            f"input '{spec.name}' is {spec.datatype} {list(spec.shape)}; a detector takes one RGB image of "
            f"UINT8, FP16 or FP32 as [3, height, width]"
        )
    return spec.shape[-2], spec.shape[-1]


def class_colour(class_id: int) -> Colour:
    """A strong colour, different for neighbouring classes: their hues are a golden angle apart."""
    red, green, blue = colorsys.hsv_to_rgb(class_id * 0.618034 % 1, 0.85, 0.9)
    return round(255 * red), round(255 * green), round(255 * blue)


def _ink(ground: Colour) -> Colour:
    """Black or white, whichever reads better (luma of ITU-R BT.601)."""
    luma = 0.299 * ground[0] + 0.587 * ground[1] + 0.114 * ground[2]
    return (0, 0, 0) if luma > 128 else (255, 255, 255)
