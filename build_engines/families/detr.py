"""Builds detectors that return a set of boxes: DETR, YOLOS, RT-DETR, D-FINE and others."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from build_engines.errors import explained
from build_engines.families.family import CLOSE, Arrays, Family, Head
from build_engines.families.image_checkpoint import WRITERS
from build_engines.measures import DETECTIONS, IMAGES
from clients.detr import BOXES, LOGITS

STRANGE_BOXES = 0.05  # maximum share of boxes that may differ


def _logits_and_boxes(network: Any, images: Any) -> tuple[Any, ...]:
    output = network(images)
    return output.logits, output.pred_boxes


def _equal_sets(outputs: Arrays, wanted: Arrays, *_: Any) -> bool:
    """Return whether the boxes and their logits are equal, in any order. A few may differ, because
    the file may choose other boxes among equally good ones."""
    rows = (np.concatenate(arrays, 2) for arrays in (outputs, wanted))
    for ours, theirs in zip(*rows, strict=True):
        distances = np.abs(ours[:, None] - theirs).max(2)
        largest = max(1, np.abs(theirs).max())
        is_strange = distances.min(0) > CLOSE * largest
        if is_strange.mean() > STRANGE_BOXES:
            return False
    return True


def _kept_boxes(processor: Any) -> dict[str, str]:
    """Return the client's settings that decide which boxes are kept. To determine them, give the
    image processor 300 boxes, each with three equally high class scores, and count how many it
    keeps."""
    import torch

    from build_engines.families.image_network import name_of

    logits = torch.full((1, 300, 3), 9.0)
    outputs = SimpleNamespace(logits=logits, pred_boxes=torch.full((1, 300, 4), 0.5))
    with explained(f"{name_of(processor)} does not say which boxes it keeps"):
        (kept,) = processor.post_process_object_detection(outputs, threshold=0.9)
    count = len(kept["scores"])
    if count == 0:  # the processor uses softmax, which gives each of three equal classes a third
        return {}
    queries = {"queries": str(count)} if count < 300 else {}
    return {"scores": "sigmoid", **queries}


HEAD = Head(
    architectures=("ForObjectDetection",),
    loader="AutoModelForObjectDetection",
    outputs=(LOGITS, BOXES),
    read=_logits_and_boxes,
    same=_equal_sets,
    settings=_kept_boxes,
)
FAMILY = Family(
    client="detr",
    writers=WRITERS,
    head=HEAD,
    example="efficientnet",
    logits=lambda _: (LOGITS,),
    samples=IMAGES,
    measure=lambda _: DETECTIONS,
)
