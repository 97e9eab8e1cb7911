"""Makes small random networks of transformers that take one image, as folders and as models that
their clients serve without Triton."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from PIL import Image

from build_engines.build import build
from build_engines.request import Request
from build_engines.stored_model import open_model
from clients.base import ModelClient, Tensors
from tests.build_engines.models import session

NETWORK = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 48,
}
SMALL = NETWORK | {"image_size": 32, "patch_size": 8}
WORDS = NETWORK | {"vocab_size": 320, "max_position_embeddings": 24}
WORDS |= {"bos_token_id": 0, "eos_token_id": 2}
LABELS = {0: "cat", 1: "dog", 2: "fox", 3: "hen", 4: "owl"}
NAMED = {"id2label": LABELS, "label2id": {label: index for index, label in LABELS.items()}}
SIDES = {"height": 32, "width": 32}
IMAGENET = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
CUT = {"size": {"shortest_edge": 36}, "crop_size": SIDES}
WHOLE = {"size": {"height": 64, "width": 64}}
KEPT = {"size": {"shortest_edge": 64, "longest_edge": 96}}  # each image keeps its proportions
FOLDED = {"embedding_size": 8, "hidden_sizes": (16, 24), "depths": (1, 1), "layer_type": "basic"}
NARROW = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_attention_heads": 2}
NARROW |= {
    "decoder_attention_heads": 2,
    "decoder_layers": 1,
    "encoder_layers": 1,
    "num_queries": 10,
}
LOCAL = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}
SIZES = ((300, 200), (97, 401), (32, 32), (500, 500))


def images() -> list[Image.Image]:
    """Return images of enlarged coarse noise, for which resizing matters."""
    rng = np.random.default_rng(0)
    noise = [Image.fromarray(rng.integers(0, 256, (9, 9, 3), dtype=np.uint8)) for _ in SIZES]
    return [
        picture.resize(size, Image.Resampling.BICUBIC)
        for picture, size in zip(noise, SIZES, strict=True)
    ]


def _classifier(network: str, **config: Any) -> Callable[..., Any]:
    def make(**changes: Any) -> Any:
        settings = getattr(hf, f"{network}Config")(**config, **NAMED, **changes)
        return getattr(hf, f"{network}ForImageClassification")(settings)

    return make


def _clip() -> Any:
    return hf.CLIPModel(hf.CLIPConfig(text_config=WORDS, vision_config=SMALL, projection_dim=24))


def _siglip() -> Any:
    return hf.SiglipModel(hf.SiglipConfig(text_config=WORDS, vision_config=SMALL))


def _segformer() -> Any:
    config = hf.SegformerConfig(
        hidden_sizes=[8, 16, 16, 24],
        depths=[1] * 4,
        num_attention_heads=[1, 2, 2, 2],
        decoder_hidden_size=16,
        **NAMED,
    )
    return hf.SegformerForSemanticSegmentation(config)


def _yolos() -> Any:
    config = {**SMALL, "image_size": [32, 32], "num_detection_tokens": 10}
    return hf.YolosForObjectDetection(hf.YolosConfig(**config, **NAMED))


def _detr(kind: str = "Detr", **more: Any) -> Any:
    backbone = hf.ResNetConfig(**FOLDED, out_features=["stage2"])
    config = getattr(hf, f"{kind}Config")(
        **{**LOCAL, "backbone_config": backbone, **NARROW, **NAMED, **more}
    )
    return getattr(hf, f"{kind}ForObjectDetection")(config)


def _deformable_detr() -> Any:
    return _detr(
        "DeformableDetr",
        d_model=32,
        decoder_layers=2,
        encoder_n_points=2,
        decoder_n_points=2,
        num_feature_levels=2,
    )


def _rt_detr() -> Any:
    backbone = hf.RTDetrResNetConfig(
        embedding_size=8,
        hidden_sizes=[8, 16, 24, 32],
        depths=[1] * 4,
        layer_type="basic",
        out_features=["stage2", "stage3", "stage4"],
    )
    config = hf.RTDetrConfig(
        **LOCAL,
        backbone_config=backbone,
        encoder_in_channels=[16, 24, 32],
        decoder_in_channels=[16] * 3,
        encoder_hidden_dim=16,
        **NARROW,
        **NAMED,
        num_denoising=0,
    )
    return hf.RTDetrForObjectDetection(config)


# (network, class of its image processor, settings of the image processor)
Made = tuple[Callable[..., Any], str, Mapping[str, Any]]
UNCENTERED = {"resample": 0, "rescale_offset": True, "rescale_factor": 1 / 127.5}
LARGER = {"size": {"height": 36, "width": 36}, "crop_size": SIDES}
CLASSIFIERS: dict[str, Made] = {
    "vit": (_classifier("ViT", **SMALL), "ViT", {"size": SIDES}),
    "deit": (_classifier("DeiT", **SMALL), "DeiT", LARGER | IMAGENET),
    "efficientnet": (
        _classifier(
            "EfficientNet",
            width_coefficient=0.25,
            depth_coefficient=0.3,
            hidden_dim=320,
            image_size=32,
        ),
        "EfficientNet",
        {"size": SIDES, **UNCENTERED, **IMAGENET},
    ),
    "mobilenet": (
        _classifier("MobileNetV2", depth_multiplier=0.35, image_size=32),
        "MobileNetV2",
        {"size": {"shortest_edge": 37}, "crop_size": SIDES, "resample": 2},
    ),
    "mobilevit": (
        _classifier(
            "MobileViT",
            hidden_sizes=[16, 24, 32],
            neck_hidden_sizes=[8, 8, 8, 8, 16, 16, 32],
            num_attention_heads=2,
            image_size=32,
        ),
        "MobileViT",
        CUT,
    ),
    "resnet": (
        _classifier("ResNet", **FOLDED),
        "ConvNext",
        {"size": {"shortest_edge": 32}, "crop_pct": 0.875, **IMAGENET},
    ),
    "resnet-384": (
        _classifier("ResNet", **FOLDED),
        "ConvNext",
        {"size": {"shortest_edge": 384}, **IMAGENET},
    ),
    "dinov2-classifier": (
        _classifier("Dinov2", **SMALL, mlp_ratio=2),
        "Bit",
        {"size": {"shortest_edge": 40}, "crop_size": SIDES},
    ),
}
ENCODERS: dict[str, Made] = {
    "dinov2": (lambda: hf.Dinov2Model(hf.Dinov2Config(**SMALL)), "Bit", CUT),
    "vit-encoder": (lambda: hf.ViTModel(hf.ViTConfig(**SMALL)), "ViT", {"size": SIDES}),
    "resnet-encoder": (
        lambda: hf.ResNetModel(hf.ResNetConfig(**FOLDED)),
        "ConvNext",
        {"size": {"shortest_edge": 32}},
    ),
    "clip": (_clip, "CLIP", CUT),
    "clip-vision": (lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**SMALL)), "CLIP", CUT),
    "clip-projected": (
        lambda: hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**SMALL, projection_dim=24)),
        "CLIP",
        CUT,
    ),
    "siglip": (_siglip, "Siglip", {"size": SIDES}),
    "siglip-vision": (
        lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**SMALL)),
        "Siglip",
        {"size": SIDES},
    ),
}
DETECTORS: dict[str, Made] = {
    "yolos": (_yolos, "Yolos", KEPT),
    "detr": (_detr, "Detr", KEPT),
    "conditional-detr": (lambda: _detr("ConditionalDetr"), "ConditionalDetr", KEPT),
    "rt-detr": (_rt_detr, "RTDetr", WHOLE),
}
ALL = CLASSIFIERS | ENCODERS | DETECTORS
ALL |= {
    "segformer": (_segformer, "Segformer", WHOLE),
    "deformable-detr": (_deformable_detr, "DeformableDetr", KEPT),
}


def save_vision(folder: Path, name: str, **changes: Any) -> Path:
    """Save one of ALL with its image processor, as save_pretrained writes them. Return its
    folder."""
    make, kind, settings = ALL[name]
    torch.manual_seed(0)
    network = make(**changes).eval()
    with torch.no_grad():
        # so that the outputs of a random network depend on the image
        for parameter in network.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0, (2 / parameter[0].numel()) ** 0.5)
        if name in CLASSIFIERS:
            _settle(network)
    network.save_pretrained(folder)
    image_processor_of(kind)(**settings).save_pretrained(folder)
    return folder


def _settle(network: Any) -> None:
    """Fit batch normalization to noise, and scale the last matrix so that logits have a deviation
    of 1. Otherwise, the outputs of a deep random network would be alike for all images."""
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
    """Return transformers' class that prepares images with Pillow."""
    return getattr(hf, f"{name}ImageProcessorPil")


def serve(folder: Path, name: str) -> tuple[Path, ModelClient]:
    """Save a checkpoint in `folder`, and build a model from it. Return its path and the model's
    client."""
    checkpoint = save_vision(folder / "checkpoint", name)
    build(Request("own", str(checkpoint), repository=folder / "models"))
    client = open_model("own", folder / "models").client()
    assert client
    return checkpoint, client


def predict(client: ModelClient, pictures: list[Image.Image], **parameters: Any) -> list[Any]:
    """Return the predictions, requested in batches of the model's maximum size."""
    run, size, predictions = runner(client), client.model.max_batch_size, []
    for first in range(0, len(pictures), size):
        batch = pictures[first : first + size]
        inputs = client.prepare(batch, {})
        predictions += client.postprocess(
            run(inputs), inputs, batch, client.read_parameters(parameters)
        )
    return predictions


def assert_detections(prediction: Any, picture: Image.Image, wanted: list[Any]) -> None:
    """Assert that the detections equal those of transformers' pipeline, whose boxes are
    integers."""
    assert wanted
    assert prediction["image"] == {"width": picture.width, "height": picture.height}
    ranked = sorted(wanted, key=lambda each: -each["score"])
    for ours, theirs in zip(prediction["detections"], ranked, strict=True):
        assert (ours["label"], LABELS[ours["class_id"]]) == (theirs["label"], theirs["label"])
        assert ours["score"] == pytest.approx(theirs["score"], abs=1e-4)
        sides = {"x": picture.width, "y": picture.height}
        inside = {key: min(max(value, 0), sides[key[0]]) for key, value in theirs["box"].items()}
        assert ours["box"] == pytest.approx(inside, abs=1.01)


def runner(client: ModelClient) -> Callable[[Tensors], Tensors]:
    running = session(client.model.path / "1/model.onnx")
    names = [port.name for port in running.get_outputs()]
    return lambda inputs: dict(zip(names, running.run(names, inputs), strict=True))


def pipeline(task: Any, checkpoint: Path, name: str) -> Any:
    """Return transformers' pipeline with the image processor that uses Pillow."""
    return hf.pipeline(task, model=str(checkpoint), image_processor=processor_of(checkpoint, name))


def processor_of(checkpoint: Path, name: str) -> Any:
    return image_processor_of(ALL[name][1]).from_pretrained(checkpoint)
