"""ResNets (He et al. 2015, arXiv:1512.03385) as model folders: one that reads digits, and any other of transformers.

`resnet` is small enough to be committed with its weights. `resnet50` takes a checkpoint of the hub's or of
torchvision's, or random weights for load tests: nonsense at the true speed. What needs torch is imported late.
"""

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from build_engines import weights
from build_engines.downloads import digest
from build_engines.draft import BuildError, Draft
from build_engines.recipes import REPOSITORY, Request
from clients.base import Model, TensorSpec
from clients.resnet import DEFAULT_LABELS, IMAGENET_MEAN, IMAGENET_STD, Client

MAX_BATCH_SIZE = 32
HUB_MODEL = "microsoft/resnet-50"
TRAINED = REPOSITORY / "resnet/1/model.onnx"
TRAINED_SHA256 = "419e6022ebf70aa44aa9713e2ffb313d415a77ac854bd3b40ef3c194efa20888"
EXAMPLE = REPOSITORY / "resnet/example.png"
RESAMPLE = ("nearest", "lanczos", "bilinear", "bicubic", "box", "hamming")  # Pillow's numbers


def _listed(values: Sequence[float]) -> str:
    return ",".join(map(str, values))


@dataclass(frozen=True)
class Plan:
    """One network: the square RGB input (`side` pixels), what its client must know, its architecture when it is made
    here."""

    side: int = 224
    labels: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    architecture: Mapping[str, Any] = field(default_factory=dict)


# ResNet-18 at a quarter of its width, 703,386 parameters: the digit may lie anywhere, so all of the image counts.
DIGITS = Plan(
    64,
    tuple("0123456789"),
    {"resize": "stretch", "interpolation": "bilinear", "mean": "0.5", "std": "0.25"},
    {"layer_type": "basic", "depths": (2, 2, 2, 2), "embedding_size": 16, "hidden_sizes": (16, 32, 64, 128)},
)
# 25,557,032 parameters; the settings are those of the checkpoint microsoft/resnet-50.
RESNET50 = Plan(
    224,
    tuple(f"class_{i}" for i in range(1000)),
    {
        "resize": "shortest",
        "crop_pct": "0.875",
        "interpolation": "bicubic",
        "mean": _listed(IMAGENET_MEAN),
        "std": _listed(IMAGENET_STD),
    },
    {"layer_type": "bottleneck", "depths": (3, 4, 6, 3), "embedding_size": 64, "hidden_sizes": (256, 512, 1024, 2048)},
)
# What torchvision's weights for ImageNet were trained with, but for the resizing of the newer ones.
TORCHVISION = {
    "resize": "shortest",
    "crop_pct": "0.875",
    "interpolation": "bilinear",
    "mean": _listed(IMAGENET_MEAN),
    "std": _listed(IMAGENET_STD),
}


def draft(request: Request, path: Path | None, folder: Path) -> Draft:
    """The model folder's files, from the committed weights, training, random weights or a checkpoint at `path`."""
    model = folder / "1" / "model.onnx"
    if path is None and request.source == "pretrained":
        if request.model == "resnet":
            return finish(request, folder, committed(model))
        path = weights.from_hub(HUB_MODEL)
    if path is None and request.source == "train":
        return finish(request, folder, trained(folder, model))
    return finish(request, folder, exported(request, path, model))


def committed(model: Path) -> Plan:
    """The trained network of this checkout."""
    if not TRAINED.is_file() or digest(TRAINED) != TRAINED_SHA256:
        raise BuildError(
            f"{TRAINED} is not the network that was trained: get it back (git checkout {TRAINED.name}), "
            "or train it again with --weights train"
        )
    shutil.copyfile(TRAINED, model)
    return DIGITS


def trained(folder: Path, model: Path) -> Plan:
    """The network of the digits, trained here."""
    from build_engines import resnet_network, resnet_training

    network = resnet_network.random_network(DIGITS.architecture, len(DIGITS.labels))
    resnet_training.train(network, client_of(DIGITS, folder))
    resnet_network.write_onnx(network, DIGITS.side, model)
    return DIGITS


def client_of(plan: Plan, folder: Path) -> Client:
    """The client as it will be behind Triton."""
    inputs = (TensorSpec("input", "FP32", (3, plan.side, plan.side)),)
    outputs = (TensorSpec("logits", "FP32", (len(plan.labels),)),)
    return Client(Model(folder.name, folder, inputs, outputs, MAX_BATCH_SIZE, plan.settings))


def exported(request: Request, path: Path | None, model: Path) -> Plan:
    """Random weights where `path` is None, else those of a checkpoint's folder or of a torchvision file."""
    from build_engines import resnet_network

    if path is None:
        plan = RESNET50
        network = resnet_network.random_network(plan.architecture, len(plan.labels))
    elif path.is_dir():
        network, plan = resnet_network.from_checkpoint(path), plan_of(path)
    else:
        network, plan = resnet_network.from_torchvision(path), Plan(settings=TORCHVISION)
    side = request.size or plan.side
    resnet_network.write_onnx(network, side, model, batching=request.max_batch_size != 0)
    return plan


def plan_of(checkpoint: Path) -> Plan:
    """What config.json and preprocessor_config.json say of a checkpoint."""
    config, given = (_json(checkpoint / name) for name in ("config.json", "preprocessor_config.json"))
    names = {int(key): str(value) for key, value in config.get("id2label", {}).items()}
    labels = tuple(names[index] for index in sorted(names))
    size = given.get("size", 224)
    side = size if isinstance(size, int) else size.get("shortest_edge") or size.get("height", 224)
    return Plan(
        side,
        () if "LABEL_0" in labels else labels,
        {
            "resize": "shortest",
            "crop_pct": str(given.get("crop_pct") or 0.875),
            "interpolation": RESAMPLE[given.get("resample", 3)],
            "mean": _listed(given.get("image_mean", IMAGENET_MEAN)),
            "std": _listed(given.get("image_std", IMAGENET_STD)),
        },
    )


def _json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}


def finish(request: Request, folder: Path, plan: Plan) -> Draft:
    """The labels, the example, and what Triton must know."""
    from build_engines.own import describe, write_labels

    labels = write_labels(folder / DEFAULT_LABELS, plan.labels, request.labels)
    shutil.copyfile(EXAMPLE, folder / "example.png")
    return describe(
        request, folder, Draft("resnet", (), (), MAX_BATCH_SIZE, plan.settings, labels=DEFAULT_LABELS if labels else "")
    )
