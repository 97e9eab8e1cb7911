"""Networks that return a set of boxes: DETR, YOLOS, RT-DETR, D-FINE …"""

from typing import Any

import numpy as np

from build_engines.families.family import CLOSE, Arrays, Family, Head
from build_engines.families.image_folder import EXPORTS
from build_engines.measures import DETECTIONS, IMAGES
from clients.detr import BOXES, LOGITS

STRANGE_BOXES = 0.05  # the share of boxes that may differ


def _boxes(network: Any, images: Any) -> tuple[Any, ...]:
    output = network(images)
    return output.logits, output.pred_boxes


def _equal_sets(outputs: Arrays, wanted: Arrays, *_: Any) -> bool:
    """Compare boxes in any order. Some may differ, because the file may choose others among equally
    good ones."""
    rows = (np.concatenate(arrays, 2) for arrays in (outputs, wanted))
    for ours, theirs in zip(*rows, strict=True):
        distances = np.abs(ours[:, None] - theirs).max(2)
        largest = max(1, np.abs(theirs).max())
        is_strange = distances.min(0) > CLOSE * largest
        if is_strange.mean() > STRANGE_BOXES:
            return False
    return True


HEAD = Head(
    ("ForObjectDetection",),
    "AutoModelForObjectDetection",
    (LOGITS, BOXES),
    _boxes,
    _equal_sets,
    finds_boxes=True,
)
FAMILY = Family(
    client="detr",
    exports=EXPORTS,
    head=HEAD,
    example="efficientnet",
    from_logits=lambda _: True,
    samples=IMAGES,
    measure=lambda _: DETECTIONS,
)
