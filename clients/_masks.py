"""Computes the outlines of a segmentation head's masks (YOLACT, Bolya et al. 2019), and the size of
a map of classes.

A pixel of the box belongs to its mask if the network's prototypes, each multiplied by the box's
coefficient for it, add up to more than 0 there.
"""

import math
from collections.abc import Sequence

import cv2
import numpy as np

from clients._boxes import Letterbox
from clients.base import Array, Floats, in_time

Polygons = list[list[float]]
MOST_PIXELS = 2**21  # maximum number of pixels in a map of classes


def outlines(
    boxes: Floats, coefficients: Floats, prototypes: Array, fit: Letterbox
) -> list[Polygons]:
    """Return the outer edges of each box's mask as lists [x1, y1, x2, y2, …] in pixels of the
    image, largest first. `boxes` [n,4] are in pixels of the network's input. `coefficients` are
    [n,M], and `prototypes` are [M,height,width]."""
    flat = prototypes.astype(np.float32).reshape(len(prototypes), -1)
    polygons = []
    for box, row in in_time(zip(boxes.tolist(), coefficients, strict=True), every=1):
        levels = (row @ flat).reshape(prototypes.shape[1:])
        polygons.append(_outline(box, levels, fit))
    return polygons


def map_size(width: int, height: int) -> tuple[int, int]:
    """Return the width and height that the map of classes has for an image of `width` ×
    `height`."""
    factor = min(1.0, (MOST_PIXELS / (width * height)) ** 0.5)
    return max(1, int(width * factor)), max(1, int(height * factor))


def _outline(box: Sequence[float], levels: Floats, fit: Letterbox) -> Polygons:
    """Return the outer edges of one box's mask, whose pixels are those with `levels` above 0."""
    left = max(math.floor(box[0]), 0)
    top = max(math.floor(box[1]), 0)
    right = min(math.ceil(box[2]), fit.target_width)
    bottom = min(math.ceil(box[3]), fit.target_height)
    if left >= right or top >= bottom:
        return []
    inside = _enlarged(levels, (left, top, right, bottom), fit) > 0
    edges, _ = cv2.findContours(
        inside.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE, offset=(left, top)
    )
    polygons = [edge for edge in edges if len(edge) > 2]
    polygons.sort(key=cv2.contourArea, reverse=True)
    return [_in_image(edge, fit) for edge in polygons]


def _in_image(edge: Array, fit: Letterbox) -> list[float]:
    """Return an edge as [x1, y1, x2, y2, …] in pixels of the image. The points are the centres of
    the edge's pixels."""
    centres = edge.reshape(-1, 2).astype(np.float32) + 0.5
    points = fit.points_to_image(centres).astype(np.float64).round(2)
    numbers: list[float] = points.ravel().tolist()
    return numbers


def _enlarged(levels: Floats, part: tuple[int, int, int, int], fit: Letterbox) -> Array:
    """Enlarge a mask bilinearly to the network's input. Return only `part` of it: the pixels from
    (left, top) to (right, bottom)."""
    left, top, right, bottom = part
    height, width = levels.shape
    # in coordinates of the mask: the distance between adjacent pixels of the input, and the
    # position of the part's first pixel
    step = np.array([width / fit.target_width, height / fit.target_height])
    first = (np.array([left, top]) + 0.5) * step - 0.5
    grid = np.column_stack((np.diag(step), first))
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    values: Array = cv2.warpAffine(
        levels, grid, (right - left, bottom - top), flags=flags, borderMode=cv2.BORDER_REPLICATE
    )
    return values
