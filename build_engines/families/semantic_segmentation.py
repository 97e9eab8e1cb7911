"""Builds networks that return a class for each pixel of an image: SegFormer and others."""

from build_engines.families import image_checkpoint, own_onnx, own_torchscript
from build_engines.families.family import Family, Head
from build_engines.measures import IMAGES, PIXELS
from build_engines.weights import CHECKPOINT, ONNX_FILE, TORCHSCRIPT_FILE

FAMILY = Family(
    client="semantic_segmentation",
    writers={
        ONNX_FILE: own_onnx.write_model,
        TORCHSCRIPT_FILE: own_torchscript.write_model,
        CHECKPOINT: image_checkpoint.write_model,
    },
    head=Head(
        architectures=("ForSemanticSegmentation",), loader="AutoModelForSemanticSegmentation"
    ),
    example="efficientnet",
    samples=IMAGES,
    measure=lambda _: PIXELS,
)
