"""ResNets (He et al. 2015, arXiv:1512.03385) as model folders, from a checkpoint of torchvision or random weights;
folders of transformers are image_folder's.

The ONNX file takes pixels (UINT8) and normalizes them itself: a quarter of the bytes on their way to Triton. Random
weights are for load tests: nonsense at the true speed. What needs torch is imported late.
"""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_engines.families import image_folder
from build_engines.families.image_folder import IN_NETWORK
from build_engines.families.onnx_file import with_tensors
from build_engines.model_folder.labels import write_labels
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import REPOSITORY, Request
from build_engines.weights import sources
from clients._image import DEFAULT_LABELS, IMAGENET_MEAN, IMAGENET_STD
from clients.base import Model, TensorSpec
from clients.resnet import Client

MAX_BATCH_SIZE = 32
HUB_MODEL = "microsoft/resnet-50"
EXAMPLE = REPOSITORY / "resnet/example.png"


def _joined(values: Sequence[float]) -> str:
    return ",".join(map(str, values))


@dataclass(frozen=True)
class Architecture:
    """One network: the square RGB input (`side` pixels), what its client must know of the network alone, and
    transformers' configuration (`layers`) of a network that is made here."""

    side: int = 224
    labels: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    layers: Mapping[str, Any] = field(default_factory=dict)


# 25,557,032 parameters; the settings are those of the checkpoint microsoft/resnet-50.
RESNET50 = Architecture(
    side=224,
    labels=tuple(f"class_{i}" for i in range(1000)),
    settings={
        "resize": "shortest",
        "crop_pct": "0.875",
        "interpolation": "bicubic",
        "mean": _joined(IMAGENET_MEAN),
        "std": _joined(IMAGENET_STD),
    },
    layers={
        "layer_type": "bottleneck",
        "depths": (3, 4, 6, 3),
        "embedding_size": 64,
        "hidden_sizes": (256, 512, 1024, 2048),
    },
)
# What torchvision's weights for ImageNet were trained with, but for the resizing of the newer ones.
TORCHVISION = {
    "resize": "shortest",
    "crop_pct": "0.875",
    "interpolation": "bilinear",
    "mean": _joined(IMAGENET_MEAN),
    "std": _joined(IMAGENET_STD),
}


def export(request: Request, path: Path | None, folder: Path) -> ModelSpec:
    """The model folder's files, from the hub, random weights or a checkpoint at `path`."""
    if path is None and request.source == "pretrained":
        path = sources.from_hub(HUB_MODEL)
    if path is not None and path.is_dir():
        return image_folder.export(request, path, folder)
    return finish(request, folder, _write_network(request, path, folder / "1" / "model.onnx"))


def _write_network(request: Request, path: Path | None, model: Path) -> Architecture:
    """Random weights where `path` is None, else those of a torchvision file."""
    from build_engines.families import resnet_network

    if path is None:
        architecture = RESNET50
        network = resnet_network.random_network(architecture.layers, len(architecture.labels))
    else:
        network, architecture = resnet_network.from_torchvision(path), Architecture(settings=TORCHVISION)
    client = client_of(request, architecture, network.config.num_labels)
    resnet_network.write_onnx(network, client, model, batching=request.max_batch_size != 0)
    return architecture


def client_of(request: Request, architecture: Architecture, classes: int) -> Client:
    """The client of the network alone, which takes images that are normalized."""
    side = request.size or architecture.side
    network = Model(
        name="resnet",
        path=Path("/nonexistent"),
        inputs=(TensorSpec("images", "FP32", (3, side, side)),),
        outputs=(TensorSpec("logits", "FP32", (classes,)),),
        max_batch_size=MAX_BATCH_SIZE,
        parameters={**architecture.settings, **request.settings},
    )
    return Client(network)


def finish(request: Request, folder: Path, architecture: Architecture) -> ModelSpec:
    """Writes the labels and the example; what Triton must know."""
    labels = write_labels(folder / DEFAULT_LABELS, architecture.labels, request.labels)
    shutil.copyfile(EXAMPLE, folder / "example.png")
    model_spec = ModelSpec(
        client="resnet",
        max_batch_size=MAX_BATCH_SIZE,
        settings={name: value for name, value in architecture.settings.items() if name not in IN_NETWORK},
        labels=DEFAULT_LABELS if labels else "",
    )
    return with_tensors(request, folder, model_spec)
