"""Builds detectors that return a set of boxes: DETR, YOLOS, RT-DETR, D-FINE and others."""

from types import SimpleNamespace
from typing import Any

import numpy as np

from build_engines.errors import explained
from build_engines.families.family import CLOSE, Arrays, Family, Head
from build_engines.families.image_checkpoint import WRITERS
from build_engines.measures import DETECTIONS, IMAGES
from clients.detr import BOXES, LOGITS

DIFFERENT_BOXES = 0.05  # maximum share of an image's boxes that may differ


def _logits_and_boxes(network: Any, images: Any) -> tuple[Any, ...]:
    output = network(images)
    return output.logits, output.pred_boxes


def _are_equal_sets(outputs: Arrays, wanted: Arrays, *_: Any) -> bool:
    """Return whether the `outputs` contain each of the `wanted` boxes, with its logits, in any
    order. A share of at most DIFFERENT_BOXES may be missing, because the file may choose other
    boxes among equally good ones."""
    # for each image, a row for each box: its logits, its centre and its sides
    our_rows, their_rows = np.concatenate(outputs, 2), np.concatenate(wanted, 2)
    for ours, theirs in zip(our_rows, their_rows, strict=True):
        distances = np.abs(ours[:, None] - theirs).max(2)  # [our box, their box]
        largest = max(1, np.abs(theirs).max())
        has_no_equal = distances.min(0) > CLOSE * largest  # for each of the network's boxes
        if has_no_equal.mean() > DIFFERENT_BOXES:
            return False
    return True


def _settings_for_kept_boxes(processor: Any) -> dict[str, str]:
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
    if count >= 300:  # as many as there are boxes, which is the client's default
        return {"scores": "sigmoid"}
    return {"scores": "sigmoid", "queries": str(count)}


HEAD = Head(
    architectures=("ForObjectDetection",),
    loader="AutoModelForObjectDetection",
    outputs=(LOGITS, BOXES),
    read=_logits_and_boxes,
    same=_are_equal_sets,
    settings=_settings_for_kept_boxes,
)
FAMILY = Family(
    client="detr",
    writers=WRITERS,
    head=HEAD,
    example="efficientnet",
    logit_names=lambda _: (LOGITS,),
    samples=IMAGES,
    measure=lambda _: DETECTIONS,
)
