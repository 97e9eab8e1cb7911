"""Lists the models that can be built by name, because their weights come with the project or a
Python package."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """Describes a model that can be built by name. `client` names its client, perhaps by an alias
    in CLIENT_ALIASES, and also selects the family that builds it."""

    summary: str
    client: str


RECIPES: dict[str, Recipe] = {
    "efficientnet": Recipe(
        "EfficientNet-Lite0, 1000 classes of ImageNet, 224×224", "image_classification"
    ),
    "yolov4_tiny": Recipe(
        "YOLOv4-tiny, 80 classes of COCO, 416×416, output as YOLOv5's", "object_detection"
    ),
    "resnet": Recipe(
        "ResNet-18 at a quarter of its width; reads handwritten digits, 64×64", "resnet"
    ),
    "yolov5": Recipe("YOLOv5n; finds handwritten digits on pages, 640×640", "yolov5"),
    "bert": Recipe("all-MiniLM-L6-v2, sentences to embeddings", "bert"),
}
