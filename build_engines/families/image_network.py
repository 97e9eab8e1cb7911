"""Any image classifier of transformers as ONNX, from pixels to logits, exported by torch. The only module that loads
these networks and their image processors."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import torch
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor, AutoModelForImageClassification

from build_engines.errors import BuildError, first_line
from build_engines.families.torch_checkpoint import check_whole
from build_engines.families.torch_export import export_onnx
from build_engines.request import Request
from clients.base import Model, TensorSpec
from clients.resnet import INTERPOLATIONS, Client
from serving.errors import InvalidRequest

INPUT, OUTPUT = "input", "logits"
CLOSE = 1e-3
TRIED = ((311, 207), (190, 333), (640, 640), (60, 47))  # widths and heights that processor and client are compared on
OFFLINE: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
NAMES = {method.value: name for name, method in INTERPOLATIONS.items()}


def write_onnx(checkpoint: Path, request: Request, path: Path) -> dict[str, str]:
    """input UINT8 [N,3,height,width] -> logits [N,classes], and the settings of the client that prepares its images;
    BuildError."""
    processor = _processor(checkpoint)
    settings = settings_of(processor)
    check_same(processor, client_of(processor, settings))
    client, network = client_of(processor, {**settings, **request.settings}), _load(checkpoint)
    shape = client.input.shape
    try:
        export_onnx(Logits(network, client), shape, path, (INPUT, OUTPUT), request.max_batch_size != 0, torch.uint8)
    except Exception as err:  # the tracer raises many kinds
        raise BuildError(f"{type(network).__name__} cannot be exported to ONNX: {first_line(err)}") from err
    _try(Logits(network, client), shape, path, batches=(1, 3) if request.max_batch_size else (1,))
    return settings


def _load(checkpoint: Path) -> Any:
    try:
        network, found = AutoModelForImageClassification.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **OFFLINE
        )
    except Exception as err:  # each network raises its own
        raise BuildError(f"{checkpoint} cannot be loaded as an image classifier: {first_line(err)}") from err
    check_whole(checkpoint, found)
    return network.eval()


def _processor(checkpoint: Path) -> Any:
    try:
        return AutoImageProcessor.from_pretrained(checkpoint, backend="pil", **OFFLINE)
    except Exception as err:  # each processor raises its own
        raise BuildError(f"the image processor of {checkpoint} cannot be loaded: {first_line(err)}") from err


def settings_of(processor: Any) -> dict[str, str]:
    """The client's settings that stand for a processor; BuildError where none do."""
    sizes = {prepared(processor, Image.new("RGB", size)).shape for size in TRIED}
    if len(sizes) != 1:
        raise BuildError(f"{_name(processor)} makes tensors of different sizes: {sorted(sizes)}; a fixed one is served")
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


def check_same(processor: Any, client: Client) -> None:
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


class Logits(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """The network as RGB pixels UINT8 -> logits, without transformers' result classes."""

    def __init__(self, network: Any, client: Client) -> None:
        super().__init__()
        self.network = network
        self.gain, self.offset = torch.from_numpy(client.gain), torch.from_numpy(client.offset)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.network(pixels.float() * self.gain + self.offset).logits
        return logits


def _try(module: Logits, shape: tuple[int, ...], path: Path, batches: tuple[int, ...]) -> None:
    """BuildError where the file gives other values than the network."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    rng = np.random.default_rng(0)
    for batch in batches:
        pixels = rng.integers(0, 256, (batch, *shape), dtype=np.uint8)
        with torch.inference_mode():
            wanted = module(torch.from_numpy(pixels)).numpy()
        found = session.run(None, {INPUT: pixels})[0]
        if wanted.shape != found.shape or not np.allclose(found, wanted, rtol=CLOSE, atol=CLOSE):
            raise BuildError(
                f"the ONNX file that torch makes of {type(module.network).__name__} does not compute what the network "
                f"does ({batch} images): export it by other means and build the ONNX file"
            )
