"""Decodes the boxes in a detector's output (`candidates`). The shapes of the network's outputs, the
settings and the number of labels determine which head it has (`head_of`).

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
# Suspicious numbers of values after BOX. They are more likely COCO's 80 classes plus mask
# coefficients, or the one class "person" plus keypoints, than class scores alone.
STRANGE = {ROWS: (80 + MASKS,), COLUMNS: (80 + MASKS, 1 + POINTS)}
ANGLE = 7  # number of columns after NMS if a box also has an angle, or its image's index
# numbers of columns after NMS if a box also has mask coefficients, or keypoints
STRANGE_FINAL = (6 + MASKS, 6 + POINTS)
MOST_FINAL = 1000  # maximum number of boxes after NMS; before NMS there are thousands
EXTRA_VALUES = "masks without their prototypes, keypoints, or the angle of an oriented box (obb)"
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
    shape_of_table = without_batch(shape, 2)
    others = [without_batch(other, 3) for other in others]
    if len(shape_of_table) != 2:
        raise refused(shape, "is not a table of boxes, but a classifier's or a segmentation's")
    height, width = shape_of_table
    widths_of_others = [other[-1] for other in others if len(other) == 2]
    if 4 in (width, *widths_of_others):  # a table of boxes alone
        raise refused(
            shape_of_table, "has boxes and scores in two outputs, as DETR or an export with NMS"
        )
    # an output with three dimensions has the prototypes
    masks = next((other[0] for other in others if len(other) == 3), 0)
    if masks == -1:
        masks = MASKS
    extras = masks + keypoints[0] * keypoints[1]
    chosen = layout
    if layout == AUTO:
        chosen = _likely_layout(height, width, extras, labels)
    values = height if chosen == COLUMNS else width
    classes = -1
    if chosen != FINAL and values != -1:
        classes = max(values - BOX[chosen] - extras, 0)
    head = Head(chosen, classes, masks, extras)
    if flaw := _flaw(height, width, head, labels, layout == AUTO):
        raise refused(shape_of_table, flaw)
    return head


def _flaw(height: int, width: int, head: Head, labels: int, is_guess: bool) -> str:
    """Return why a table [height, width] probably does not have this head, or "" if it may have it.
    `is_guess` is true if the layout was guessed, not set."""
    if head.layout == FINAL:
        wanted = BOX[FINAL] + head.extras
        is_final = width in (-1, wanted)
        return "" if is_final else f"has {width} columns, an end-to-end head has {wanted}"
    is_few = 0 < height <= MOST_FINAL
    has_extras = width in STRANGE_FINAL and head.classes != labels
    if is_guess and is_few and (has_extras or width == ANGLE):
        return f"looks like boxes after NMS, which have more than six values: {EXTRA_VALUES}"
    if head.classes in STRANGE[head.layout] and not labels:
        return f"has more values than classes, such as {EXTRA_VALUES}"
    return "has too few columns for boxes and classes" if head.classes == 0 else ""


def without_batch(shape: Shape, rank: int) -> Shape:
    """Return the shape. If it has one more dimension than `rank`, and the first is 1 or variable,
    leave out this first dimension, which is the model's own batch dimension."""
    has_batch = len(shape) == rank + 1 and shape[0] in (1, -1)
    return tuple(shape)[int(has_batch) :]


def _likely_layout(height: int, width: int, extras: int, labels: int) -> str:
    """Return the likely layout of a table [height, width]: FINAL if it has few rows of FINAL's
    width, or else the layout with as many classes as there are `labels`, or else the one that the
    shape suggests. Each box has `extras` values after its class scores."""
    # a variable number of rows may be low; but with one class, ROWS are as wide as FINAL
    may_be_few = height == -1 and labels > 1
    is_few = may_be_few or 0 < height <= MOST_FINAL
    if is_few and width == BOX[FINAL] + extras:
        return FINAL
    classes_in_columns = height - BOX[COLUMNS] - extras
    classes_in_rows = width - BOX[ROWS] - extras
    if classes_in_columns != classes_in_rows:
        if labels and labels == classes_in_columns:
            return COLUMNS
        if labels and labels == classes_in_rows:
            return ROWS
    # there are more boxes than values of a box
    return COLUMNS if 0 < height < width else ROWS


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
    centres = rows[:, :2]
    half = rows[:, 2:4] / 2
    extras = rows[:, end:]
    boxes = np.column_stack((centres - half, centres + half, best, classes, extras))
    return np.asarray(boxes[best > confidence])


def _above(rows: Array, merits: Array, confidence: float) -> Floats:
    """Return the rows whose merit is above `confidence`, in FP32."""
    return rows[merits.astype(np.float32) > confidence].astype(np.float32)
