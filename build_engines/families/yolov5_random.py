"""Untrained YOLOv5 networks, and their export."""

import math
from itertools import islice
from pathlib import Path

import numpy as np
import torch
from torch import nn

from build_engines.families.torch_export import export_onnx
from build_engines.families.yolov5_decoding import Decoded
from build_engines.families.yolov5_network import YoloV5, YoloV5u

CALIBRATION = 6  # pages that the statistics come from
PASSING = 30  # boxes whose objectness is above 0.3, per page and on average


def network(size: str, classes: int, anchor_free: bool = False) -> YoloV5 | YoloV5u:
    """A network with random weights from a fixed seed."""
    torch.manual_seed(0)
    if anchor_free:
        return YoloV5u(size, classes)
    return _with_boxes(YoloV5(size, classes))


def _with_boxes(made: YoloV5) -> YoloV5:
    """Sets norms and biases so that a page gives some boxes, and some of them overlap."""
    from build_engines.digits.held_out_pages import held_out_pages
    from build_engines.digits.pages import letterboxed

    pages = [letterboxed(page)[0].transpose(2, 0, 1) for page in islice(held_out_pages(0), CALIBRATION)]
    images = torch.from_numpy(np.stack(pages)).float() / 255
    with torch.no_grad():
        _measure_norms(made, images)
        logits = torch.cat([rows.flatten(1, 3) for rows in made(images)], 1)
        threshold = logits[..., 4].flatten().topk(PASSING * len(pages)).values[-1]
        for head in made.heads:
            bias = head.bias.view(3, -1)
            bias[:, 4] += math.log(0.3 / 0.7) - threshold
            bias[:, 5:] = math.log(0.8 / 0.2)
    return made


def _measure_norms(made: YoloV5, images: torch.Tensor) -> None:
    """Sets the statistics of every batch norm from these images; otherwise random layers fade to a constant."""
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.momentum = None  # plain average
    made.train()(images)
    made.eval()


def write_onnx(made: YoloV5 | YoloV5u, side: int, path: Path, boxes: int = 0, batching: bool = True) -> None:
    """images UINT8 [N,3,side,side] -> output0, [N,rows,5+classes] or [N,4+classes,cells]; 0 boxes: all."""
    module = Decoded(made.fuse(), boxes)
    export_onnx(module, (3, side, side), path, ("images", "output0"), batching, torch.uint8)
