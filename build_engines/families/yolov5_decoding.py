# mypy: allow-subclassing-any
"""A YOLOv5 network's output maps -> a table of all boxes, or of those with the best scores.

A cell is a place in a map. The network's output is copied several times on its way to the client, and hardly any of
YOLOv5's 25,200 boxes (9 MB with 80 classes) are detections. So the best boxes are chosen before decoding.
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

BINS = 16  # of the anchor-free head, for each side of a box


class Decoded(nn.Module):
    """A network as RGB pixels UINT8 [N,3,H,W] -> a table of at most `boxes` boxes; 0: all boxes."""

    def __init__(self, network: nn.Module, boxes: int = 0):
        super().__init__()
        self.network, self.boxes = network, boxes

    def forward(self, pixels: Tensor) -> Tensor:
        table: Tensor = self.network.decoded(pixels.float() * (1 / 255), self.boxes)
        return table


def best(scores: Tensor, count: int) -> Tensor:
    """Scores [N,M] -> the indices of the `count` highest [N,min(count,M)], unordered."""
    return scores.topk(min(count, int(scores.shape[1])), 1, sorted=False).indices


def picked(table: Tensor, chosen: Tensor, dim: int = 1) -> Tensor:
    """The rows (dim 1) or columns (dim 2) of each table in [N,M,D] or [N,D,M] at its indices `chosen` [N,K]."""
    size = [-1, -1, -1]
    size[3 - dim] = int(table.shape[3 - dim])
    return table.gather(dim, chosen.unsqueeze(3 - dim).expand(*size))


def cells_of(sizes: Sequence[tuple[int, int]], strides: Sequence[int]) -> list[Tensor]:
    """The cells of each map of (height, width), [height*width,3]: x, y, stride."""
    return [_cells(height, width, stride) for (height, width), stride in zip(sizes, strides, strict=True)]


def _cells(height: int, width: int, stride: int) -> Tensor:
    y, x = torch.meshgrid(torch.arange(height), torch.arange(width), indexing="ij")
    return torch.stack((x, y, torch.full_like(x, stride)), -1).reshape(-1, 3).float()


def with_anchors(cells: Tensor, anchors: Sequence[Sequence[float]]) -> Tensor:
    """Cells [M,3] -> a row for each cell and anchor [3*M,5]: x, y, stride, the anchor's width and height."""
    return torch.cat([torch.cat((cells, torch.tensor(each).float().expand(len(cells), 2)), 1) for each in anchors])


def decode(logits: Tensor, cells: Tensor) -> Tensor:
    """Logits [N,M,5+C] of cells with anchors, [M,5] or [N,M,5] -> rows [N,M,5+C], s = sigmoid:
    xy = (2s - 0.5 + cell) * stride, wh = (2s)^2 * anchor; the rest is s."""
    cells = cells.to(logits.device)
    centre, span, scores = logits.sigmoid().split((2, 2, int(logits.shape[2]) - 4), -1)
    corner, stride, anchor = cells[..., :2] - 0.5, cells[..., 2:3], cells[..., 3:]
    return torch.cat(((2 * centre + corner) * stride, (2 * span) ** 2 * anchor, scores), -1)


def decode_free(bins: Tensor, scores: Tensor, cells: Tensor) -> Tensor:
    """Bins [N,64,M] and class logits [N,C,M] of cells [M,3] or [N,M,3] -> [N,4+C,M]. The distances left, top, right,
    bottom from a cell's middle are the bins' expectations, in cells."""
    cells = cells.to(bins.device).transpose(-1, -2)
    weights = bins.reshape(-1, 4, BINS, int(bins.shape[2])).softmax(2)
    distances = (weights * torch.arange(BINS, dtype=torch.float32, device=bins.device).view(1, 1, BINS, 1)).sum(2)
    low, high = distances.split((2, 2), 1)
    middle, stride = cells[..., :2, :] + 0.5, cells[..., 2:, :]
    return torch.cat(((middle + (high - low) / 2) * stride, (low + high) * stride, scores.sigmoid()), 1)
