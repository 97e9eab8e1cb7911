"""How well predictions fit: cosine of vectors, and COCO's average precision of detections."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
IOUS = tuple(np.linspace(0.5, 0.95, 10).round(2).tolist())  # of mAP50-95 (COCO)
RECALLS = np.linspace(0, 1, 101)  # where COCO reads precision


@dataclass(frozen=True)
class Boxes:
    """The boxes of one image: corners [n,4] in pixels, class ids [n], scores [n] (of truths: any)."""

    corners: NDArray[Any]
    classes: NDArray[Any]
    scores: NDArray[Any]


def cosine(ours: NDArray[Any], theirs: NDArray[Any]) -> float:
    """The mean over rows of the cosine between them; two rows of zeros are equal."""
    a, b = (array.reshape(len(array), -1).astype(np.float64) for array in (ours, theirs))
    lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
    both_zero = ~a.any(1) & ~b.any(1)
    return float(np.where(both_zero, 1.0, (a * b).sum(1) / np.where(lengths > 0, lengths, 1.0)).mean())


def boxes_of(detections: Sequence[dict[str, Any]]) -> Boxes:
    """A yolov5 client's `detections`."""
    corners = [[d["box"][key] for key in ("xmin", "ymin", "xmax", "ymax")] for d in detections]
    return Boxes(
        np.array(corners, float).reshape(-1, 4),
        np.array([d["class_id"] for d in detections], int),
        np.array([d["score"] for d in detections], float),
    )


def mean_average_precision(found: Sequence[Boxes], truths: Sequence[Boxes]) -> tuple[float, float]:
    """(mAP50, mAP50-95) over the classes that the truths have, by COCO's rules (Lin et al. 2014)."""
    present = sorted({int(c) for truth in truths for c in truth.classes})
    if not present:
        return 0.0, 0.0
    precisions = np.array([_class_precisions(found, truths, c) for c in present])
    return float(precisions[:, 0].mean()), float(precisions.mean())


def _class_precisions(found: Sequence[Boxes], truths: Sequence[Boxes], class_id: int) -> list[float]:
    """One for each of IOUS."""
    scores: list[float] = []
    ious: list[Floats] = []
    total = 0
    for ours, truth in zip(found, truths, strict=True):
        mine, wanted = ours.classes == class_id, truth.classes == class_id
        order = np.argsort(-ours.scores[mine], kind="stable")
        scores += ours.scores[mine][order].tolist()
        ious.append(overlaps(ours.corners[mine][order], truth.corners[wanted]))
        total += int(wanted.sum())
    best_first = np.argsort(-np.array(scores), kind="stable")
    hits = [[hit for each in ious for hit in _matches(each, iou)] for iou in IOUS]
    return [average_precision(np.array(each, bool)[best_first], total) for each in hits]


def _matches(ious: Floats, threshold: float) -> list[bool]:
    """Which detections [n], best first, find a truth [m] that no better one has taken."""
    free = np.ones(ious.shape[1], bool)
    hits = []
    for row in ious:
        candidates = np.where(free & (row >= threshold), row, 0.0)
        best = int(candidates.argmax()) if len(candidates) else 0
        hits.append(bool(len(candidates) and candidates[best] > 0))
        if hits[-1]:
            free[best] = False
    return hits


def average_precision(hits: NDArray[np.bool_], total: int) -> float:
    """Mean over 101 recalls of the best precision at that recall or beyond; `hits` best score first."""
    found = np.cumsum(hits)
    recall, precision = found / total, found / np.arange(1, len(found) + 1)
    best = np.append(np.maximum.accumulate(precision[::-1])[::-1], 0.0)
    return float(best[np.searchsorted(recall, RECALLS)].mean())


def overlaps(ours: NDArray[Any], theirs: NDArray[Any]) -> Floats:
    """IoU of boxes [n,4] with boxes [m,4]: [n,m]."""
    low = np.maximum(ours[:, None, :2], theirs[None, :, :2])
    high = np.minimum(ours[:, None, 2:], theirs[None, :, 2:])
    common = (high - low).clip(0).prod(-1)
    areas = [(boxes[:, 2:] - boxes[:, :2]).clip(0).prod(-1) for boxes in (ours, theirs)]
    union = areas[0][:, None] + areas[1][None] - common
    return np.asarray(np.divide(common, union, out=np.zeros_like(common, dtype=float), where=union > 0))
