# mypy: allow-subclassing-any
"""The YOLOv5 network, release 6, written from its published structure, with the classic and the anchor-free head.

Conv, C3, SPPF and PANet are as in the papers (CSPNet arXiv:1911.11929, SPP arXiv:1406.4729, PANet arXiv:1803.01534).
Anchors, strides and parameter counts are those published with the release. The head of the "u" models is YOLOv8's. It
has branches for boxes and for classes; a box's sides are expectations over bins (Distribution Focal Loss,
arXiv:2006.04388).
"""

import math
from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from build_engines.families.yolov5_decoding import BINS, best, cells_of, decode, decode_free, picked, with_anchors

STRIDES = (8, 16, 32)
ANCHORS = (  # width, height in input pixels, found by k-means on COCO; one row per stride
    ((10, 13), (16, 30), (33, 23)),
    ((30, 61), (62, 45), (59, 119)),
    ((116, 90), (156, 198), (373, 326)),
)
SIZES = {"n": (1 / 3, 0.25), "s": (1 / 3, 0.5), "m": (2 / 3, 0.75), "l": (1.0, 1.0), "x": (4 / 3, 1.25)}  # depth, width
SIDE = 640
Anchors = Sequence[Sequence[Sequence[float]]]


class Conv(nn.Module):
    """Convolution, batch norm, SiLU; keeps the size at stride 1."""

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1, padding: int | None = None):
        super().__init__()
        padding = kernel // 2 if padding is None else padding
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.03)
        self.act = nn.SiLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.norm(self.conv(x)))

    def fuse(self) -> None:
        """Folds the batch norm into the convolution: fewer operators, the same answer in eval mode."""
        self.conv, self.norm = fuse_conv_bn_eval(self.conv, self.norm), nn.Identity()


class Bottleneck(nn.Module):
    """1×1 then 3×3, added to its input where `residual`."""

    def __init__(self, channels: int, residual: bool):
        super().__init__()
        self.narrow, self.wide, self.residual = Conv(channels, channels), Conv(channels, channels, 3), residual

    def forward(self, x: Tensor) -> Tensor:
        y = self.wide(self.narrow(x))
        return x + y if self.residual else y


class C3(nn.Module):
    """Cross-stage partial block: half of the channels go through `depth` bottlenecks, half pass by."""

    def __init__(self, inputs: int, outputs: int, depth: int, residual: bool = True):
        super().__init__()
        hidden = outputs // 2
        self.through, self.past, self.join = Conv(inputs, hidden), Conv(inputs, hidden), Conv(2 * hidden, outputs)
        self.blocks = nn.Sequential(*(Bottleneck(hidden, residual) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        return self.join(torch.cat((self.blocks(self.through(x)), self.past(x)), 1))


class SPPF(nn.Module):
    """Spatial pyramid pooling: three 5×5 max pools in a row stand for pools of 5, 9 and 13."""

    def __init__(self, channels: int):
        super().__init__()
        self.narrow, self.join = Conv(channels, channels // 2), Conv(2 * channels, channels)
        self.pool = nn.MaxPool2d(5, 1, 2)

    def forward(self, x: Tensor) -> Tensor:
        steps = [self.narrow(x)]
        for _ in range(3):
            steps.append(self.pool(steps[-1]))
        return self.join(torch.cat(steps, 1))


class Backbone(nn.Module):
    """Images [N,3,H,W] -> features at strides 8, 16 and 32."""

    def __init__(self, widths: Sequence[int], depths: Sequence[int]):
        super().__init__()
        stem, p2, p3, p4, p5 = widths
        self.to8 = nn.Sequential(
            Conv(3, stem, 6, 2, 2),
            Conv(stem, p2, 3, 2),
            C3(p2, p2, depths[0]),
            Conv(p2, p3, 3, 2),
            C3(p3, p3, depths[1]),
        )
        self.to16 = nn.Sequential(Conv(p3, p4, 3, 2), C3(p4, p4, depths[2]))
        self.to32 = nn.Sequential(Conv(p4, p5, 3, 2), C3(p5, p5, depths[3]), SPPF(p5))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        at8 = self.to8(x)
        at16 = self.to16(at8)
        return at8, at16, self.to32(at16)


class PANet(nn.Module):
    """Passes features down from coarse to fine, and back up."""

    def __init__(self, widths: Sequence[int], depth: int):
        super().__init__()
        p3, p4, p5 = widths
        self.narrow5, self.narrow4 = Conv(p5, p4), Conv(p4, p3)
        self.down4, self.down3 = C3(2 * p4, p4, depth, residual=False), C3(2 * p3, p3, depth, residual=False)
        self.step3, self.step4 = Conv(p3, p3, 3, 2), Conv(p4, p4, 3, 2)
        self.up4, self.up5 = C3(2 * p3, p4, depth, residual=False), C3(2 * p4, p5, depth, residual=False)
        self.grow = nn.Upsample(scale_factor=2.0, mode="nearest")

    def forward(self, at8: Tensor, at16: Tensor, at32: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        five = self.narrow5(at32)
        four = self.narrow4(self.down4(torch.cat((self.grow(five), at16), 1)))
        out3 = self.down3(torch.cat((self.grow(four), at8), 1))
        out4 = self.up4(torch.cat((self.step3(out3), four), 1))
        return out3, out4, self.up5(torch.cat((self.step4(out4), five), 1))


class Network(nn.Module):
    """Backbone and neck of one size; subclasses add the head."""

    def __init__(self, size: str, classes: int):
        super().__init__()
        depth, width = SIZES[size]
        self.widths = [math.ceil(channels * width / 8) * 8 for channels in (64, 128, 256, 512, 1024)]
        depths = [max(round(blocks * depth), 1) for blocks in (3, 6, 9, 3)]
        self.backbone = Backbone(self.widths, depths)
        self.neck = PANet(self.widths[2:], depths[0])
        self.classes = classes

    def fuse(self) -> Self:
        """Folds every batch norm into its convolution, in place; returns the network in eval mode."""
        self.eval()
        for module in self.modules():
            if isinstance(module, Conv):
                module.fuse()
        return self


class YoloV5(Network):
    """forward: images [N,3,H,W] in 0-1 -> logits [N,3,H/s,W/s,5+classes] for each stride s."""

    def __init__(self, size: str = "n", classes: int = 80, anchors: Anchors = ANCHORS):
        super().__init__(size, classes)
        self.heads = nn.ModuleList(nn.Conv2d(channels, 3 * (5 + classes), 1) for channels in self.widths[2:])
        self.anchors = anchors
        self._set_prior()

    def _set_prior(self) -> None:
        """Sets biases that predict few objects at first: 8 per 640×640 image, and each class at 0.6 of its share."""
        with torch.no_grad():
            for head, stride in zip(self.heads, STRIDES, strict=True):
                bias = head.bias.view(3, -1)
                bias[:, 4] = math.log(8 / (SIDE / stride) ** 2)
                bias[:, 5:] = math.log(0.6 / (self.classes - 0.99))

    def forward(self, x: Tensor) -> list[Tensor]:
        maps = self.neck(*self.backbone(x))
        return [self._rows(head(features)) for head, features in zip(self.heads, maps, strict=True)]

    def _rows(self, logits: Tensor) -> Tensor:
        height, width = map(int, logits.shape[2:])  # constants in the export
        return logits.reshape(-1, 3, 5 + self.classes, height, width).permute(0, 1, 3, 4, 2)

    def decoded(self, images: Tensor, boxes: int = 0) -> Tensor:
        """images -> [N,rows,5+classes]: cx, cy, w, h in input pixels, objectness, class scores.

        Returns only the `boxes` rows with the highest objectness, unordered; 0: all rows.
        """
        maps = self(images)
        sizes = [(int(logits.shape[2]), int(logits.shape[3])) for logits in maps]  # constants in the export
        rows = torch.cat([m.reshape(-1, 3 * h * w, 5 + self.classes) for m, (h, w) in zip(maps, sizes, strict=True)], 1)
        cells = torch.cat([with_anchors(*each) for each in zip(cells_of(sizes, STRIDES), self.anchors, strict=True)])
        if boxes:
            chosen = best(rows[..., 4], boxes)
            rows, cells = picked(rows, chosen), cells[chosen]
        return decode(rows, cells)


class Branches(nn.Module):
    """The anchor-free head of one stride: features -> logits of box bins [N,4*16,h,w] and of classes [N,C,h,w]."""

    def __init__(self, channels: int, box_width: int, score_width: int, classes: int):
        super().__init__()
        self.boxes, self.scores = _branch(channels, box_width, 4 * BINS), _branch(channels, score_width, classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.boxes(x), self.scores(x)


def _branch(channels: int, width: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(Conv(channels, width, 3), Conv(width, width, 3), nn.Conv2d(width, outputs, 1))


class YoloV5u(Network):
    """forward: images [N,3,H,W] in 0-1 -> (box bins, class logits) for each stride."""

    def __init__(self, size: str = "n", classes: int = 80):
        super().__init__(size, classes)
        first = self.widths[2]
        box_width, score_width = max(16, first // 4, 4 * BINS), max(first, min(classes, 100))
        self.heads = nn.ModuleList(Branches(n, box_width, score_width, classes) for n in self.widths[2:])
        self._set_prior()

    def _set_prior(self) -> None:
        """Sets biases that predict few objects at first: 5 per 640×640 image, equally often of each class."""
        with torch.no_grad():
            for head, stride in zip(self.heads, STRIDES, strict=True):
                head.boxes[2].bias.fill_(1.0)
                head.scores[2].bias.fill_(math.log(5 / self.classes / (SIDE / stride) ** 2))

    def forward(self, x: Tensor) -> list[tuple[Tensor, Tensor]]:
        maps = self.neck(*self.backbone(x))
        return [head(features) for head, features in zip(self.heads, maps, strict=True)]

    def decoded(self, images: Tensor, boxes: int = 0) -> Tensor:
        """images -> [N,4+classes,cells]: cx, cy, w, h in input pixels, class scores.

        Returns only the `boxes` cells with the highest class scores, unordered; 0: all cells.
        """
        maps = self(images)
        sizes = [(int(scores.shape[2]), int(scores.shape[3])) for _, scores in maps]  # constants in the export
        cells = torch.cat(cells_of(sizes, STRIDES))
        bins, scores = (torch.cat([each.flatten(2) for each in level], 2) for level in zip(*maps, strict=True))
        if boxes:
            chosen = best(scores.amax(1), boxes)
            bins, scores, cells = picked(bins, chosen, 2), picked(scores, chosen, 2), cells[chosen]
        return decode_free(bins, scores, cells)
