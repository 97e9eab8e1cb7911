"""Fits an image into a detector's input (letterbox), and drops overlapping boxes (NMS).

Boxes are arrays [n,4] of xmin, ymin, xmax, ymax in pixels.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from clients._labels import label_of
from clients.base import Array, Parameter, check_time
from serving.budget import MOST_DETECTIONS

Floats = NDArray[np.floating[Any]]
Indices = NDArray[np.intp]
GREY = (114, 114, 114)  # the colour of YOLOv5's padding
CORNERS = ("xmin", "ymin", "xmax", "ymax")
PORTION = 1_024  # boxes that `nms` processes at a time; the first portion often yields enough


def confidence(default: float) -> Parameter:
    """Return the parameter `confidence`, which all detectors have."""
    return Parameter(
        "confidence", default, "return only detections with a score above it", minimum=0, maximum=1
    )


def max_detections(default: int) -> Parameter:
    """Return the parameter `max_detections`, which all detectors have."""
    return Parameter(
        "max_detections",
        default,
        "how many to return per image at most",
        minimum=1,
        maximum=MOST_DETECTIONS,
    )


def detections_of(
    labels: Sequence[str], classes: Array, scores: Array, corners: Floats
) -> list[dict[str, Any]]:
    """Return the detections for the reply, given class ids [n], scores [n], and boxes [n,4] in
    pixels of the image."""
    boxes = corners.astype(np.float64).round(2).tolist()
    return [
        {
            "label": label_of(labels, class_id),
            "class_id": class_id,
            "score": score,
            "box": dict(zip(CORNERS, box, strict=True)),
        }
        for class_id, score, box in zip(classes.tolist(), scores.tolist(), boxes, strict=True)
    ]


@dataclass(frozen=True)
class Letterbox:
    """Scales an image of `width`×`height` to `new_width`×`new_height`, and places it in a target
    with its top left corner at (`left`, `top`)."""

    width: int
    height: int
    new_width: int
    new_height: int
    left: int
    top: int
    target_width: int
    target_height: int

    @classmethod
    def fit(cls, width: int, height: int, target_width: int, target_height: int) -> "Letterbox":
        """Place an image as YOLOv5 does: both sides have the same scale, sizes are rounded, and the
        padding is split between opposite sides. If the padding is odd, the right or the bottom side
        gets the larger part (YOLOv5 subtracts 0.1 before rounding)."""
        scale = min(target_width / width, target_height / height)
        new_width = max(round(width * scale), 1)
        new_height = max(round(height * scale), 1)
        left = round((target_width - new_width) / 2 - 0.1)
        top = round((target_height - new_height) / 2 - 0.1)
        return cls(width, height, new_width, new_height, left, top, target_width, target_height)

    def apply(self, pixels: NDArray[np.uint8]) -> NDArray[np.uint8]:
        """Return the image as [target_height,target_width,3], resized bilinearly, with grey
        padding."""
        if (self.width, self.height) != (self.new_width, self.new_height):
            pixels = cv2.resize(
                pixels, (self.new_width, self.new_height), interpolation=cv2.INTER_LINEAR
            )
        bottom = self.target_height - self.top - self.new_height
        right = self.target_width - self.left - self.new_width
        framed = cv2.copyMakeBorder(
            pixels, self.top, bottom, self.left, right, cv2.BORDER_CONSTANT, value=GREY
        )
        return np.asarray(framed)

    def to_image(self, boxes: Floats) -> Floats:
        """Map boxes in the target to boxes in the image, clipped to the image."""
        return self.points_to_image(boxes.reshape(-1, 2)).reshape(boxes.shape)

    def points_to_image(self, points: Floats) -> Floats:
        """Map points [n,2] in the target to points in the image, clipped to the image."""
        shift = np.array([self.left, self.top], np.float32)
        scale_x = self.new_width / self.width
        scale_y = self.new_height / self.height
        mapped = (points - shift) / np.array([scale_x, scale_y], np.float32)
        size = np.array([self.width, self.height], mapped.dtype)
        return np.clip(mapped, 0, size)


def nms(boxes: Floats, scores: Floats, classes: Array, iou: float, limit: int) -> Indices:
    """Return the indices of at most `limit` boxes, best score first, after greedy non-maximum
    suppression within each class.

    A box is dropped if its IoU with a better box of its class is above `iou`. If two scores are
    equal, the first box is the better one. A box without an area drops no other box and is never
    dropped. (ONNX's NonMaxSuppression does the same.)
    """
    sides = boxes[:, 2:] - boxes[:, :2]
    areas: Floats = sides.clip(0).prod(1)
    order = np.argsort(-scores, kind="stable")
    kept: list[np.intp] = []

    def without_similar(others: Indices, best: np.intp) -> Indices:
        """Return `others` without the boxes that the box `best` drops."""
        similar = classes[others] == classes[best]
        # similar boxes have the same class, and overlap by more than `iou`
        similar[similar] = _iou(boxes, areas, best, others[similar]) > iou
        rest: Indices = others[~similar]
        return rest

    for start in range(0, len(order), PORTION):
        check_time()
        others = order[start : start + PORTION]
        for best in kept:
            others = without_similar(others, best)
        while len(others) and len(kept) < limit:
            kept.append(others[0])
            others = without_similar(others[1:], others[0])
        if len(kept) == limit:
            break
    return np.array(kept, np.intp)


def _iou(boxes: Floats, areas: Floats, index: np.intp, others: Indices) -> Floats:
    """Return the IoU of the box at `index` with each of `others`, or 0 if either has no area."""
    box = boxes[index]
    rest = boxes[others]
    low = np.maximum(box[:2], rest[:, :2])
    high = np.minimum(box[2:], rest[:, 2:])
    intersection = (high - low).clip(0).prod(1)
    union = areas[index] + areas[others] - intersection
    zeros = np.zeros_like(intersection)
    iou: Floats = np.divide(intersection, union, out=zeros, where=union > 0)
    return iou
