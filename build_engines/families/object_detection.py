"""Builds detectors with YOLO's output: YOLOv5, v8 to 26, and other networks exported in their
layouts. A build uses this family only if --client or the recipe names its client. The client
recognizes the layout (clients/_box_decoding.py)."""

from pathlib import Path

from build_engines.families import bundled, own_onnx, own_torchscript, yolov4_tiny
from build_engines.families.family import Family
from build_engines.measures import DETECTIONS, IMAGES
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.weights import ONNX_FILE, TENSORS, TORCHSCRIPT_FILE, Weights


def _write_yolov5(family: Family, weights: Weights, request: Request, folder: Path) -> ModelSpec:
    from build_engines.families import yolov5  # needs torch

    return yolov5.write_model(family, weights, request, folder)


FAMILY = Family(
    client="object_detection",
    writers={
        ONNX_FILE: own_onnx.write_model,
        TORCHSCRIPT_FILE: own_torchscript.write_model,
        TENSORS: _write_yolov5,
    },
    own_weights={"yolov5": bundled.write_model, "yolov4_tiny": yolov4_tiny.write_model},
    example="yolov4_tiny",
    boxes_in_pixels=True,
    samples=IMAGES,
    measure=lambda _: DETECTIONS,
    static_int8=True,
    fp32_head=True,
    any_cpu_engine=True,
)
