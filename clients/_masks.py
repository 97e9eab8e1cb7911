"""The outlines of a segmentation head's masks (YOLACT, Bolya et al. 2019).

A mask is the sum of the network's prototypes, each times a coefficient of the box, where it is above 0, inside the box.
"""

import math
from collections.abc import Sequence
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from clients._boxes import Letterbox

Polygons = list[list[float]]


def outlines(
    boxes: NDArray[np.float32], coefficients: NDArray[np.float32], prototypes: NDArray[Any], fit: Letterbox
) -> list[Polygons]:
    """For each box, in the network's input, with its coefficients [n,M] of prototypes [M,height,width]: the outer edges
    of its mask in pixels of the image, [x1, y1, x2, y2, …] each, the largest first."""
    flat = prototypes.astype(np.float32).reshape(len(prototypes), -1)
    return [
        _outline(box, (row @ flat).reshape(prototypes.shape[1:]), fit)
        for box, row in zip(boxes.tolist(), coefficients, strict=True)
    ]


def _outline(box: Sequence[float], levels: NDArray[np.float32], fit: Letterbox) -> Polygons:
    left, top = max(math.floor(box[0]), 0), max(math.floor(box[1]), 0)
    right, bottom = min(math.ceil(box[2]), fit.target_width), min(math.ceil(box[3]), fit.target_height)
    if left >= right or top >= bottom:
        return []
    inside = _enlarged(levels, (left, top, right, bottom), fit) > 0
    edges, _ = cv2.findContours(inside.astype(np.uint8), cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE, offset=(left, top))
    areas = sorted((edge for edge in edges if len(edge) > 2), key=cv2.contourArea, reverse=True)
    centres = [fit.points_to_image(edge.reshape(-1, 2).astype(np.float32) + 0.5) for edge in areas]
    return [edge.astype(np.float64).round(2).reshape(-1).tolist() for edge in centres]


def _enlarged(levels: NDArray[np.float32], part: tuple[int, int, int, int], fit: Letterbox) -> NDArray[Any]:
    """A part of the map, bilinearly enlarged to the network's input."""
    left, top, right, bottom = part
    x, y = levels.shape[1] / fit.target_width, levels.shape[0] / fit.target_height
    shift = np.array([[x, 0, (left + 0.5) * x - 0.5], [0, y, (top + 0.5) * y - 0.5]])
    flags = cv2.INTER_LINEAR | cv2.WARP_INVERSE_MAP
    size = (right - left, bottom - top)
    enlarged: NDArray[Any] = cv2.warpAffine(levels, shift, size, flags=flags, borderMode=cv2.BORDER_REPLICATE)
    return enlarged
