"""The models that can be built by name."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Recipe:
    """A row of RECIPES. `client` is also the family that reads the weights, "" for an ensemble; `weights` are the words
    that --weights takes, the default first (besides PATH and HUB-ID); `needs` are the packages that a word needs."""

    summary: str
    client: str
    weights: tuple[str, ...]
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


_RESNET = ("torch", "transformers")


def _yolov5(size: str, layout: str) -> Recipe:
    form = "anchor-free, as YOLOv8's" if layout else "classic"
    return Recipe(
        summary=f"YOLOv5{size}, 80 classes of COCO, 640×640, output {form}",
        client="yolov5",
        weights=("random",) if layout else ("pretrained", "random"),
        needs={"pretrained": ("torch",), "random": ("torch",)},
    )


RECIPES: dict[str, Recipe] = {
    "efficientnet": Recipe(
        summary="EfficientNet-Lite0, 1000 classes of ImageNet, 224×224", client="resnet", weights=("pretrained",)
    ),
    "yolov4_tiny": Recipe(
        summary="YOLOv4-tiny, 80 classes of COCO, 416×416, output as YOLOv5's", client="yolov5", weights=("pretrained",)
    ),
    "resnet": Recipe(
        summary="ResNet-18 at a quarter of its width; reads handwritten digits, 64×64",
        client="resnet",
        weights=("pretrained", "train"),
        needs={"train": (*_RESNET, "sklearn")},
    ),
    "resnet50": Recipe(
        summary="ResNet-50, 1000 classes of ImageNet, 224×224",
        client="resnet",
        weights=("pretrained", "random"),
        needs={"pretrained": _RESNET, "random": _RESNET},
    ),
    "yolov5": Recipe(
        summary="YOLOv5n; finds handwritten digits on pages, 640×640",
        client="yolov5",
        weights=("pretrained", "train"),
        needs={"train": ("torch", "sklearn")},
    ),
    **{f"yolov5{size}{u}": _yolov5(size, u) for u in ("", "u") for size in "nsmlx"},
    "bert": Recipe(summary="all-MiniLM-L6-v2, sentences to embeddings", client="bert", weights=("pretrained",)),
    "bert_base": Recipe(summary="BERT-base, fill-mask", client="bert", weights=("pretrained", "random")),
    "text_embedding": Recipe(
        summary="ensemble: tokenizer, bert, pooling inside Triton; STRING to FP32 [384]",
        client="",
        weights=("pretrained",),
    ),
    "inception": Recipe(
        summary="ensemble: decoding, Inception v3 inside Triton; an encoded image to FP32 [1001]",
        client="",
        weights=("random",),
        needs={"random": ("torch",)},
    ),
}
