"""Builds image classifiers, which return one score for each class: ResNet, EfficientNet, ViT and
others."""

from build_engines.families import bundled, efficientnet
from build_engines.families.family import Family, Head
from build_engines.families.image_checkpoint import WRITERS
from build_engines.measures import CLASSES, IMAGES

FAMILY = Family(
    client="image_classification",
    writers=WRITERS,
    own_weights={"resnet": bundled.write_model, "efficientnet": efficientnet.write_model},
    head=Head(architectures=("ForImageClassification",), loader="AutoModelForImageClassification"),
    example="efficientnet",
    classifies=True,
    samples=IMAGES,
    measure=lambda _: CLASSES,
    static_int8=True,
    any_cpu_engine=True,
)
