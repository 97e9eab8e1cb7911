"""Decodes the boxes in a detector's output (`candidates`). Which head the network has follows from
the shapes of its outputs, the settings and the number of labels (`head_of`).

    rows     [25200, 5+C]   cx, cy, w, h, objectness, class scores    YOLOv5
    columns  [4+C, 8400]    cx, cy, w, h, class scores                YOLOv5u, v8, v9, 11
    final    [300, 6]       xmin, ymin, xmax, ymax, score, class      YOLOv10, YOLO26, any with NMS

After these values, a box may have 32 mask coefficients, for prototypes [32, 160, 160] in a second
output, or keypoints. Only the setting `keypoints` tells keypoints from class scores. A shape that
looks like another head is refused with a message that says what to do. Sources: the exporters of
ultralytics/yolov5 (releases 6 and 7) and ultralytics 8.3, and their documentation of each task's
output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from clients.base import Array, Floats
from serving.errors import InvalidRequest

ROWS, COLUMNS, FINAL, AUTO = "yolov5", "yolov5u", "end2end", "auto"  # the setting `layout`
# number of values before a box's class scores or, in FINAL, before its masks and keypoints
BOX = {ROWS: 5, COLUMNS: 4, FINAL: 6}
MASKS = 32  # number of mask coefficients of a box in a segmentation head
POINTS = 17 * 3  # number of values of a person's keypoints in a pose head for COCO
# Numbers of values that are probably not class scores alone: they equal COCO's 80 classes plus mask
# coefficients, or the one class "person" plus keypoints.
STRANGE = {ROWS: (80 + MASKS,), COLUMNS: (80 + MASKS, 1 + POINTS)}
ANGLE = 7  # number of columns after NMS if a box also has an angle, or the image's number
# numbers of columns after NMS if a box also has mask coefficients, or keypoints
STRANGE_FINAL = (6 + MASKS, 6 + POINTS)
MOST_FINAL = 1000  # maximum number of boxes after NMS; before NMS there are thousands
MORE = "masks without their prototypes, keypoints, or the angle of an oriented box (obb)"
REMEDY = (
    "name its classes (--labels) or its keypoints (--set keypoints=17,3), export the detection "
    "model without NMS (yolo export model=yolov8n.pt format=onnx), or, to serve tensors, build it "
    "without --client"
)

Shape = Sequence[int]


@dataclass(frozen=True)
class Head:
    """Describes the layout of a detector's output. `layout` is ROWS, COLUMNS or FINAL. `classes` is
    the number of classes, or -1 if the shape does not determine it. After the class scores of a box
    come `extras` further values: first `masks` mask coefficients, then keypoints."""

    layout: str
    classes: int
    masks: int
    extras: int


def head_of(
    shape: Shape,
    others: Sequence[Shape],
    layout: str,
    labels: int,
    keypoints: tuple[int, int] = (0, 0),
) -> Head:
    """Return the head of a network whose first output has this `shape`, without Triton's batch
    dimension, and whose other outputs have the shapes `others`. `layout` and `keypoints` are the
    client's settings. `labels` is the number of labels, or 0 if there are none. Raise
    InvalidRequest if the head is not supported."""
    table = without_batch(shape, 2)
    others = [without_batch(other, 3) for other in others]
    if len(table) != 2:
        raise refused(shape, "is not a table of boxes, but a classifier's or a segmentation's")
    widths = [other[-1] for other in others if len(other) == 2]
    if 4 in (table[1], *widths):
        raise refused(table, "has boxes and scores in two outputs, as DETR or an export with NMS")
    masks = next((other[0] for other in others if len(other) == 3), 0)
    if masks == -1:
        masks = MASKS
    extras = masks + keypoints[0] * keypoints[1]
    chosen = _likely_layout(table, extras, labels) if layout == AUTO else layout
    values = table[0] if chosen == COLUMNS else table[1]
    classes = -1
    if chosen != FINAL and values != -1:
        classes = max(values - BOX[chosen] - extras, 0)
    head = Head(chosen, classes, masks, extras)
    if flaw := _flaw(table, head, labels, layout == AUTO):
        raise refused(table, flaw)
    return head


def _flaw(table: Shape, head: Head, labels: int, is_guess: bool) -> str:
    """Return why a table probably does not have this head, or "" if it may have it. `is_guess` is
    true if the layout was guessed, not set."""
    wanted = BOX[FINAL] + head.extras
    if head.layout == FINAL:
        is_final = table[1] in (-1, wanted)
        return "" if is_final else f"has {table[1]} columns, an end-to-end head has {wanted}"
    is_strange = table[1] in STRANGE_FINAL and head.classes != labels
    if is_guess and 0 < table[0] <= MOST_FINAL and (is_strange or table[1] == ANGLE):
        return f"looks like boxes after NMS, which have more than six values: {MORE}"
    if head.classes in STRANGE[head.layout] and not labels:
        return f"has more values than classes, such as {MORE}"
    return "has too few columns for boxes and classes" if head.classes == 0 else ""


def without_batch(shape: Shape, rank: int) -> Shape:
    """Return the shape without the model's own batch dimension, which is 1 or variable."""
    has_batch = len(shape) == rank + 1 and shape[0] in (1, -1)
    return tuple(shape)[int(has_batch) :]


def _likely_layout(table: Shape, extras: int, labels: int) -> str:
    """Return the likely layout of a table: FINAL if it has few rows of FINAL's width, or else the
    layout with as many classes as there are `labels`, or else the one that the shape suggests. Each
    box has `extras` values after its class scores."""
    # a variable number of rows may be low; but with one class, ROWS are as wide as FINAL
    may_be_few = table[0] == -1 and labels > 1
    is_few = may_be_few or 0 < table[0] <= MOST_FINAL
    if is_few and table[1] == BOX[FINAL] + extras:
        return FINAL
    in_columns = table[0] - BOX[COLUMNS] - extras
    in_rows = table[1] - BOX[ROWS] - extras
    if labels and in_columns != in_rows and labels in (in_columns, in_rows):
        return COLUMNS if labels == in_columns else ROWS
    return COLUMNS if 0 < table[0] < table[1] else ROWS


def refused(shape: Shape, flaw: str) -> InvalidRequest:
    """Return the error for an output with this shape."""
    return InvalidRequest(
        f"the output {list(shape)} {flaw}, and this client serves boxes with class scores: {REMEDY}"
    )


def candidates(table: Array, head: Head, confidence: float) -> Floats:
    """Return the boxes that have a score above `confidence`, each with its best class, as a table
    with the layout FINAL. Scores are compared in FP32, because NumPy would round `confidence` to
    the datatype of an FP16 table."""
    if head.layout == FINAL:
        return _above(table, table[:, 4], confidence)
    if head.layout == ROWS:
        # no score is higher than the objectness, so rows with a low one can be dropped first
        rows = _above(table, table[:, 4], confidence)
        end = rows.shape[1] - head.extras
        scores = rows[:, 5:end] * rows[:, 4:5]
    else:
        end = table.shape[0] - head.extras
        rows = _above(table.T, table[4:end].max(0), confidence)
        scores = rows[:, 4:end]
    best = scores.max(1)
    classes = scores.argmax(1).astype(np.float32)
    half = rows[:, 2:4] / 2
    centres = rows[:, :2]
    boxes = np.column_stack((centres - half, centres + half, best, classes, rows[:, end:]))
    return np.asarray(boxes[best > confidence])


def _above(rows: Array, merits: Array, confidence: float) -> Floats:
    """Return the rows whose merit is above `confidence`, in FP32."""
    return rows[merits.astype(np.float32) > confidence].astype(np.float32)
