"""Decodes the boxes in a detector's output (`candidates`). The shapes of the network's outputs say
which head it has (`head_of`).

    rows     [25200, 5+C]   cx, cy, w, h, objectness, class scores    YOLOv5
    columns  [4+C, 8400]    cx, cy, w, h, class scores                YOLOv5u, v8, v9, 11
    final    [300, 6]       xmin, ymin, xmax, ymax, score, class      YOLOv10, YOLO26, any with NMS

After these values a box may have 32 mask coefficients, for prototypes [32, 160, 160] in a second
output, or keypoints, which only the setting `keypoints` distinguishes from class scores. All other
heads are refused with a message that says what they are and what to do. Sources: the exporters of
ultralytics/yolov5 (releases 6 and 7) and ultralytics 8.3, and their documentation of each task's
output.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from serving.errors import InvalidRequest

ROWS, COLUMNS, FINAL, AUTO = "yolov5", "yolov5u", "end2end", "auto"  # the setting `layout`
# values before a box's class scores; FINAL has no class scores
BOX = {ROWS: 5, COLUMNS: 4, FINAL: 6}
MASKS = 32  # coefficients of a box in a segmentation head
PERSON = 1 + 17 * 3  # a class score and 17 keypoints of 3 values, in a pose head for COCO
COCO = 80
# column counts of boxes after NMS that are not served: with an angle or the image's number, with
# masks, with keypoints
STRANGE_FINAL = (7, 6 + MASKS, 6 + 17 * 3)
MOST_FINAL = 1000  # most boxes after NMS; before NMS there are thousands
DETECTION = (
    "export the detection model (yolo export model=yolov8n.pt format=onnx), or build it "
    "without --client, to serve tensors"
)
POSE = "if it has keypoints, say how many and the values of each: --set keypoints=17,3"

Shape = Sequence[int]


@dataclass(frozen=True)
class Head:
    """The form of a detector's output. `layout` is ROWS, COLUMNS or FINAL. `classes` is the number
    of classes, or -1 if the shape does not say. After its class scores, a box has `masks` mask
    coefficients, and keypoints; `keypoints` is (number of keypoints, values of each)."""

    layout: str
    classes: int
    masks: int = 0
    keypoints: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class Candidates:
    """The boxes [n,4] of an image, as corners in the network's input, with their scores and classes
    [n]. `extras` are the values after the class scores."""

    boxes: NDArray[np.float32]
    scores: NDArray[np.float32]
    classes: NDArray[np.intp]
    extras: NDArray[np.float32]

    def take(self, which: Any) -> "Candidates":
        """Return the candidates that an index, a slice or a mask selects."""
        return Candidates(
            boxes=self.boxes[which],
            scores=self.scores[which],
            classes=self.classes[which],
            extras=self.extras[which],
        )


def head_of(
    shape: Shape,
    others: Sequence[Shape],
    layout: str,
    labels: int,
    keypoints: tuple[int, int] = (0, 0),
) -> Head:
    """Return the head of a network whose first output has this `shape`, without Triton's batch
    dimension, and whose other outputs have the shapes `others`. `layout` and `keypoints` are the
    settings, `labels` is the number of labels, or 0 if they are unknown. Raise InvalidRequest if
    the head is not supported."""
    table = without_batch(shape, 2)
    others = [without_batch(other, 3) for other in others]
    maps = [other[0] for other in others if len(other) == 3]
    masks = maps[0] if maps else 0
    if masks == -1:
        masks = MASKS
    if len(table) != 2:
        flaw = "is not a table of boxes: it has a classifier's or a segmentation's scores"
        raise refused(table, flaw, DETECTION)
    widths = [other[-1] for other in others if len(other) == 2]
    if 4 in (table[1], *widths):
        flaw = "has its boxes and its scores in two outputs, as DETR or an export with NMS"
        raise refused(table, flaw, DETECTION)
    head = _head(table, layout, masks, keypoints, labels)
    is_guessed = layout == AUTO and head.layout != FINAL
    if is_guessed and _is_strange(table, head.classes == labels):
        raise _after_nms(table)
    if head.classes == 0:
        raise refused(table, "has too few columns for boxes and classes", DETECTION)
    if surplus := _surplus(head, labels):
        raise refused(table, surplus, DETECTION)
    return head


def _after_nms(table: Shape) -> InvalidRequest:
    """Return the error for a table that seems to hold boxes after NMS, but in another form than
    FINAL."""
    if table[1] == BOX[FINAL] + 1:
        flaw = "has a seventh value after NMS: the angle of an oriented box (obb)"
        return refused(table, f"{flaw}, or the number of the image", DETECTION)
    flaw = "looks like boxes after NMS, with more than corners, score and class"
    remedy = (
        f"export it without NMS (nms=False end2end=False); {POSE}; a table of YOLOv5: "
        "--set layout=yolov5"
    )
    return refused(table, flaw, remedy)


def without_batch(shape: Shape, rank: int) -> Shape:
    """Return the shape without the model's own batch dimension, which is 1 or variable."""
    has_batch = len(shape) == rank + 1 and shape[0] in (1, -1)
    return tuple(shape)[int(has_batch) :]


def _head(table: Shape, layout: str, masks: int, keypoints: tuple[int, int], labels: int) -> Head:
    more = masks + keypoints[0] * keypoints[1]
    end_to_end = BOX[FINAL] + more
    if layout == AUTO:
        layout = COLUMNS if 0 < table[0] < table[1] else ROWS
        in_columns = table[0] - BOX[COLUMNS] - more
        in_rows = table[1] - BOX[ROWS] - more
        if labels and in_columns != in_rows:
            layout = {in_columns: COLUMNS, in_rows: ROWS}.get(labels, layout)
        may_be_few = table[0] == -1 and labels > 1
        few = may_be_few or 0 < table[0] <= MOST_FINAL
        if few and table[1] == end_to_end:
            layout = FINAL
    values = table[0] if layout == COLUMNS else table[1]
    if layout != FINAL:
        classes = max(values - BOX[layout] - more, 0)
        return Head(layout, -1 if values == -1 else classes, masks, keypoints)
    if values not in (-1, end_to_end):
        flaw = f"has {values} columns, and an end-to-end head has {end_to_end}"
        raise refused(table, flaw, POSE)
    return Head(layout, -1, masks, keypoints)


def _is_strange(table: Shape, fits_labels: bool) -> bool:
    few = 0 < table[0] <= MOST_FINAL and table[1] in STRANGE_FINAL
    return few and not (fits_labels and table[1] > STRANGE_FINAL[0])


def _surplus(head: Head, labels: int) -> str:
    """Describe, for an error message, what a box seems to contain besides class scores. Return ""
    if it seems to contain nothing else, or if that is unknown."""
    if not labels:
        kind = ""
        if head.classes == COCO + MASKS:
            kind = "80 classes and 32 mask coefficients: a segmentation head without its prototypes"
        if head.classes == PERSON and head.layout == COLUMNS:
            kind = f"a person and 17 keypoints: a pose head; {POSE}"
        remedy = f"if it has {head.classes} classes, name them with --labels"
        return f"looks like {kind} ({remedy})" if kind else ""
    more = head.classes - labels
    if more == MASKS:
        return (
            f"has {MASKS} values besides {labels} classes: mask coefficients without their "
            "prototypes"
        )
    if head.layout == COLUMNS and more == 1:
        return f"has one value besides {labels} classes: the angle of an oriented box (obb)"
    are_points = more > 1 and 0 in (more % 2, more % 3)
    if head.layout == COLUMNS and are_points:
        return (
            f"has scores of {head.classes} classes for {labels} labels, or {more} values of "
            f"keypoints; {POSE}"
        )
    return ""


def refused(shape: Shape, flaw: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(
        f"the output {list(shape)} {flaw}, and this client serves boxes with class scores; {remedy}"
    )


def candidates(table: NDArray[Any], head: Head, confidence: float) -> Candidates:
    """Return the boxes of a table with a score above `confidence`, each with its best class. Scores
    are compared in FP32, because NumPy would round `confidence` to an FP16 table's datatype."""
    if head.layout == FINAL:
        rows = _above(table, table[:, 4], confidence)
        return Candidates(
            boxes=rows[:, :4],
            scores=rows[:, 4],
            classes=rows[:, 5].astype(np.intp),
            extras=rows[:, 6:],
        )
    more = head.masks + head.keypoints[0] * head.keypoints[1]
    if head.layout == ROWS:
        # no score exceeds objectness
        rows = _above(table, table[:, 4], confidence)
        end = rows.shape[1] - more
        objectness = rows[:, 4:5]
        merits = rows[:, 5:end] * objectness
    else:
        end = table.shape[0] - more
        rows = _above(table.T, table[4:end].max(0), confidence)
        merits = rows[:, 4:end]
    classes = merits.argmax(1)
    scores = merits[np.arange(len(merits)), classes]
    half = rows[:, 2:4] / 2
    centres = rows[:, :2]
    boxes = np.concatenate((centres - half, centres + half), 1)
    every = Candidates(boxes, scores, classes, rows[:, end:])
    return every.take(scores > confidence)


def _above(rows: NDArray[Any], merits: NDArray[Any], confidence: float) -> NDArray[np.float32]:
    """Return the rows whose merit is above `confidence`, in FP32."""
    return rows[merits.astype(np.float32) > confidence].astype(np.float32)
