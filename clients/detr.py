"""Detects objects with networks from the transformers library that return a set of boxes: DETR,
YOLOS, RT-DETR, D-FINE and others."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image

from clients._boxes import Indices, confidence, detections_of, max_detections
from clients._drawing import draw
from clients._image import ImageClient
from clients._image_settings import WHOLE, check_whole
from clients._labels import LABELS, labels_mismatch, labels_of
from clients.base import Floats, Model, Parameter, Tensors, Values, sigmoid, softmax
from serving.codecs import size_as_sent
from serving.errors import InferenceFailed, InvalidRequest

# the names that transformers gives the outputs
LOGITS = "logits"
BOXES = "pred_boxes"


class Client(ImageClient):
    """Finds objects in an image, best first. Boxes are in pixels of the original image:
    `{"detections": [{"label", "class_id", "score", "box": {"xmin", "ymin", "xmax", "ymax"}}, …],
    "image": {"width", "height"}}`.

    The outputs are `logits` [boxes, classes] and `pred_boxes` [boxes, 4]: centre and sides, as
    shares of the image.
    """

    task = "object-detection"
    settings = (
        *WHOLE,
        Parameter(
            "scores",
            "softmax",
            "softmax for DETR and YOLOS, whose last class means no object; sigmoid for RT-DETR",
            choices=("softmax", "sigmoid"),
        ),
        Parameter(
            "queries",
            0,
            "how many of the highest scores to use; 0: as many as there are boxes",
            minimum=0,
        ),
        LABELS,
    )
    parameters = (confidence(0.5), max_detections(100))

    outputs = (LOGITS, BOXES)

    def __init__(self, model: Model) -> None:
        """Read settings and labels. Raise InvalidRequest if the shapes, settings and labels do not
        match, and OSError if the file that `labels` names is missing."""
        super().__init__(model)
        check_whole(self.options, self.frame)
        self.labels = labels_of(model, self.options["labels"])
        shapes = {spec.name: spec.shape for spec in model.outputs}
        has_boxes = shapes.get(BOXES, ())[-1:] == (4,)
        if LOGITS not in shapes or not has_boxes:
            raise InvalidRequest(
                f"model '{model.name}' has the outputs {', '.join(shapes)}, not {LOGITS} "
                f"[boxes, classes] and {BOXES} [boxes, 4]"
            )
        if mismatch := self._mismatch(shapes[LOGITS][-1]):
            raise InvalidRequest(mismatch)

    def _mismatch(self, classes: int) -> str:
        """Return an error message if the logits have another number of `classes` than the labels,
        or "" if they match or one of the numbers is unknown."""
        if self.options["scores"] == "softmax" and classes != -1:
            classes -= 1  # the last class means no object
        return labels_mismatch(self.model, self.labels, LOGITS, classes)

    def postprocess(
        self,
        outputs: Tensors,
        inputs: Tensors,
        instances: Sequence[Image.Image],
        parameters: Values,
    ) -> list[Any]:
        """Return the detections of each image, highest score first. Raise InferenceFailed if the
        outputs have infinite or NaN values, or another number of classes than the labels."""
        logits = self.of_each(outputs, LOGITS)
        boxes = self.of_each(outputs, BOXES)
        if mismatch := self._mismatch(logits.shape[-1]):
            raise InferenceFailed(mismatch)
        return [
            self._detect(own_logits, own_boxes, size_as_sent(image), parameters)
            for own_logits, own_boxes, image in zip(logits, boxes, instances, strict=True)
        ]

    def _detect(
        self, logits: Floats, boxes: Floats, size: tuple[int, int], parameters: Values
    ) -> dict[str, Any]:
        """Return the prediction for one image, whose `size` is (width, height)."""
        indices, classes, scores = self._ranked(logits)
        is_confident = scores > parameters["confidence"]
        kept = np.flatnonzero(is_confident)[: parameters["max_detections"]]
        kept_boxes = boxes[indices[kept]]
        centres = kept_boxes[:, :2]
        half = kept_boxes[:, 2:] / 2
        sides = np.array([*size, *size], np.float32)
        shares = np.concatenate((centres - half, centres + half), 1)
        corners = np.clip(shares * sides, 0, sides)
        return {
            "detections": detections_of(self.labels, classes[kept], scores[kept], corners),
            "image": {"width": size[0], "height": size[1]},
        }

    def _ranked(self, logits: Floats) -> tuple[Indices, Indices, Floats]:
        """Return the indices of boxes, with their classes and scores, highest score first. With
        sigmoid scores, a box may occur once for each class."""
        if self.options["scores"] == "sigmoid":
            scores = sigmoid(logits).ravel()
            most = self.options["queries"] or len(logits)
            best = np.argsort(-scores, kind="stable")[:most]
            indices, classes = np.divmod(best, logits.shape[1])
            return indices, classes, scores[best]
        by_class = softmax(logits)[:, :-1]  # the last class means no object
        best = np.argsort(-by_class.max(1), kind="stable")
        ranked = by_class[best]
        return best, ranked.argmax(1), ranked.max(1)

    def draw(self, instance: Image.Image, prediction: Any) -> Image.Image:
        """Return the image with a box and a label for each detection."""
        return draw(instance, prediction["detections"])
