"""An official YOLOv5 checkpoint -> our own network, only from its tensors.

The release's packages are AGPL and are not imported: layers are identified by their number in the release's published
structure. Supports releases 6 and 7 and the anchor-free "u" models, with three strides (not the P6 models).
"""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from build_engines.errors import BuildError
from build_engines.families.torch_checkpoint import load_state
from build_engines.families.yolov5_network import STRIDES, YoloV5, YoloV5u
from build_engines.weights.torch_files import Placeholder, load, tensors_of

Arrays = dict[str, NDArray[Any]]
SIZE_OF_WIDTH = {16: "n", 32: "s", 48: "m", 64: "l", 80: "x"}  # channels of the first layer
LAYERS = {
    0: "backbone.to8.0",
    1: "backbone.to8.1",
    2: "backbone.to8.2",
    3: "backbone.to8.3",
    4: "backbone.to8.4",
    5: "backbone.to16.0",
    6: "backbone.to16.1",
    7: "backbone.to32.0",
    8: "backbone.to32.1",
    9: "backbone.to32.2",
    10: "neck.narrow5",
    13: "neck.down4",
    14: "neck.narrow4",
    17: "neck.down3",
    18: "neck.step3",
    20: "neck.up4",
    21: "neck.step4",
    23: "neck.up5",
}
POOLING, HEAD = 9, 24
_BLOCK = {"cv1": "through", "cv2": "past", "cv3": "join"}  # of a C3
_POOL = {"cv1": "narrow", "cv2": "join"}  # of the SPPF
_BOTTLENECK = {"cv1": "narrow", "cv2": "wide"}
_BRANCHES = {"cv2": "boxes", "cv3": "scores"}  # of the anchor-free head


def read(path: Path) -> tuple[YoloV5 | YoloV5u, tuple[str, ...]]:
    """The network with the checkpoint's weights, and its class names (none when it has none). BuildError."""
    model = _model(load(path), path)
    arrays = dict(tensors_of(model))
    if "model.0.conv.weight" not in arrays:
        raise refused(path, "it has no tensor 'model.0.conv.weight'")
    width = arrays["model.0.conv.weight"].shape[0]
    if width not in SIZE_OF_WIDTH or "model.24.m.3.weight" in arrays or "model.33.anchors" in arrays:
        raise refused(path, "it is none of the sizes n, s, m, l and x at three strides")
    network = _network(SIZE_OF_WIDTH[width], arrays, path)
    _fill(network, arrays, path)
    return network, _names(model, network.classes)


def refused(path: Path, why: str) -> BuildError:
    return BuildError(
        f"{path} is no detector of YOLOv5, release 6 or later: {why}; where it was trained, write an ONNX file (yolo "
        f"export model={path.name} format=onnx) and build that: --weights {path.stem}.onnx --client yolov5"
    )


def _model(saved: Any, path: Path) -> Placeholder:
    """The averaged model if there is one, which the release's own loader takes too."""
    found = (saved.get("ema") or saved.get("model")) if isinstance(saved, Mapping) else saved
    if not isinstance(found, Placeholder) or "_modules" not in found.state:
        raise refused(path, "it holds no model under 'ema' or 'model'")
    return found


def _network(size: str, arrays: Mapping[str, NDArray[Any]], path: Path) -> YoloV5 | YoloV5u:
    if "model.24.m.0.weight" in arrays:
        classes = arrays["model.24.m.0.weight"].shape[0] // 3 - 5
        anchors = arrays["model.24.anchors"].astype(np.float64) * np.reshape(STRIDES, (3, 1, 1))
        return YoloV5(size, classes, anchors.tolist())
    if "model.24.cv3.0.2.weight" in arrays:
        return YoloV5u(size, arrays["model.24.cv3.0.2.weight"].shape[0])
    raise refused(path, f"it has no detection head at layer {HEAD}")


def _fill(network: YoloV5 | YoloV5u, arrays: Mapping[str, NDArray[Any]], path: Path) -> None:
    """Puts every tensor into its place; BuildError when one is missing, unknown or of another shape."""
    state = {ours(name): torch.from_numpy(np.array(array)) for name, array in arrays.items() if not _left_out(name)}
    state = {name: value.float() if value.is_floating_point() else value for name, value in state.items()}
    try:
        load_state(network, state, path, "YOLOv5's published structure")
    except BuildError as err:
        raise refused(path, str(err)) from err


def _left_out(name: str) -> bool:
    """Whether the tensor follows from the structure: anchors, and the bin numbers of the "u" head."""
    return bool(re.fullmatch(r"model\.24\.(anchors|anchor_grid|strides?|dfl\.conv\.weight)", name))


def ours(name: str) -> str:
    """The release's name of a tensor in our own network: model.2.m.0.cv1.bn.bias -> backbone.to8.2.blocks.0.…"""
    _, number, rest = name.split(".", 2)
    layer = int(number)
    if layer == HEAD:
        return _head(rest)
    prefix = LAYERS.get(layer, f"layer {layer}")
    if found := re.fullmatch(r"m\.(\d+)\.(cv[12])\.(.*)", rest):
        return _norm(f"{prefix}.blocks.{found[1]}.{_BOTTLENECK[found[2]]}.{found[3]}")
    first, _, tail = rest.partition(".")
    part = (_POOL if layer == POOLING else _BLOCK).get(first)
    return _norm(f"{prefix}.{part}.{tail}" if part else f"{prefix}.{rest}")


def _head(rest: str) -> str:
    """m.0.weight of the classic head; cv2.0.1.conv.weight (boxes) and cv3… (classes) of the other."""
    if found := re.fullmatch(r"m\.(\d)\.(.*)", rest):
        return f"heads.{found[1]}.{found[2]}"
    kind, level, tail = rest.split(".", 2)
    return _norm(f"heads.{level}.{_BRANCHES.get(kind, kind)}.{tail}")


def _norm(name: str) -> str:
    return name.replace(".bn.", ".norm.")


def _names(model: Placeholder, classes: int) -> tuple[str, ...]:
    names = model.state.get("names")
    if isinstance(names, Mapping):
        names = [names[key] for key in sorted(names)]
    found = tuple(str(name) for name in names) if isinstance(names, list | tuple) else ()
    return found if len(found) == classes else ()
