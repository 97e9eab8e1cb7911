"""transformers' networks of one image: how each kind is loaded, and which of its results its client reads."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from transformers import (
    AutoModel,
    AutoModelForImageClassification,
    AutoModelForObjectDetection,
    AutoModelForSemanticSegmentation,
    CLIPVisionModelWithProjection,
)

from build_engines.errors import BuildError, first_line
from build_engines.families.torch_checkpoint import check_whole
from clients.detr import BOXES, LOGITS

OUTPUT = "logits"
CLOSE = 1e-3
STRANGE_BOXES = 0.05  # the share of a detector's boxes that may be others
Arrays = Sequence[NDArray[np.float32]]
OFFLINE: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}


@dataclass(frozen=True)
class Head:
    """How a client's networks are loaded, the outputs that they are given, what of their result these are, and whether
    two results are the same."""

    loader: Any
    outputs: tuple[str, ...]
    read: Callable[[Any, torch.Tensor], tuple[torch.Tensor, ...]]
    same: Callable[[Arrays, Arrays], bool]


def _equal(found: Arrays, wanted: Arrays) -> bool:
    return all(np.allclose(a, b, rtol=CLOSE, atol=CLOSE) for a, b in zip(found, wanted, strict=True))


def _equal_sets(found: Arrays, wanted: Arrays) -> bool:
    """Boxes have no order, and of equally good ones a network may choose others."""
    for ours, theirs in zip(np.concatenate(found, 2), np.concatenate(wanted, 2), strict=True):
        nearest = np.abs(ours[:, None] - theirs).max(2).min(0)
        if (nearest > CLOSE * max(1, np.abs(theirs).max())).mean() > STRANGE_BOXES:
            return False
    return True


def _logits(network: Any, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return (network(images).logits,)


def _boxes(network: Any, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    found = network(images)
    return found.logits, found.pred_boxes


def _vector(network: Any, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """What CLIP and SigLIP compare with texts, else the pooled output."""
    if isinstance(network, CLIPVisionModelWithProjection):
        return (network(images).image_embeds,)
    found = network.get_image_features(images) if hasattr(network, "get_image_features") else network(images)
    if getattr(found, "pooler_output", None) is None:
        raise BuildError(f"{type(network).__name__} has no pooled output, so it says no one vector for an image")
    return (found.pooler_output,)


HEADS = {
    "resnet": Head(AutoModelForImageClassification, (OUTPUT,), _logits, _equal),
    "semantic_segmentation": Head(AutoModelForSemanticSegmentation, (OUTPUT,), _logits, _equal),
    "detr": Head(AutoModelForObjectDetection, (LOGITS, BOXES), _boxes, _equal_sets),
    "image_embedding": Head(AutoModel, ("embedding",), _vector, _equal),
}


def load(checkpoint: Path, head: Head) -> Any:
    """The network of a folder; BuildError where it is not all there."""
    named = (json.loads((checkpoint / "config.json").read_text(encoding="utf-8")).get("architectures") or [""])[0]
    loader = CLIPVisionModelWithProjection if named == CLIPVisionModelWithProjection.__name__ else head.loader
    try:
        network, found = loader.from_pretrained(
            checkpoint, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, **OFFLINE
        )
    except Exception as err:  # each network raises its own
        told = " ".join(str(err).split()) if isinstance(err, ImportError) else first_line(err)  # it names the package
        raise BuildError(f"{checkpoint} cannot be loaded as a {named or 'network'}: {told}") from err
    check_whole(checkpoint, found)
    return network.eval()
