"""Finds the class of each pixel, with SegFormer or any other network that returns a map of scores
for each class."""

import base64
import io
from collections.abc import Sequence
from itertools import chain
from typing import Any

import cv2
import numpy as np
from PIL import Image

from clients._drawing import MASK_OPACITY, class_colour
from clients._image import ImageClient, Pixels
from clients._image_settings import WHOLE, check_whole
from clients._labels import LABELS, label_of, labels_mismatch, labels_of
from clients._masks import map_size
from clients.base import Floats, Model, Parameter, Tensors, Values
from serving.codecs import decode_base64, size_as_sent
from serving.errors import InferenceFailed, InvalidRequest

MOST_CLASSES = 256  # number of values that a pixel of a grey PNG may have


class Client(ImageClient):
    """Finds the class of each pixel, and the share of the image that each class has, largest first:
    `{"segments": [{"label", "class_id", "share"}, …], "map": {"b64": "…", "width", "height"},
    "image": {"width", "height"}}`. The map is a grey PNG of class ids, as large as the image but at
    most 2,097,152 pixels.

    The client uses the model's first output, [classes, height, width], and enlarges it bilinearly.
    """

    settings = (*WHOLE, LABELS)
    parameters = (Parameter("map", "png", "how the map is returned", choices=("png", "none")),)

    def __init__(self, model: Model) -> None:
        """Read settings and labels. Raise InvalidRequest if the shapes, settings and labels do not
        match, and OSError if the file that `labels` names is missing."""
        super().__init__(model)
        check_whole(self.options, self.frame)
        self.output = model.outputs[0]
        self.labels = labels_of(model, self.options["labels"])
        shape = self.shape_of_each(self.output)
        if len(shape) != 3:
            raise InvalidRequest(
                f"output '{self.output.name}' {list(shape)} is not a map of scores for each class"
            )
        if mismatch := self._mismatch(shape[0]):
            raise InvalidRequest(mismatch)

    def _mismatch(self, classes: int) -> str:
        """Return why the client cannot serve this number of classes, or "" if it can."""
        if classes == 1:
            return (
                f"output '{self.output.name}' has one channel, in which every pixel would "
                "be class 0: export it with a channel for the background too, such as "
                "torch.cat((-x, x), 1) of logits x"
            )
        if classes > MOST_CLASSES:
            return (
                f"output '{self.output.name}' has {classes} classes, and a map has at most "
                f"{MOST_CLASSES}"
            )
        return labels_mismatch(self.model, self.labels, self.output.name, classes)

    def postprocess(
        self,
        outputs: Tensors,
        inputs: Tensors,
        instances: Sequence[Image.Image],
        parameters: Values,
    ) -> list[Any]:
        """Return the segments and the map of each image. Raise InferenceFailed if the output has
        infinite or NaN values, or a number of classes that `_mismatch` rejects."""
        scores = self.of_each(outputs, self.output.name)
        if mismatch := self._mismatch(scores.shape[1]):
            raise InferenceFailed(mismatch)
        return [
            self._prediction(score, size_as_sent(image), parameters["map"] == "png")
            for score, image in zip(scores, instances, strict=True)
        ]

    def _prediction(self, scores: Floats, size: tuple[int, int], with_map: bool) -> dict[str, Any]:
        """Return the prediction of an image whose `size` is (width, height)."""
        classes = best_classes(scores, map_size(*size))
        counts = np.bincount(classes.ravel(), minlength=len(scores))
        by_count = np.argsort(-counts, kind="stable").tolist()
        segments = [
            {
                "label": label_of(self.labels, index),
                "class_id": index,
                "share": float(counts[index] / classes.size),
            }
            for index in by_count
            if counts[index]
        ]
        result: dict[str, Any] = {"segments": segments}
        if with_map:
            result["map"] = _grey_png(classes)
        return result | {"image": {"width": size[0], "height": size[1]}}

    def draw(self, instance: Image.Image, prediction: Any) -> Image.Image:
        """Return the image, tinted with the colours of its classes. Raise InvalidRequest if the
        prediction has no map."""
        if "map" not in prediction:
            raise InvalidRequest(
                "a picture is drawn from the map: leave the parameter 'map' at png"
            )
        classes = Image.open(io.BytesIO(decode_base64(prediction["map"]["b64"])))
        colours = map(class_colour, range(MOST_CLASSES))
        classes.putpalette(list(chain.from_iterable(colours)))
        tint = classes.convert("RGB").resize(instance.size, Image.Resampling.NEAREST)
        return Image.blend(instance, tint, MASK_OPACITY / 255)


def best_classes(scores: Floats, size: tuple[int, int]) -> Pixels:
    """Enlarge scores [classes, height, width] to `size` (width, height), and return the best class
    of each pixel, or the first of several that are equally good. Classes are enlarged one at a
    time, so that few maps are in memory."""
    best = np.zeros(size[::-1], np.uint8)
    highest = cv2.resize(scores[0], size, interpolation=cv2.INTER_LINEAR)
    for index, plane in enumerate(scores[1:], 1):
        level = cv2.resize(plane, size, interpolation=cv2.INTER_LINEAR)
        best[level > highest] = index
        np.maximum(highest, level, out=highest)
    return best


def _grey_png(classes: Pixels) -> dict[str, Any]:
    """Return the map for the reply: the class ids as a PNG in base64, and its size."""
    buffer = io.BytesIO()
    Image.fromarray(classes).save(buffer, "PNG")
    text = base64.b64encode(buffer.getvalue()).decode("ascii")
    return {"b64": text, "width": classes.shape[1], "height": classes.shape[0]}
