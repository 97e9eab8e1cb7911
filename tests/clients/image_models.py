"""Small random image classifiers of transformers, as folders."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from PIL import Image

WIDE = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 48}
STAGES = {"depths": [1, 1], "num_heads": [2, 4], "embed_dim": 16}
FOLDED = {"embedding_size": 8, "hidden_sizes": (16, 24), "depths": (1, 1), "layer_type": "basic"}
LABELS = {0: "cat", 1: "dog", 2: "fox", 3: "hen", 4: "owl"}
SIDES = {"height": 32, "width": 32}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}

# The network's class, its configuration, and the processor's class and settings.
CLASSIFIERS: dict[str, tuple[str, Mapping[str, Any], str, Mapping[str, Any]]] = {
    "vit": ("ViT", {**WIDE, "image_size": 32, "patch_size": 8}, "ViT", {"size": SIDES}),
    "deit": (
        "DeiT",
        {**WIDE, "image_size": 32, "patch_size": 8},
        "DeiT",
        {"size": {"height": 36, "width": 36}, "crop_size": SIDES, **IMAGENET},
    ),
    "swin": (
        "Swin",
        {**STAGES, "image_size": 32, "patch_size": 4, "window_size": 4},
        "ViT",
        {"size": SIDES, **IMAGENET},
    ),
    "convnext": (
        "ConvNext",
        {"depths": [1, 1], "hidden_sizes": [16, 24], "num_stages": 2},
        "ConvNext",
        {"size": {"shortest_edge": 32}, **IMAGENET},
    ),
    "efficientnet": (
        "EfficientNet",
        {"width_coefficient": 0.25, "depth_coefficient": 0.3, "hidden_dim": 320, "image_size": 32},
        "EfficientNet",
        {"size": SIDES, "resample": 0, "rescale_offset": True, "rescale_factor": 1 / 127.5, **IMAGENET},
    ),
    "mobilenet": (
        "MobileNetV2",
        {"depth_multiplier": 0.35, "image_size": 32},
        "MobileNetV2",
        {"size": {"shortest_edge": 37}, "crop_size": SIDES, "resample": 2},
    ),
    "mobilevit": (
        "MobileViT",
        {
            "hidden_sizes": [16, 24, 32],
            "neck_hidden_sizes": [8, 8, 8, 8, 16, 16, 32],
            "num_attention_heads": 2,
            "image_size": 32,
        },
        "MobileViT",
        {"size": {"shortest_edge": 36}, "crop_size": SIDES},
    ),
    "resnet": ("ResNet", FOLDED, "ConvNext", {"size": {"shortest_edge": 32}, "crop_pct": 0.875, **IMAGENET}),
    "resnet-384": ("ResNet", FOLDED, "ConvNext", {"size": {"shortest_edge": 384}, **IMAGENET}),
    "dinov2": (
        "Dinov2",
        {**WIDE, "mlp_ratio": 2, "image_size": 32, "patch_size": 8},
        "Bit",
        {"size": {"shortest_edge": 40}, "crop_size": SIDES},
    ),
}


SIZES = ((300, 200), (97, 401), (32, 32), (500, 500))


def images() -> list[Image.Image]:
    """Coarse noise, enlarged, so that resizing matters."""
    rng = np.random.default_rng(0)
    noise = [rng.integers(0, 256, (9, 9, 3), dtype=np.uint8) for _ in SIZES]
    return [
        Image.fromarray(each).resize(size, Image.Resampling.BICUBIC) for each, size in zip(noise, SIZES, strict=True)
    ]


def save_classifier(folder: Path, name: str, **changes: Any) -> Path:
    """One of CLASSIFIERS, as save_pretrained writes it."""
    network, config, processor, settings = CLASSIFIERS[name]
    torch.manual_seed(0)
    labels = {"id2label": LABELS, "label2id": {label: index for index, label in LABELS.items()}}
    made = getattr(transformers, f"{network}ForImageClassification")(
        getattr(transformers, f"{network}Config")(**{**config, **labels, **changes})
    ).eval()
    with torch.no_grad():
        for parameter in made.parameters():  # so that the answers of a random network differ
            if parameter.ndim > 1:
                parameter.normal_(0, (2 / parameter[0].numel()) ** 0.5)
        _settle(made)
    made.save_pretrained(folder)
    image_processor_of(processor)(**settings).save_pretrained(folder)
    return folder


def _settle(network: Any) -> None:
    """Batch normalization takes its means and deviations from noise, and the last matrix makes logits of deviation 1:
    else deep networks answer all images alike."""
    for layer in network.modules():
        if isinstance(layer, torch.nn.BatchNorm2d):
            layer.momentum = None
            layer.train()
    noise = torch.randn(16, 3, SIDES["height"], SIDES["width"])
    for _ in range(3):
        network(noise)
    last = [parameter for parameter in network.eval().parameters() if parameter.ndim == 2][-1]
    last.div_(network(noise).logits.std(0).mean())


def image_processor_of(name: str) -> Any:
    """transformers' class that prepares images with Pillow."""
    return getattr(transformers, f"{name}ImageProcessorPil")
