"""Small random networks of transformers that take one image and classify none: as folders, and built behind their
clients without Triton."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from PIL import Image

from build_engines.build import build
from build_engines.model_folder.stored import open_model
from build_engines.request import Request
from clients.base import ModelClient, Tensors
from tests.build_engines.models import session
from tests.clients.image_models import FOLDED, LABELS, SIDES, WIDE, image_processor_of

SMALL = {**WIDE, "image_size": 32, "patch_size": 8}
WORDS = {**WIDE, "vocab_size": 320, "max_position_embeddings": 24, "bos_token_id": 0, "eos_token_id": 2}
NAMED = {"id2label": LABELS, "label2id": {label: index for index, label in LABELS.items()}}
CUT = {"size": {"shortest_edge": 36}, "crop_size": SIDES}
WHOLE = {"size": {"height": 64, "width": 64}}
KEPT = {"size": {"shortest_edge": 64, "longest_edge": 96}}  # each image at its own size
NARROW = {"d_model": 16, "encoder_ffn_dim": 16, "decoder_ffn_dim": 16, "encoder_attention_heads": 2}
NARROW |= {"decoder_attention_heads": 2, "decoder_layers": 1, "encoder_layers": 1, "num_queries": 10}
LOCAL = {"use_timm_backbone": False, "use_pretrained_backbone": False, "backbone": None}


def _clip() -> Any:
    return hf.CLIPModel(hf.CLIPConfig(text_config=WORDS, vision_config=SMALL, projection_dim=24))


def _siglip() -> Any:
    return hf.SiglipModel(hf.SiglipConfig(text_config=WORDS, vision_config=SMALL))


def _segformer() -> Any:
    sizes = {"hidden_sizes": [8, 16, 16, 24], "depths": [1] * 4, "num_attention_heads": [1, 2, 2, 2]}
    return hf.SegformerForSemanticSegmentation(hf.SegformerConfig(**sizes, decoder_hidden_size=16, **NAMED))


def _yolos() -> Any:
    config = {**SMALL, "image_size": [32, 32], "num_detection_tokens": 10}
    return hf.YolosForObjectDetection(hf.YolosConfig(**config, **NAMED))


def _detr(kind: str = "Detr", **more: Any) -> Any:
    backbone = hf.ResNetConfig(**FOLDED, out_features=["stage2"])
    config = getattr(hf, f"{kind}Config")(**{**LOCAL, "backbone_config": backbone, **NARROW, **NAMED, **more})
    return getattr(hf, f"{kind}ForObjectDetection")(config)


def _deformable_detr() -> Any:
    points = {"encoder_n_points": 2, "decoder_n_points": 2, "num_feature_levels": 2}
    return _detr("DeformableDetr", d_model=32, decoder_layers=2, **points)


def _rt_detr() -> Any:
    sizes = {"embedding_size": 8, "hidden_sizes": [8, 16, 24, 32], "depths": [1] * 4, "layer_type": "basic"}
    backbone = hf.RTDetrResNetConfig(**sizes, out_features=["stage2", "stage3", "stage4"])
    channels = {"encoder_in_channels": [16, 24, 32], "decoder_in_channels": [16] * 3, "encoder_hidden_dim": 16}
    return hf.RTDetrForObjectDetection(
        hf.RTDetrConfig(**LOCAL, backbone_config=backbone, **channels, **NARROW, **NAMED, num_denoising=0)
    )


# The network, and the processor's class and settings.
Made = tuple[Callable[[], Any], str, Mapping[str, Any]]
ENCODERS: dict[str, Made] = {
    "dinov2": (lambda: hf.Dinov2Model(hf.Dinov2Config(**SMALL)), "Bit", CUT),
    "vit": (lambda: hf.ViTModel(hf.ViTConfig(**SMALL)), "ViT", {"size": SIDES}),
    "clip": (_clip, "CLIP", CUT),
    "clip-vision": (lambda: hf.CLIPVisionModel(hf.CLIPVisionConfig(**SMALL)), "CLIP", CUT),
    "clip-projected": (
        lambda: hf.CLIPVisionModelWithProjection(hf.CLIPVisionConfig(**SMALL, projection_dim=24)),
        "CLIP",
        CUT,
    ),
    "siglip": (_siglip, "Siglip", {"size": SIDES}),
    "siglip-vision": (lambda: hf.SiglipVisionModel(hf.SiglipVisionConfig(**SMALL)), "Siglip", {"size": SIDES}),
}
DETECTORS: dict[str, Made] = {
    "yolos": (_yolos, "Yolos", KEPT),
    "detr": (_detr, "Detr", KEPT),
    "conditional-detr": (lambda: _detr("ConditionalDetr"), "ConditionalDetr", KEPT),
    "rt-detr": (_rt_detr, "RTDetr", WHOLE),
}
ALL = ENCODERS | DETECTORS | {"segformer": (_segformer, "Segformer", WHOLE)}
ALL |= {"deformable-detr": (_deformable_detr, "DeformableDetr", KEPT)}


def save_vision(folder: Path, name: str, **processor: Any) -> Path:
    """One of these, as save_pretrained writes it."""
    make, kind, settings = ALL[name]
    torch.manual_seed(0)
    network = make().eval()
    with torch.no_grad():
        for parameter in network.parameters():  # so that the answers of a random network differ
            if parameter.ndim > 1:
                parameter.normal_(0, (2 / parameter[0].numel()) ** 0.5)
    network.save_pretrained(folder)
    image_processor_of(kind)(**{**settings, **processor}).save_pretrained(folder)
    return folder


def serve(folder: Path, name: str) -> tuple[Path, ModelClient]:
    """The checkpoint in `folder`, and the client of the model that is built of it."""
    checkpoint = save_vision(folder / "checkpoint", name)
    build(Request("own", str(checkpoint), repository=folder / "models"))
    client = open_model("own", folder / "models").client()
    assert client
    return checkpoint, client


def predict(client: ModelClient, pictures: list[Image.Image], **given: Any) -> list[Any]:
    """In batches of as many as the model takes."""
    run, size, found = runner(client), client.model.max_batch_size, []
    for first in range(0, len(pictures), size):
        batch = pictures[first : first + size]
        inputs = client.preprocess(batch)
        found += client.postprocess(run(inputs), inputs, batch, client.read_parameters(given))
    return found


def assert_detections(found: Any, picture: Image.Image, wanted: list[Any]) -> None:
    """Those of transformers' pipeline; its boxes are whole numbers."""
    assert wanted
    assert found["image"] == {"width": picture.width, "height": picture.height}
    ranked = sorted(wanted, key=lambda each: -each["score"])
    for ours, theirs in zip(found["detections"], ranked, strict=True):
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
    """transformers' own, with the processor that uses Pillow."""
    return hf.pipeline(task, model=str(checkpoint), image_processor=processor_of(checkpoint, name))


def processor_of(checkpoint: Path, name: str) -> Any:
    return image_processor_of(ALL[name][1]).from_pretrained(checkpoint)
