"""The models that can be built by name, and what the command line asks for."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from build_engines.config import Serving

REPOSITORY = Path(__file__).resolve().parents[1] / "model_repository"
PRECISIONS = ("auto", "fp32", "fp16", "int8")
TARGETS = ("auto", "cpu", "tensorrt")


@dataclass(frozen=True)
class Recipe:
    """A row of RECIPES. `module` has `draft(request, folder) -> Draft`; `weights` are the words that --weights
    takes, the default first (besides PATH and HUB-ID); `needs` are the packages that one of them needs."""

    summary: str
    module: str
    client: str
    weights: tuple[str, ...]
    needs: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """What is to be built. `target` is cpu or tensorrt; `name` is the model's folder, "" for the usual one.

    `boxes` is how many leave a detector's network, 0 for all and -1 for the usual number; `calibration` is a folder of
    images, or a file of texts, for INT8; `settings` are the client's."""

    model: str
    weights: str = ""
    precision: str = "fp32"
    target: str = "cpu"
    repository: Path = REPOSITORY
    name: str = ""
    client: str = ""
    task: str = ""
    labels: Path | None = None
    calibration: Path | None = None
    max_batch_size: int = -1
    size: int = 0
    boxes: int = -1
    inputs: tuple[str, ...] = ()
    controls: tuple[str, ...] = ()
    settings: Mapping[str, str] = field(default_factory=dict)
    serving: Serving = field(default_factory=Serving)

    @property
    def recipe(self) -> "Recipe | None":
        """None for a model of the user's own."""
        return RECIPES.get(self.model)

    @property
    def source(self) -> str:
        """The weights, the recipe's default where none are named."""
        return self.weights or (self.recipe.weights[0] if self.recipe else "")


_TORCH = ("torch", "transformers")
_YOLO = {"pretrained": ("torch",), "random": ("torch",)}


def _yolov5(size: str, layout: str) -> Recipe:
    words = ("random",) if layout else ("pretrained", "random")
    form = "anchor-free, as YOLOv8's" if layout else "classic"
    return Recipe(
        f"YOLOv5{size}, 80 classes of COCO, 640×640, output {form}", "build_engines.yolov5", "yolov5", words, _YOLO
    )


RECIPES: dict[str, Recipe] = {
    "resnet": Recipe(
        "ResNet-18 at a quarter of its width; reads handwritten digits, 64×64",
        "build_engines.resnet",
        "resnet",
        ("pretrained", "train"),
        {"train": (*_TORCH, "sklearn")},
    ),
    "resnet50": Recipe(
        "ResNet-50, 1000 classes of ImageNet, 224×224",
        "build_engines.resnet",
        "resnet",
        ("pretrained", "random"),
        {"pretrained": _TORCH, "random": _TORCH},
    ),
    "yolov5": Recipe(
        "YOLOv5n; finds handwritten digits on pages, 640×640",
        "build_engines.yolov5",
        "yolov5",
        ("pretrained", "train"),
        {"train": ("torch", "sklearn")},
    ),
    **{f"yolov5{size}{u}": _yolov5(size, u) for u in ("", "u") for size in "nsmlx"},
    "bert": Recipe("all-MiniLM-L6-v2, sentences to embeddings", "build_engines.bert", "bert", ("pretrained",)),
    "bert_base": Recipe("BERT-base, fill-mask", "build_engines.bert", "bert", ("pretrained", "random")),
    "text_embedding": Recipe(
        "ensemble: tokenizer, bert, pooling inside Triton; STRING to FP32 [384]",
        "build_engines.text_embedding",
        "",
        ("pretrained",),
    ),
    "inception": Recipe(
        "ensemble: decoding, Inception v3 inside Triton; an encoded image to FP32 [1001]",
        "build_engines.inception",
        "",
        ("random",),
        {"random": ("torch",)},
    ),
    "digits_reader": Recipe(
        "chain: yolov5 finds, resnet is asked about each piece that is cut out",
        "build_engines.digits_reader",
        "yolov5",
        ("pretrained",),
    ),
}
ENSEMBLES = ("text_embedding", "inception", "digits_reader")  # whose modules have build(request, force)
