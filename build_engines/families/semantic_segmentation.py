"""Builds networks that classify each pixel of an image: SegFormer and others."""

from build_engines.families.family import Family, Head
from build_engines.families.image_checkpoint import WRITERS
from build_engines.measures import IMAGES, PIXELS

FAMILY = Family(
    client="semantic_segmentation",
    writers=WRITERS,
    head=Head(
        architectures=("ForSemanticSegmentation",), loader="AutoModelForSemanticSegmentation"
    ),
    example="efficientnet",
    samples=IMAGES,
    measure=lambda _: PIXELS,
)
