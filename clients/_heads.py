"""Which head a detector's network has, by the shapes of its outputs; `head_of` decides it alone.

    rows     [25200, 5+C]   cx, cy, w, h, objectness, class scores    YOLOv5
    columns  [4+C, 8400]    cx, cy, w, h, class scores                YOLOv5u, YOLOv8, v9, 11

All others are refused with what they are and what to do. Sources: the exporters of ultralytics/yolov5 (releases 6 and
7) and ultralytics 8.3, and their documentation of each task's output.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from serving.errors import InvalidRequest

ROWS, COLUMNS, AUTO = "yolov5", "yolov5u", "auto"  # the setting `layout`
BOX = {ROWS: 5, COLUMNS: 4}  # values of a box before its class scores
MASKS = 32  # coefficients of a box in a segmentation head
KEYPOINTS = (2, 3)  # values of one
PERSON = 1 + 17 * 3  # a pose head for COCO: one class, 17 keypoints
COCO = 80
FINAL = (6, 7, 6 + MASKS, 6 + 17 * 3)  # of a box after NMS: corners, score, class; 7: and the image; masks; keypoints
MOST_FINAL = 1000  # boxes after NMS; a network has thousands before it
DETECTION = (
    "export the detection model (yolo export model=yolov8n.pt format=onnx), or build it without --client: then it "
    "takes and gives tensors"
)

Shape = Sequence[int]


@dataclass(frozen=True)
class Head:
    """`layout` is ROWS or COLUMNS; `classes` -1 where the shape does not say."""

    layout: str
    classes: int


def head_of(shape: Shape, others: Sequence[Shape], layout: str, labels: int) -> Head:
    """The head of a network whose first output has this shape, without the batch dimension of Triton, and whose
    `others` have these; `layout` is the setting, `labels` how many there are, 0 where they are unknown. Raises
    InvalidRequest."""
    shape, others = _without_batch(shape, 2), [_without_batch(other, 3) for other in others]
    table = tuple(shape)
    if any(len(other) == 3 for other in others):
        raise refused(shape, "comes with prototypes of masks: it is a segmentation head", DETECTION)
    if len(table) == 2 and 4 in (table[1], *(other[-1] for other in others if len(other) == 2)):
        raise refused(shape, "has its boxes and its scores in two outputs, as DETR or an export with NMS", DETECTION)
    if len(table) != 2:
        raise refused(shape, "is no table of boxes: a classifier's or a segmentation's scores", DETECTION)
    head = _head(table, layout)
    if layout == AUTO and _is_final(table, head.classes == labels):
        remedy = "export it without NMS (nms=False end2end=False); if it is YOLOv5's own table: --set layout=yolov5"
        raise refused(shape, "looks like boxes after NMS: it is an end-to-end head", remedy)
    if head.classes == 0:
        raise refused(shape, "has too few columns for boxes and classes", DETECTION)
    if what := _surplus(head, labels):
        raise refused(shape, what, DETECTION)
    return head


def _without_batch(shape: Shape, rank: int) -> Shape:
    """A model's own batch dimension is 1 or variable."""
    return tuple(shape)[1:] if len(shape) == rank + 1 and shape[0] in (1, -1) else tuple(shape)


def _head(table: Shape, layout: str) -> Head:
    if layout == AUTO:
        layout = COLUMNS if 0 < table[0] < table[1] else ROWS
    values = table[1] if layout == ROWS else table[0]
    return Head(layout, -1 if values == -1 else max(values - BOX[layout], 0))


def _is_final(table: Shape, fits_labels: bool) -> bool:
    few = 0 < table[0] <= MOST_FINAL and table[1] in FINAL
    return few and not (fits_labels and table[1] > max(FINAL[:2]))


def _surplus(head: Head, labels: int) -> str:
    """What the values of a box are beside class scores; "" where there seem to be none, or nobody knows."""
    if not labels:
        known = {COCO + MASKS: "80 classes and 32 mask coefficients: a segmentation head"}
        known |= {PERSON: "a person and 17 keypoints: a pose head"} if head.layout == COLUMNS else {}
        what = known.get(head.classes, "")
        return f"looks like {what} (if it has {head.classes} classes, say them in --labels)" if what else ""
    more = head.classes - labels
    if more == MASKS:
        return f"has {MASKS} values beside {labels} classes: mask coefficients of a segmentation head"
    if head.layout == COLUMNS and more == 1:
        return f"has one value beside {labels} classes: the angle of an oriented box (obb)"
    if head.layout == COLUMNS and more > 1 and any(more % values == 0 for values in KEYPOINTS):
        return f"has scores of {head.classes} classes for {labels} labels, or {more} values of a pose head's keypoints"
    return ""


def refused(shape: Shape, what: str, remedy: str) -> InvalidRequest:
    return InvalidRequest(f"the output {list(shape)} {what}, and this client serves boxes with class scores; {remedy}")
