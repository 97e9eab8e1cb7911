"""The models that can be built by name."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Recipe:
    """A row of RECIPES.

    `client` is also the family that reads the weights. `hub` is the Hugging Face model with the
    weights, `url` and `sha256` are the publisher's file. All three are "" if the weights come from
    elsewhere.
    """

    summary: str
    client: str
    hub: str = ""
    url: str = ""
    sha256: str = ""


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
    "resnet50": Recipe(
        "ResNet-50, 1000 classes of ImageNet, 224×224", "resnet", hub="microsoft/resnet-50"
    ),
    "yolov5": Recipe("YOLOv5n; finds handwritten digits on pages, 640×640", "yolov5"),
    "yolov5s": Recipe(
        "YOLOv5s, 80 classes of COCO, 640×640 (AGPL-3.0)",
        "yolov5",
        url="https://github.com/ultralytics/yolov5/releases/download/v7.0/yolov5s.pt",
        sha256="8b3b748c1e592ddd8868022e8732fde20025197328490623cc16c6f24d0782ee",
    ),
    "bert": Recipe("all-MiniLM-L6-v2, sentences to embeddings", "bert"),
    "bert_base": Recipe("BERT-base, fill-mask", "bert", hub="google-bert/bert-base-uncased"),
}
