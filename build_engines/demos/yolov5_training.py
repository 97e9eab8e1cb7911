# mypy: allow-subclassing-any
"""Trains the YOLOv5 network on pages strewn with digits, on CPU cores, from scratch.

Convolution works the same everywhere in an image, so training uses 320×320 windows of letterboxed pages: digits have
the same size as at 640×640, at a quarter of the work. Loss and target assignment are YOLOv5's as published: CIoU
(arXiv:1911.08287) on boxes, binary cross-entropy on objectness (with the box's IoU as the target) and on classes; an
object belongs to every anchor within a ratio of 4, in its cell and the two nearest neighbours.
"""

import copy
import math
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from build_engines.digits.pages import LETTERBOX, letterboxed, training_pages
from build_engines.families.yolov5_network import ANCHORS, STRIDES, YoloV5
from clients._boxes import GREY

WINDOW = 320
WINDOWS_PER_PAGE = 4
BATCH = 32
OBJECT_GAIN, CLASS_GAIN = 1.0, 0.5
BALANCE = (4.0, 1.0, 0.4)  # objectness weight per stride
RATIO = 4.0


@dataclass(frozen=True)
class Round:
    """A part of the training: batches, the learning rate's peak, the weight of the box loss."""

    steps: int
    peak_rate: float
    box_gain: float


# First classes and rough places, then exact places: half an hour on one core.
ROUNDS = (Round(1600, 2e-3, 0.05), Round(800, 1e-3, 0.3), Round(600, 1e-3, 0.3))

Sample = tuple[NDArray[np.uint8], NDArray[np.float32]]  # pixels [3,H,W]; rows of class, cx, cy, w, h in pixels


class Windows(IterableDataset[Sample]):
    """Endless windows of training pages; each worker has its own sequence."""

    def __init__(self, seed: int):
        self.seed = seed

    def __iter__(self) -> Iterator[Sample]:
        worker = get_worker_info()
        seed = self.seed + (worker.id if worker else 0)
        rng = np.random.default_rng([seed, 1])
        for page in training_pages(seed):
            pixels, boxes = letterboxed(page)
            for _ in range(WINDOWS_PER_PAGE):
                yield window(rng, pixels, boxes, page.labels)


def window(
    rng: np.random.Generator, pixels: NDArray[np.uint8], boxes: NDArray[np.float32], labels: NDArray[np.int64]
) -> Sample:
    """A window around a random digit. Paints over digits of which less than 60 % are inside, clips the others."""
    centre = rng.uniform(0, LETTERBOX, 2)
    if len(boxes):
        chosen = boxes[rng.integers(len(boxes))]
        centre = (chosen[:2] + chosen[2:]) / 2 + rng.uniform(-0.4, 0.4, 2) * WINDOW
    x, y = np.clip(centre - WINDOW / 2, 0, LETTERBOX - WINDOW).astype(int)
    cut = pixels[y : y + WINDOW, x : x + WINDOW].copy()
    shifted = boxes - np.array([x, y, x, y], np.float32)
    clipped = shifted.clip(0, WINDOW)
    visible = _area(clipped) / _area(shifted)
    for left, top, right, bottom in clipped[(visible > 0) & (visible < 0.6)].round().astype(int):
        cut[top:bottom, left:right] = GREY
    kept, classes = clipped[visible >= 0.6], labels[visible >= 0.6]
    rows = np.column_stack([classes, (kept[:, :2] + kept[:, 2:]) / 2, kept[:, 2:] - kept[:, :2]])
    return cut.transpose(2, 0, 1), rows.astype(np.float32)


def _area(boxes: NDArray[np.float32]) -> NDArray[np.float32]:
    area: NDArray[np.float32] = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    return area


def collate(samples: Sequence[Sample]) -> tuple[Tensor, Tensor]:
    """Pixels uint8 [B,3,H,W] and targets [T,6]: image, class, cx, cy, w, h."""
    images = torch.from_numpy(np.stack([pixels for pixels, _ in samples]))
    rows = [np.column_stack([np.full(len(boxes), i), boxes]) for i, (_, boxes) in enumerate(samples)]
    return images, torch.from_numpy(np.concatenate(rows).astype(np.float32))


def assign(
    targets: Tensor, anchors: Tensor, stride: int, height: int, width: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The cells that have to find the targets, at one stride.

    Returns [P,4] indices (image, anchor, row, column), [P] classes, [P,4] boxes (centre relative to the cell's
    corner, size; all in cells), [P,2] anchors in cells.
    """
    cells = anchors / stride
    image, classes, boxes = targets[:, 0], targets[:, 1], targets[:, 2:] / stride
    ratio = boxes[None, :, 2:] / cells[:, None]  # [3,T,2]
    anchor, target = torch.where(torch.maximum(ratio, 1 / ratio).amax(2) < RATIO)
    centre = boxes[target, :2]
    limit = torch.tensor([width, height])
    own = centre.long().clamp(torch.zeros(2, dtype=torch.long), limit - 1)
    side = torch.where(centre % 1 < 0.5, -1, 1)
    beside = own[:, None] + torch.diag_embed(side)  # [Q,2,2]: the nearest column, the nearest row
    spots = torch.cat((own[:, None], beside), 1)  # [Q,3,2]
    pair, nth = torch.where(((spots >= 0) & (spots < limit)).all(2))
    spot, anchor, target = spots[pair, nth], anchor[pair], target[pair]
    indices = torch.stack((image[target].long(), anchor, spot[:, 1], spot[:, 0]), 1)
    boxes = torch.cat((boxes[target, :2] - spot, boxes[target, 2:]), 1)
    return indices, classes[target].long(), boxes, cells[anchor]


def ciou(a: Tensor, b: Tensor) -> Tensor:
    """Complete IoU of boxes [P,4] given as cx, cy, w, h."""
    a1, a2, b1, b2 = a[:, :2] - a[:, 2:] / 2, a[:, :2] + a[:, 2:] / 2, b[:, :2] - b[:, 2:] / 2, b[:, :2] + b[:, 2:] / 2
    overlap = (torch.minimum(a2, b2) - torch.maximum(a1, b1)).clamp(0).prod(1)
    iou = overlap / (a[:, 2:].prod(1) + b[:, 2:].prod(1) - overlap + 1e-7)
    hull = ((torch.maximum(a2, b2) - torch.minimum(a1, b1)) ** 2).sum(1) + 1e-7
    apart = ((a[:, :2] - b[:, :2]) ** 2).sum(1)
    shape = 4 / math.pi**2 * (torch.atan(b[:, 2] / b[:, 3]) - torch.atan(a[:, 2] / (a[:, 3] + 1e-7))) ** 2
    with torch.no_grad():
        weight = shape / (1 - iou + shape + 1e-7)
    return iou - apart / hull - weight * shape


def loss(maps: Sequence[Tensor], targets: Tensor, box_gain: float) -> Tensor:
    """The sum of the three losses over the three strides, per image."""
    total = torch.zeros(())
    for logits, stride, anchors, balance in zip(maps, STRIDES, ANCHORS, BALANCE, strict=True):
        logits = logits.float()
        indices, classes, boxes, cells = assign(
            targets, torch.tensor(anchors).float(), stride, logits.shape[2], logits.shape[3]
        )
        wanted = torch.zeros(logits.shape[:4])
        if len(indices):
            picked = logits[tuple(indices.T)]
            xy, wh = 2 * picked[:, :2].sigmoid() - 0.5, (2 * picked[:, 2:4].sigmoid()) ** 2 * cells
            overlap = ciou(torch.cat((xy, wh), 1), boxes)
            wanted[tuple(indices.T)] = overlap.detach().clamp(0)
            hot = functional.one_hot(classes, logits.shape[4] - 5).float()
            total = total + box_gain * (1 - overlap).mean()
            total = total + CLASS_GAIN * functional.binary_cross_entropy_with_logits(picked[:, 5:], hot)
        total = total + OBJECT_GAIN * balance * functional.binary_cross_entropy_with_logits(logits[..., 4], wanted)
    return total


def _optimizer(network: YoloV5, rate: float) -> torch.optim.Optimizer:
    """AdamW; decay on the convolutions' weights only."""
    decayed = [p for p in network.parameters() if p.ndim > 1]
    others = [p for p in network.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.02}, {"params": others, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=rate, betas=(0.9, 0.99))


def _rate(step: int, steps: int, warm_up: int = 100) -> float:
    """Share of the peak rate: linear warm-up, then half a cosine down to 1 %."""
    if step < warm_up:
        return (step + 1) / warm_up
    return 0.01 + 0.99 * (1 + math.cos(math.pi * (step - warm_up) / max(steps - warm_up, 1))) / 2


def _follow(average: nn.Module, network: nn.Module, step: int) -> None:
    """Exponential moving average of weights and statistics, slower as training goes on."""
    keep = 0.998 * (1 - math.exp(-(step + 1) / 150))
    state = network.state_dict()
    with torch.no_grad():
        for name, value in average.state_dict().items():
            if value.dtype.is_floating_point:
                value.mul_(keep).add_(state[name], alpha=1 - keep)
            else:
                value.copy_(state[name])


def train(rounds: Sequence[Round] = ROUNDS, seed: int = 0) -> YoloV5:
    """The network of size n with ten classes, trained from scratch; each round begins with the last one's
    average."""
    torch.manual_seed(seed)
    network = YoloV5("n", classes=10)
    for number, plan in enumerate(rounds):
        network = train_round(network, plan, seed + number)
    return network


def train_round(network: YoloV5, plan: Round, seed: int) -> YoloV5:
    """The average of the network over a round of batches of 32 windows."""
    network = network.to(memory_format=torch.channels_last).train()
    average: YoloV5 = copy.deepcopy(network)
    optimizer = _optimizer(network, plan.peak_rate)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: _rate(step, plan.steps))
    loader = DataLoader(Windows(seed), BATCH, collate_fn=collate, num_workers=1, prefetch_factor=4)
    started = time.monotonic()
    for step, (images, targets) in enumerate(islice(loader, plan.steps)):
        pixels = (images.float() / 255).to(memory_format=torch.channels_last)
        with torch.autocast("cpu", torch.bfloat16):
            maps = network(pixels)
        value = loss(maps, targets, plan.box_gain)
        optimizer.zero_grad()
        value.backward()
        nn.utils.clip_grad_norm_(network.parameters(), 10.0)
        optimizer.step()
        schedule.step()
        _follow(average, network, step)
        if step % 25 == 0:
            seconds = time.monotonic() - started
            print(f"step {step}/{plan.steps}, loss {float(value.detach()):.4f}, {seconds:.0f} s", flush=True)
    average.eval()
    return average
