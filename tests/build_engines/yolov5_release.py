# mypy: allow-subclassing-any
"""Stands in for YOLOv5's release, with its published layers and names, and writes its checkpoints.

The release's packages are licensed under the AGPL and are not used here. `Release` repeats their
published structure.
"""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

ANCHORS = [
    [[8, 9], [20, 11], [21, 40]],
    [[50, 51], [52, 110], [130, 70]],
    [[140, 150], [260, 200], [380, 390]],
]


class Conv(nn.Module):
    def __init__(self, c1: int, c2: int, k: int = 1, s: int = 1, p: int | None = None) -> None:
        super().__init__()
        self.conv = nn.Conv2d(c1, c2, k, s, k // 2 if p is None else p, bias=False)
        self.bn = nn.BatchNorm2d(c2, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return functional.silu(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    def __init__(self, c: int, shortcut: bool) -> None:
        super().__init__()
        self.cv1, self.cv2, self.shortcut = Conv(c, c), Conv(c, c, 3), shortcut

    def forward(self, x: Tensor) -> Tensor:
        return self.cv2(self.cv1(x)) + (x if self.shortcut else 0)


class C3(nn.Module):
    def __init__(self, c1: int, c2: int, n: int, shortcut: bool = True) -> None:
        super().__init__()
        self.cv1, self.cv2, self.cv3 = Conv(c1, c2 // 2), Conv(c1, c2 // 2), Conv(c2, c2)
        self.m = nn.Sequential(*[Bottleneck(c2 // 2, shortcut) for _ in range(n)])

    def forward(self, x: Tensor) -> Tensor:
        return self.cv3(torch.cat([self.m(self.cv1(x)), self.cv2(x)], 1))


class SPPF(nn.Module):
    def __init__(self, c: int) -> None:
        super().__init__()
        self.cv1, self.cv2 = Conv(c, c // 2), Conv(c * 2, c)

    def forward(self, x: Tensor) -> Tensor:
        x = self.cv1(x)
        return self.cv2(
            torch.cat([x, *(functional.max_pool2d(x, k, 1, k // 2) for k in (5, 9, 13))], 1)
        )


class Release(nn.Module):
    """The network of size n. `model` is numbered like the release's. Layers without weights are
    missing."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        layers = {
            0: Conv(3, 16, 6, 2, 2),
            1: Conv(16, 32, 3, 2),
            2: C3(32, 32, 1),
            3: Conv(32, 64, 3, 2),
            4: C3(64, 64, 2),
            5: Conv(64, 128, 3, 2),
            6: C3(128, 128, 3),
            7: Conv(128, 256, 3, 2),
            8: C3(256, 256, 1),
            9: SPPF(256),
            10: Conv(256, 128),
            13: C3(256, 128, 1, False),
            14: Conv(128, 64),
            17: C3(128, 64, 1, False),
            18: Conv(64, 64, 3, 2),
            20: C3(128, 128, 1, False),
            21: Conv(128, 128, 3, 2),
            23: C3(256, 256, 1, False),
            24: nn.Module(),
        }
        self.model = nn.Sequential(*(layers.get(number, nn.Identity()) for number in range(25)))
        strides = torch.tensor([8.0, 16.0, 32.0])
        self.model[24].m = nn.ModuleList(nn.Conv2d(c, 3 * (5 + classes), 1) for c in (64, 128, 256))
        self.model[24].register_buffer(
            "anchors", torch.tensor(ANCHORS).float() / strides.view(3, 1, 1)
        )
        self.names: Any = [f"thing {number}" for number in range(classes)]

    def forward(self, x: Tensor) -> Tensor:
        layer = self.model
        third = layer[:5](x)
        fourth = layer[5:7](third)
        fifth = layer[7:11](fourth)
        middle = layer[13:15](
            torch.cat([functional.interpolate(fifth, scale_factor=2.0), fourth], 1)
        )
        small = layer[17](torch.cat([functional.interpolate(middle, scale_factor=2.0), third], 1))
        medium = layer[20](torch.cat([layer[18](small), middle], 1))
        large = layer[23](torch.cat([layer[21](medium), fifth], 1))
        maps = zip(layer[24].m, (small, medium, large), layer[24].anchors, (8, 16, 32), strict=True)
        return torch.cat(
            [rows(head(x).sigmoid(), anchors, stride) for head, x, anchors, stride in maps], 1
        )


def rows(maps: Tensor, anchors: Tensor, stride: int) -> Tensor:
    boxes = []
    for part, anchor in zip(maps.chunk(3, 1), anchors, strict=True):
        for j in range(maps.shape[2]):
            for i in range(maps.shape[3]):
                v = part[:, :, j, i]
                xy = (v[:, :2] * 2 - 0.5 + torch.tensor([i, j])) * stride
                boxes.append(torch.cat([xy, (v[:, 2:4] * 2) ** 2 * anchor * stride, v[:, 4:]], 1))
    return torch.stack(boxes, 1)


def random_release(classes: int) -> Release:
    """Return a release whose norms and biases are random too."""
    torch.manual_seed(0)
    model = Release(classes)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, nn.BatchNorm2d):
                module.running_mean.normal_(0, 0.1)
                module.running_var.uniform_(0.5, 1.5)
                module.weight.uniform_(0.8, 1.2)
                module.bias.normal_(0, 0.1)
    model.eval()
    return model


def save(release: Release, path: Path, **changes: Any) -> Path:
    """Save a checkpoint as the release does: in half precision, with the model or its moving
    average in a dictionary."""
    torch.save(
        {"epoch": -1, "ema": None, "model": release.half(), "optimizer": None, "date": "2022"}
        | changes,
        path,
    )
    release.float()
    return path
