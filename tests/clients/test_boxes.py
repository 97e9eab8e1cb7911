"""Tests the letterbox against numbers that were computed by hand, and NMS against ONNX's own
operator."""

from functools import cache
from typing import Any

import numpy as np
import onnx.parser
import onnxruntime
import pytest

from clients._boxes import PORTION, Letterbox, nms

pytestmark = pytest.mark.unit

# width, height of the image -> new width, new height, left, top in 640×640, by hand from YOLOv5's
# rule: r = min(640/h, 640/w); round(w·r), round(h·r); left = round((640 - new width)/2 - 0.1), top
# likewise
WORKED = [
    ((640, 640), (640, 640, 0, 0)),
    ((1280, 720), (640, 360, 0, 140)),
    ((641, 480), (640, 479, 0, 80)),  # 80.5 pixels of padding: 80 above, 81 below
    ((33, 100), (211, 640, 214, 0)),  # 214.5 pixels of padding: 214 left, 215 right
    ((3, 1), (640, 213, 0, 213)),
    ((1, 1), (640, 640, 0, 0)),
    ((1, 5000), (1, 640, 319, 0)),  # at least one pixel wide
]


@pytest.mark.parametrize(("size", "expected"), WORKED)
def test_letterbox_as_yolov5_does(size: tuple[int, int], expected: tuple[int, ...]) -> None:
    fit = Letterbox.fit(*size, 640, 640)
    assert (fit.new_width, fit.new_height, fit.left, fit.top) == expected


@cache
def _onnx_nms() -> onnxruntime.InferenceSession:
    """Return a session with a single node, NonMaxSuppression."""
    model = onnx.parser.parse_model("""<ir_version: 8, opset_import: ["": 11]>
        nms (float[1, n, 4] boxes, float[1, c, n] scores, int64[1] limit, float[1] iou,
            float[1] score)
        => (int64[m, 3] kept) { kept = NonMaxSuppression (boxes, scores, limit, iou, score) }""")
    return onnxruntime.InferenceSession(
        model.SerializeToString(), providers=["CPUExecutionProvider"]
    )


def onnx_nms(boxes: Any, scores: Any, limit: int, iou: float, score: float = 0) -> Any:
    """Return rows of 0, class and box. `scores` has a row for each class."""
    feed = {
        "boxes": boxes[None],
        "scores": scores[None],
        "limit": np.array([limit]),
        "iou": np.array([iou], np.float32),
        "score": np.array([score], np.float32),
    }
    return _onnx_nms().run(None, feed)[0]


def random_case(rng: np.random.Generator, most: int) -> tuple[Any, Any, Any, float]:
    """Return up to `most` boxes with scores and classes, and an IoU threshold. Boxes are crowded.
    Some have equal scores, some are identical, some are empty, and some overlap by exactly the
    threshold."""
    count, size = int(rng.integers(0, most)), int(rng.choice([6, 40, 640]))
    low = rng.uniform(0, size, (count, 2))
    boxes = np.concatenate((low, low + rng.uniform(0, size / 2, (count, 2))), 1)
    boxes = boxes.round() if rng.random() < 0.5 else boxes
    if count and rng.random() < 0.3:
        boxes[rng.integers(count, size=count // 3)] = boxes[rng.integers(count)]
    if count and rng.random() < 0.3:
        flat = rng.integers(count, size=count // 4)
        boxes[flat, 2] = boxes[flat, 0]
    scores = rng.uniform(0.01, 1, count)
    scores = scores.round(1) + 0.01 if rng.random() < 0.5 else scores
    classes = rng.integers(0, rng.integers(1, 5), count)
    return (
        boxes.astype(np.float32),
        scores.astype(np.float32),
        classes,
        float(rng.choice([0, 0.25, 0.45, 0.5, 0.9, 1])),
    )


@pytest.mark.parametrize(("cases", "most"), [(1000, 80), (4, 4 * PORTION)])
def test_suppress_boxes_as_onnx_s_operator_in_random_cases(cases: int, most: int) -> None:
    rng = np.random.default_rng(2)
    for _ in range(cases):
        boxes, scores, classes, iou = random_case(rng, most)
        kept = nms(boxes, scores, classes, iou, most)
        assert (np.diff(scores[kept]) <= 0).all()
        for class_id in np.unique(classes):
            mine = np.where(classes == class_id)[0]
            rows = onnx_nms(boxes[mine], scores[None, mine], most, iou)
            theirs = mine[rows[:, 2]]
            assert kept[classes[kept] == class_id].tolist() == theirs.tolist()
