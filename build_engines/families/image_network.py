"""Any network of transformers that takes one image as ONNX, from pixels to what its client reads, exported by torch.
The only module that loads these networks and their image processors."""

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor

from build_engines.errors import BuildError, first_line
from build_engines.families.image_heads import CLOSE, HEADS, OFFLINE, OUTPUT, Head, load
from build_engines.families.torch_export import export_onnx
from build_engines.request import Request
from clients._image import INTERPOLATIONS, ImageClient
from clients.base import Model, TensorSpec
from clients.resnet import Client
from serving.errors import InvalidRequest

INPUT = "input"
TRIED = ((311, 207), (190, 333), (640, 640), (60, 47))  # widths and heights that processor and client are compared on
NAMES = {method.value: name for name, method in INTERPOLATIONS.items()}


def write_onnx(checkpoint: Path, kind: str, request: Request, path: Path) -> dict[str, str]:
    """input UINT8 [N,3,height,width] -> what the client `kind` reads, and that client's settings; BuildError."""
    processor = _processor(checkpoint)
    settings = settings_of(processor)
    check_same(processor, client_of(processor, settings))
    client, network = client_of(processor, {**settings, **request.settings}), load(checkpoint, HEADS[kind])
    shape, module = client.input.shape, Pixels(network, client, HEADS[kind])
    try:
        names = (INPUT, *HEADS[kind].outputs)
        export_onnx(module, shape, path, names, request.max_batch_size != 0, torch.uint8)
    except BuildError:
        raise
    except Exception as err:  # the tracer raises many kinds
        raise BuildError(f"{type(network).__name__} cannot be exported to ONNX: {first_line(err)}") from err
    _try(module, shape, path, batches=(1, 3) if request.max_batch_size else (1,))
    return settings | (_scores(processor) if kind == "detr" else {})


def _processor(checkpoint: Path) -> Any:
    try:
        return AutoImageProcessor.from_pretrained(checkpoint, backend="pil", **OFFLINE)
    except Exception as err:  # each processor raises its own
        raise BuildError(f"the image processor of {checkpoint} cannot be loaded: {first_line(err)}") from err


def settings_of(processor: Any) -> dict[str, str]:
    """The client's settings that stand for a processor; BuildError where none do."""
    sizes = {prepared(processor, Image.new("RGB", size)).shape for size in TRIED}
    if len(sizes) != 1:
        raise BuildError(
            f"{_name(processor)} makes tensors of different sizes: {sorted(sizes)}; a fixed one is served: where the "
            'network was trained for any, set "size": {"height": 640, "width": 640} in preprocessor_config.json'
        )
    (_, height, width) = sizes.pop()
    order = {"channel_order": "bgr"} if getattr(processor, "do_flip_channel_order", False) else {}
    resample = int(getattr(processor, "resample", None) or 0)
    return {
        "size": f"{height},{width}",
        "interpolation": NAMES[resample],
        "exact": "true",
        **_geometry(processor, height),
        **order,
        **_normalization(processor),
    }


def prepared(processor: Any, image: Image.Image) -> NDArray[np.float32]:
    """[channels, height, width] as the network gets it."""
    try:
        pixels: NDArray[np.float32] = np.asarray(processor(images=image, return_tensors="np")["pixel_values"])[0]
    except Exception as err:  # each processor raises its own
        raise BuildError(f"{_name(processor)} does not prepare an image: {first_line(err)}") from err
    if pixels.ndim != 3 or len(pixels) != 3:
        raise BuildError(f"{_name(processor)} makes {list(pixels.shape)} of an image, and [3, height, width] is served")
    return pixels


def _name(processor: Any) -> str:
    return f"the image processor {type(processor).__name__.removesuffix('Pil')}"


def _geometry(processor: Any, height: int) -> dict[str, str]:
    """How it resizes and cuts; `check_same` finds what is not said here."""
    size, kind = processor.size, type(processor).__name__
    shortest = (size.get("shortest_edge") if hasattr(size, "get") else size["shortest_edge"]) or 0
    if "ConvNext" in kind and shortest < 384:
        return {"resize": "shortest", "resize_to": str(int(shortest / processor.crop_pct))}
    if "Levit" in kind and shortest:
        return {"resize": "shortest", "resize_to": str(int(256 / 224 * shortest))}
    if "ConvNext" in kind or not shortest:
        sides = (size["height"], size["width"]) if not shortest else (height, height)
        return {"resize": "stretch", "resize_to": f"{sides[0]},{sides[1]}"}
    return {"resize": "shortest", "resize_to": str(shortest)}


def _normalization(processor: Any) -> dict[str, str]:
    """mean and std behind the usual scale of 1/255, from what becomes of black and of white."""
    black, white = (prepared(processor, Image.new("RGB", (512, 512), colour)) for colour in ("black", "white"))
    offset = black.mean((1, 2), np.float64)
    std = 1 / (white.mean((1, 2), np.float64) - offset)
    return {"mean": _joined(-offset * std), "std": _joined(std)}


def _joined(values: NDArray[np.float64]) -> str:
    return ",".join(f"{value:.7g}" for value in values)


def client_of(processor: Any, settings: Mapping[str, str]) -> Client:
    """The client of the network alone, which takes images that are normalized."""
    height, width = map(int, settings["size"].split(",")) if "," in settings["size"] else [int(settings["size"])] * 2
    inputs = (TensorSpec("images", "FP32", (3, height, width)),)
    outputs = (TensorSpec(OUTPUT, "FP32", (-1,)),)
    try:
        return Client(Model("network", Path("/nonexistent"), inputs, outputs, 1, settings))
    except InvalidRequest as err:
        raise BuildError(f"{_name(processor)} prepares images in a way that is not served: {err}") from err


def _scores(processor: Any) -> dict[str, str]:
    """The settings of a detector's client, from what the processor keeps of a box with two equally good classes, and of
    300 good boxes."""
    try:
        logits = torch.full((1, 300, 3), 9.0)
        found = SimpleNamespace(logits=logits, pred_boxes=torch.full((1, 300, 4), 0.5))
        (kept,) = processor.post_process_object_detection(found, threshold=0.9)
    except Exception as err:  # each processor raises its own
        raise BuildError(f"{_name(processor)} does not say what boxes are kept: {first_line(err)}") from err
    count = len(kept["scores"])  # softmax of three equal logits is a third: none is kept
    return {"scores": "sigmoid", **({} if count == 300 else {"queries": str(count)})} if count else {}


def check_same(processor: Any, client: ImageClient) -> None:
    """BuildError unless the client prepares images as the processor does."""
    rng = np.random.default_rng(0)
    for width, height in TRIED:
        image = Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))
        (ours,) = client.preprocess([image]).values()
        if not np.allclose(ours[0], prepared(processor, image), atol=CLOSE):
            raise BuildError(
                f"{_name(processor)} prepares images in a way that is not served; export the network to ONNX, and "
                "build that with --client image-classification and --set size=, resize=, mean=, std="
            )


class Pixels(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """The network as RGB pixels UINT8 -> its outputs, without transformers' result classes."""

    def __init__(self, network: Any, client: ImageClient, head: Head = HEADS["resnet"]) -> None:
        super().__init__()
        self.network, self.head = network, head
        self.gain, self.offset = torch.from_numpy(client.gain), torch.from_numpy(client.offset)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return self.head.read(self.network, pixels.float() * self.gain + self.offset)


def _try(module: Pixels, shape: tuple[int, ...], path: Path, batches: tuple[int, ...]) -> None:
    """BuildError where the file gives other values than the network."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for batch in batches:
        pixels = rng.integers(0, 256, (batch, *shape), dtype=np.uint8)
        with torch.inference_mode():
            wanted = [tensor.numpy() for tensor in module(torch.from_numpy(pixels))]
        found = session.run(None, {INPUT: pixels})
        shapes = [[array.shape for array in arrays] for arrays in (found, wanted)]
        if shapes[0] != shapes[1] or not module.head.same(found, wanted):
            raise BuildError(
                f"the ONNX file that torch makes of {type(module.network).__name__} does not compute what the network "
                f"does ({batch} images): export it by other means and build the ONNX file"
            )
