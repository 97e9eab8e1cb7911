# mypy: allow-subclassing-any
"""Builds models from checkpoints of YOLOv5, release 6 or 7, with three strides.

YOLOv5's own packages are licensed under the AGPL, and are not imported. The network here follows
the published structure and uses the same names, so a checkpoint's tensors can be loaded directly.
Its width, depth, classes and anchors follow from the tensors.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, max_pool2d

from build_engines.errors import BuildError, UsageError, first_line
from build_engines.families.bundled import copy_example
from build_engines.families.family import Family
from build_engines.families.torch_export import export_onnx
from build_engines.labels import write_labels
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.weights import Weights
from clients._labels import DEFAULT_LABELS

MAX_BATCH_SIZE = 8
SIDE = 640
STRIDES = (8, 16, 32)
# maximum number of boxes that the network returns; hardly any of the others would be a detection
BOXES = 1000


def write_model(_: Family, weights: Weights, request: Request, folder: Path) -> ModelSpec:
    """Write the model folder's files, and return the ModelSpec. Raise UsageError if --size is not a
    multiple of the largest stride, and BuildError if the file is not a checkpoint of YOLOv5."""
    side = request.size or SIDE
    if side < STRIDES[-1] or side % STRIDES[-1]:
        raise UsageError(f"--size {side}: YOLOv5's input is a multiple of {STRIDES[-1]}")
    network, labels = read(weights.path)
    model = folder / "1" / "model.onnx"
    # the name or size of the first dimension, and its size during tracing
    batch, rows = ("batch", 2) if request.max_batch_size else (1, 1)
    shape = (batch, 3, side, side)
    example = torch.zeros((rows, 3, side, side), dtype=torch.uint8)
    export_onnx(network, {"images": example}, {"images": shape}, ["output0"], model)
    copy_example("yolov5", folder)
    write_labels(folder / DEFAULT_LABELS, labels, request.labels)
    return ModelSpec(max_batch_size=MAX_BATCH_SIZE, settings={"layout": "yolov5"})


class Placeholder:
    """Replaces an object whose class is not imported. It only keeps the object's state."""

    def __init__(self, *_: Any) -> None:
        self.state: Mapping[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, Mapping) else {}


def read(path: Path) -> "tuple[YoloV5, tuple[str, ...]]":
    """Return the network with the checkpoint's weights, and the checkpoint's class names, or () if
    it does not have one for each class.

    torch's restricted unpickler runs no code from the file. It uses Placeholder for each class that
    it does not allow. Raise BuildError if the file is not a checkpoint of YOLOv5, release 6 or 7.
    """
    try:
        unknown = torch.serialization.get_unsafe_globals_in_checkpoint(path)
        with torch.serialization.safe_globals([(Placeholder, name) for name in unknown]):
            saved = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as err:  # a damaged file raises many kinds of exceptions
        raise _refused(path, first_line(err)) from err
    model = saved
    if isinstance(saved, Mapping):
        # prefer the averaged model, as YOLOv5's own loader does
        model = saved.get("ema") or saved.get("model")
    if not isinstance(model, Placeholder) or "_modules" not in model.state:
        raise _refused(path, "it holds no model under 'ema' or 'model'")
    tensors = dict(_tensors(model))
    try:
        network = YoloV5(tensors)
        # the network keeps its anchors and strides outside of its state_dict
        separate = ("model.24.anchor", "model.24.stride")
        state = {name: value for name, value in tensors.items() if not name.startswith(separate)}
        network.load_state_dict(state)
    except (KeyError, RuntimeError, IndexError, ValueError) as err:
        reason = " ".join(str(err).split())[:300]
        raise _refused(path, f"it does not fit the published structure: {reason}") from err
    return network.eval(), _names(model, network.classes)


def _tensors(module: Placeholder, prefix: str = "") -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) for every parameter and buffer, named as in the module's state_dict."""
    for kind in ("_parameters", "_buffers", "_modules"):
        for name, value in (module.state.get(kind) or {}).items():
            if isinstance(value, Placeholder):
                yield from _tensors(value, f"{prefix}{name}.")
            elif isinstance(value, Tensor):
                yield f"{prefix}{name}", value


def _refused(path: Path, why: str) -> BuildError:
    return BuildError(
        f"{path} is not a detector of YOLOv5, release 6 or 7, at three strides: {why}; "
        f"where it was trained, write an ONNX file (yolo export model={path.name} "
        f"format=onnx) and build that: --weights {path.stem}.onnx --client yolov5"
    )


def _names(model: Placeholder, classes: int) -> tuple[str, ...]:
    """Return the checkpoint's class names, or () if it does not have one for each class."""
    names = model.state.get("names")
    if isinstance(names, Mapping):
        names = [names[key] for key in sorted(names)]
    if not isinstance(names, list | tuple) or len(names) != classes:
        return ()
    return tuple(map(str, names))


class Conv(nn.Module):
    """A convolution, a batch norm and SiLU. At stride 1, the default padding keeps the height and
    width."""

    def __init__(
        self,
        inputs: int,
        outputs: int,
        kernel: int = 1,
        stride: int = 1,
        padding: int | None = None,
    ) -> None:
        super().__init__()
        padding = kernel // 2 if padding is None else padding
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, bias=False)
        self.bn = nn.BatchNorm2d(outputs, eps=1e-3)

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.silu(self.bn(self.conv(x)))


class Bottleneck(nn.Module):
    """A 1×1 and a 3×3 convolution. If `residual`, their result is added to the input."""

    def __init__(self, channels: int, residual: bool) -> None:
        super().__init__()
        self.cv1 = Conv(channels, channels)
        self.cv2 = Conv(channels, channels, 3)
        self.residual = residual

    def forward(self, x: Tensor) -> Tensor:
        y = self.cv2(self.cv1(x))
        return x + y if self.residual else y


class C3(nn.Module):
    """A cross-stage partial block of two branches, each with half as many channels as the output.
    One branch goes through `depth` bottlenecks, and the other bypasses them."""

    def __init__(self, inputs: int, outputs: int, depth: int, residual: bool = True) -> None:
        super().__init__()
        hidden = outputs // 2
        self.cv1 = Conv(inputs, hidden)
        self.cv2 = Conv(inputs, hidden)
        self.cv3 = Conv(2 * hidden, outputs)
        self.m = nn.Sequential(*(Bottleneck(hidden, residual) for _ in range(depth)))

    def forward(self, x: Tensor) -> Tensor:
        deep = self.m(self.cv1(x))
        return self.cv3(torch.cat((deep, self.cv2(x)), 1))


class SPPF(nn.Module):
    """Spatial pyramid pooling: a convolution and three max poolings, one after the other. Another
    convolution reads the concatenated results of all four."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.cv1 = Conv(channels, channels // 2)
        self.cv2 = Conv(2 * channels, channels)

    def forward(self, x: Tensor) -> Tensor:
        pooled = [self.cv1(x)]
        for _ in range(3):
            pooled.append(max_pool2d(pooled[-1], 5, 1, 2))
        return self.cv2(torch.cat(pooled, 1))


class Heads(nn.Module):
    """A 1×1 convolution for each stride."""

    def __init__(self, widths: tuple[int, ...], outputs: int) -> None:
        super().__init__()
        self.m = nn.ModuleList(nn.Conv2d(width, outputs, 1) for width in widths)


class YoloV5(nn.Module):
    """The network. It takes UINT8 RGB pixels [N,3,H,W], and returns a row for each box,
    [N,boxes,5+classes]. A row holds cx, cy, w and h in pixels of the input, the objectness, and the
    class scores.

    Only the BOXES rows with the highest objectness are decoded and returned, in any order. At
    640×640, YOLOv5 has 25,200 boxes (9 MB with 80 classes). Hardly any of them is a detection, and
    the output is copied several times on its way to the client.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        strides = torch.tensor(STRIDES).reshape(3, 1, 1)
        # widths and heights in pixels; the checkpoint has them in cells
        self.anchors = tensors["model.24.anchors"].float() * strides
        # values of a box; each cell has three anchors
        self.outputs = tensors["model.24.m.0.weight"].shape[0] // 3
        self.classes = self.outputs - 5
        # numbers of output channels of the five layers that halve height and width
        halving = [tensors[f"model.{layer}.conv.weight"] for layer in (0, 1, 3, 5, 7)]
        a, b, c, d, e = map(len, halving)

        def block(layer: int, inputs: int, outputs: int, residual: bool = True) -> C3:
            """Return a block with as many bottlenecks as the checkpoint's `layer`."""
            prefix = f"model.{layer}.m."
            names = [name for name in tensors if name.startswith(prefix)]
            depth = len({name.split(".")[3] for name in names})
            return C3(inputs, outputs, depth, residual)

        layers = {
            0: Conv(3, a, 6, 2, 2),
            1: Conv(a, b, 3, 2),
            2: block(2, b, b),
            3: Conv(b, c, 3, 2),
            4: block(4, c, c),
            5: Conv(c, d, 3, 2),
            6: block(6, d, d),
            7: Conv(d, e, 3, 2),
            8: block(8, e, e),
            9: SPPF(e),
            10: Conv(e, d),
            13: block(13, 2 * d, d, False),
            14: Conv(d, c),
            17: block(17, 2 * c, c, False),
            18: Conv(c, c, 3, 2),
            20: block(20, 2 * c, d, False),
            21: Conv(d, d, 3, 2),
            23: block(23, 2 * d, e, False),
            24: Heads((c, d, e), 3 * self.outputs),
        }
        self.model = nn.ModuleDict({str(number): layer for number, layer in layers.items()})

    def forward(self, pixels: Tensor) -> Tensor:
        maps = self.maps(pixels.float() * (1 / 255))
        rows = torch.cat([self._rows(logits) for logits in maps], 1)
        cells = torch.cat([self._cells(level, logits) for level, logits in enumerate(maps)])
        count = min(BOXES, len(cells))
        chosen = rows[..., 4].topk(count, 1, sorted=False).indices
        index = chosen.unsqueeze(2).expand(-1, -1, self.outputs)
        return decode(rows.gather(1, index), cells[chosen])

    def maps(self, x: Tensor) -> list[Tensor]:
        """Return the logits [N,3*outputs,H/s,W/s] for each stride s."""
        outputs: dict[int, Tensor] = {}
        # a layer -> the earlier layer whose output is concatenated with its input
        joined = {13: 6, 17: 4, 20: 14, 23: 10}
        layers = dict(self.model.items())
        heads = layers.pop("24").m
        for name, layer in layers.items():
            number = int(name)
            if number in (13, 17):
                x = interpolate(x, scale_factor=2.0, mode="nearest")
            if number in joined:
                x = torch.cat((x, outputs[joined[number]]), 1)
            x = layer(x)
            outputs[number] = x
        inputs = [outputs[number] for number in (17, 20, 23)]
        return [head(y) for head, y in zip(heads, inputs, strict=True)]

    def _rows(self, logits: Tensor) -> Tensor:
        """Return logits [N,3*outputs,h,w] as a row for each anchor and cell, [N,3*h*w,outputs]."""
        count = _size(logits, 2) * _size(logits, 3)
        split = logits.reshape(-1, 3, self.outputs, count)
        return split.permute(0, 1, 3, 2).reshape(-1, 3 * count, self.outputs)

    def _cells(self, level: int, logits: Tensor) -> Tensor:
        """Return a row for each anchor and cell: the cell's x, y and stride, and the anchor's width
        and height."""
        rows, columns = torch.arange(_size(logits, 2)), torch.arange(_size(logits, 3))
        y, x = torch.meshgrid(rows, columns, indexing="ij")
        stride = torch.full_like(x, STRIDES[level])
        cells = torch.stack((x, y, stride), -1).reshape(-1, 3).float()
        parts = []
        for anchor in self.anchors[level]:
            sides = anchor.expand(len(cells), 2)
            parts.append(torch.cat((cells, sides), 1))
        return torch.cat(parts)


def _size(tensor: Tensor, dimension: int) -> int:
    """Return the size of a dimension, which becomes a constant in the exported file."""
    return int(tensor.shape[dimension])


def decode(logits: Tensor, cells: Tensor) -> Tensor:
    """Decode logits [N,M,5+C]. `cells` [N,M,5] holds, for each row of logits, the x, y and stride
    of its cell, and its anchor's width and height. If s is the sigmoid of a logit, xy = (2s - 0.5 +
    cell) * stride, wh = (2s)^2 * anchor, and the scores are s."""
    lengths = (2, 2, _size(logits, 2) - 4)
    centre, span, scores = logits.sigmoid().split(lengths, -1)
    cell, stride, anchor = cells.split((2, 1, 2), -1)
    xy = (2 * centre + (cell - 0.5)) * stride
    wh = (2 * span) ** 2 * anchor
    return torch.cat((xy, wh, scores), -1)
