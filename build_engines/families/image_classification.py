"""Builds image classifiers, which return one score for each class: ResNet, EfficientNet, ViT and
others."""

from build_engines.families import (
    bundled,
    efficientnet,
    image_checkpoint,
    own_onnx,
    own_torchscript,
)
from build_engines.families.family import Family, Head
from build_engines.measures import CLASSES, IMAGES
from build_engines.weights import CHECKPOINT, ONNX_FILE, TORCHSCRIPT_FILE

FAMILY = Family(
    client="image_classification",
    writers={
        ONNX_FILE: own_onnx.write_model,
        TORCHSCRIPT_FILE: own_torchscript.write_model,
        CHECKPOINT: image_checkpoint.write_model,
    },
    own_weights={"resnet": bundled.write_model, "efficientnet": efficientnet.write_model},
    head=Head(architectures=("ForImageClassification",), loader="AutoModelForImageClassification"),
    example="efficientnet",
    classifies=True,
    samples=IMAGES,
    measure=lambda _: CLASSES,
    static_int8=True,
    any_cpu_engine=True,
)
