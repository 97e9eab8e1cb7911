"""Builds image classifiers, which return one score for each class: ResNet, EfficientNet, ViT and
others."""

from build_engines.families import bundled, efficientnet
from build_engines.families.family import Family, Head
from build_engines.families.image_checkpoint import EXPORTS
from build_engines.measures import CLASSES, IMAGES

FAMILY = Family(
    client="image_classification",
    exports=EXPORTS,
    own_weights={"resnet": bundled.export, "efficientnet": efficientnet.export},
    head=Head(("ForImageClassification",), "AutoModelForImageClassification"),
    example="efficientnet",
    classifies=True,
    samples=IMAGES,
    measure=lambda _: CLASSES,
    static_int8=True,
    any_cpu_engine=True,
)
