"""Uses torch to export networks from the transformers library that take one image. The ONNX file
takes pixels, and returns the outputs that the client reads. Only this module loads these networks
and their image processors."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import NDArray
from PIL import Image
from transformers import AutoImageProcessor

from build_engines.errors import BuildError, UsageError, explained
from build_engines.families.family import Family, Head
from build_engines.families.torch_export import (
    OFFLINE,
    Example,
    Shape,
    check_answers,
    export_onnx,
    load,
)
from build_engines.request import Request
from build_engines.weights import Weights
from clients._image import ImageClient
from clients._image_settings import INTERPOLATIONS, KEEP_RATIO, keeps_ratio
from clients.base import Model, TensorSpec
from clients.image_classification import Client

INPUT = "input"
CLOSE = 1e-3  # tolerance when a pixel that the client prepares is compared with the processor's
# dimensions that may be dynamic, and their sizes during tracing
TRACED_SIZES = {"batch": 2, "height": 96, "width": 160}
# (width, height) of the images on which the client is compared with the image processor
IMAGE_SIZES = ((311, 207), (190, 333), (640, 640), (60, 47), (1500, 1100), (900, 200), (180, 900))
# networks to load with their own class, because AutoModel drops the layer that projects the
# embedding
TOWERS = ("CLIPVisionModelWithProjection",)
INTERPOLATION_NAMES = {method.value: name for name, method in INTERPOLATIONS.items()}


def write_onnx(weights: Weights, family: Family, request: Request, path: Path) -> dict[str, str]:
    """Export the network to ONNX. Its input is UINT8 [N,3,height,width], and its outputs are those
    that the family's client reads. Height and width are dynamic if images keep their proportions.
    Return the client's settings. Raise UsageError if the request has batches of images that keep
    their proportions. Raise BuildError if the network cannot be loaded or exported, if no client
    prepares images as its image processor does, or if the file's outputs differ from the
    network's."""
    head = family.head
    if head is None:
        raise BuildError(f"no network of transformers is built for the client {family.client}")
    processor = _processor(weights.path)
    settings = settings_of(processor)
    client = _make_client(processor, {**settings, **request.settings})
    network = _load_network(weights, head)
    if keeps_ratio(client.options) and request.max_batch_size > 1:
        raise UsageError(
            f"--max-batch-size {request.max_batch_size}: images of different sizes cannot be "
            "batched: leave the flag out"
        )
    module = Pixels(network, client, head)
    shape = _input_shape(client, request)
    traced = [size if isinstance(size, int) else TRACED_SIZES[size] for size in shape]
    example = torch.zeros(traced, dtype=torch.uint8)
    export_onnx(module, {INPUT: example}, {INPUT: shape}, head.outputs, path)
    remedy = ""
    if keeps_ratio(client.options):
        remedy = (
            '; or serve it at one size: "size": {"height": 640, "width": 640} in '
            "preprocessor_config.json"
        )
    check_answers(module, path, _examples(client, request), head.same, remedy)
    return settings | head.settings(processor)


def _load_network(weights: Weights, head: Head) -> Any:
    """Load the network with its own class if that is in TOWERS, or else with the loader of `head`.
    Raise BuildError as `load` does."""
    architecture = weights.architecture
    loader = architecture if architecture in TOWERS else head.loader
    purpose = f"as a {architecture or 'network'}"
    return load(getattr(transformers, loader), weights.path, purpose)


def _input_shape(client: ImageClient, request: Request) -> Shape:
    """Return the shape of the exported network's input. The size of a batch is fixed, at 1, only
    for --max-batch-size 0."""
    height, width = client.input.shape[1:]
    # either both height and width are dynamic, or neither is
    sides = ("height", "width") if height == -1 else (height, width)
    batch = "batch" if request.max_batch_size else 1
    return (batch, 3, *sides)


def _examples(client: ImageClient, request: Request) -> Iterator[Example]:
    """Yield random pixels in each size to which the client resizes images of IMAGE_SIZES: one image
    at a time and, if the model takes batches, also three at a time."""
    rng = np.random.default_rng(0)
    images = [Image.new("RGB", size) for size in IMAGE_SIZES]
    sizes = sorted({client.fit(image).shape[:2] for image in images})
    has_batches = request.max_batch_size and not keeps_ratio(client.options)
    batches = (1, 3) if has_batches else (1,)
    for batch in batches:
        for size in sizes:
            pixels = rng.integers(0, 256, (batch, 3, *size), np.uint8)
            yield {INPUT: torch.from_numpy(pixels)}


def _processor(checkpoint: Path) -> Any:
    """Load the folder's image processor, in the variant that uses Pillow, as the client does. Raise
    BuildError if that fails."""
    with explained(f"the image processor of {checkpoint} cannot be loaded"):
        return AutoImageProcessor.from_pretrained(checkpoint, backend="pil", **OFFLINE)


def settings_of(processor: Any) -> dict[str, str]:
    """Return settings with which a client prepares random images of all IMAGE_SIZES as the image
    processor does. Raise BuildError if no such settings are found."""
    resample = int(getattr(processor, "resample", None) or 0)
    settings = {
        "interpolation": INTERPOLATION_NAMES[resample],
        "exact": "true",
        **_normalization(processor),
    }
    if getattr(processor, "do_flip_channel_order", False):
        settings["channel_order"] = "bgr"
    for geometry in _geometries(processor):
        client = _make_client(processor, settings | geometry)
        if all(_is_prepared_alike(processor, client, size) for size in IMAGE_SIZES):
            return settings | geometry
    raise BuildError(
        f"{name_of(processor)} prepares images in a way that no client does; export the network to "
        "ONNX, and build that with --client image-classification and --set size=, resize=, mean=, "
        "std="
    )


def prepared(processor: Any, image: Image.Image) -> NDArray[np.float32]:
    """Return the image as the processor prepares it for the network, [3, height, width]. Raise
    BuildError if the processor fails or returns another shape."""
    with explained(f"{name_of(processor)} does not prepare an image"):
        batch = processor(images=image, return_tensors="np")["pixel_values"]
        pixels: NDArray[np.float32] = np.asarray(batch)[0]
    if pixels.ndim != 3 or len(pixels) != 3:
        raise BuildError(
            f"{name_of(processor)} turns an image into {list(pixels.shape)}; only "
            "[3, height, width] can be served"
        )
    return pixels


def name_of(processor: Any) -> str:
    """Return the image processor's name, for an error message."""
    return f"the image processor {type(processor).__name__.removesuffix('Pil')}"


def _geometries(processor: Any) -> Iterator[dict[str, str]]:
    """Yield candidates for the client's settings: the ways in which processors resize and crop
    images. Raise BuildError if the prepared images differ in size, but the processor does not say
    how it keeps their proportions."""
    shapes = {prepared(processor, Image.new("RGB", size)).shape for size in IMAGE_SIZES}
    shortest = _configured_size(processor, "shortest_edge")
    if len(shapes) > 1:
        longest = _configured_size(processor, "longest_edge")
        if not (shortest and longest):
            raise BuildError(
                f"{name_of(processor)} makes tensors of different sizes: {sorted(shapes)}; it must "
                "make one size, or keep the proportions by a shortest_edge and a longest_edge"
            )
        # YOLOS's processor makes both sides multiples of 16
        divisor = {"size_divisor": "16"} if "Yolos" in type(processor).__name__ else {}
        yield {"resize": KEEP_RATIO, "resize_to": f"{shortest},{longest}", **divisor}
        return
    ((_, height, width),) = shapes
    size = f"{height},{width}"
    yield {"size": size, "resize": "stretch", "resize_to": size}
    if not shortest:
        sides = f"{_configured_size(processor, 'height')},{_configured_size(processor, 'width')}"
        yield {"size": size, "resize": "stretch", "resize_to": sides}
        return
    # ConvNeXt's processor crops to the share `crop_pct` of the resized image, and LeViT's to 224 of
    # 256 pixels.
    share = getattr(processor, "crop_pct", None) or 1
    for edge in (shortest, shortest / share, 256 / 224 * shortest):
        yield {"size": size, "resize": "shortest", "resize_to": str(int(edge))}


def _configured_size(processor: Any, name: str) -> int:
    """Return the entry `name`, such as "shortest_edge", of the processor's `size`, in pixels, or 0
    if it is not set. `size` may be a dict or an object of transformers'."""
    size = processor.size
    side = size.get(name) if hasattr(size, "get") else size[name]
    return side or 0


def _normalization(processor: Any) -> dict[str, str]:
    """Return the mean and std with which the processor normalizes pixels that were divided by 255.
    They are computed from its results for a black and a white image."""
    black = prepared(processor, Image.new("RGB", (512, 512), "black"))
    white = prepared(processor, Image.new("RGB", (512, 512), "white"))
    lowest = black.mean((1, 2), np.float64)  # (0 - mean) / std
    highest = white.mean((1, 2), np.float64)  # (1 - mean) / std
    std = 1 / (highest - lowest)
    return {"mean": _joined(-lowest * std), "std": _joined(std)}


def _joined(values: NDArray[np.float64]) -> str:
    return ",".join(f"{value:.7g}" for value in values)


def _make_client(processor: Any, settings: Mapping[str, str]) -> Client:
    """Return a client with these settings, for a network that takes normalized images. The client
    only prepares images, so it does not matter that its output is a classifier's. Raise BuildError
    if the settings are invalid."""
    sides = settings.get("size", "-1").split(",")
    height, width = int(sides[0]), int(sides[-1])
    inputs = (TensorSpec("images", "FP32", (3, height, width)),)
    outputs = (TensorSpec("logits", "FP32", (-1,)),)
    with explained(f"{name_of(processor)} prepares images in a way that no client does"):
        return Client(Model("network", Path("/nonexistent"), inputs, outputs, 1, settings))


def _is_prepared_alike(processor: Any, client: ImageClient, size: tuple[int, int]) -> bool:
    """Return whether the client prepares an image of this width and height as the processor
    does."""
    width, height = size
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)
    image = Image.fromarray(pixels)
    ((ours,),) = client.prepare([image], {}).values()
    theirs = prepared(processor, image)
    return ours.shape == theirs.shape and np.allclose(ours, theirs, atol=CLOSE)


class Pixels(torch.nn.Module):  # type: ignore[misc, unused-ignore]
    """Wraps a network so that it takes UINT8 pixels instead of normalized images, and returns its
    outputs as tensors instead of transformers' result classes."""

    def __init__(self, network: Any, client: ImageClient, head: Head) -> None:
        super().__init__()
        self.network, self.head = network, head
        self.gain = torch.from_numpy(client.frame.gain)
        self.offset = torch.from_numpy(client.frame.offset)

    def forward(self, pixels: torch.Tensor) -> tuple[torch.Tensor, ...]:
        images = pixels.float() * self.gain + self.offset
        return self.head.read(self.network, images)
