"""Serve the ONNX file on a GPU through ONNX Runtime's TensorRT provider: no plan to ship, any GPU.

The provider builds an engine at the first request of each shape and keeps it in its cache. The parameters are those of
NVIDIA's ONNX Runtime backend (its README, "ONNX Runtime with TensorRT optimization").
"""

from pathlib import Path

from build_engines.engines import tensorrt
from build_engines.errors import UsageError
from build_engines.model_folder.spec import ONNX, Engine, ModelSpec
from build_engines.request import Request

ENGINE_CACHE = "/tmp/serve-engines"
MODES = {"auto": "FP16", "fp16": "FP16", "fp32": "FP32"}


def build(model_spec: ModelSpec, folder: Path, request: Request) -> Engine:
    """Leave 1/model.onnx as it is; config.pbtxt names the provider."""
    tensorrt.check(model_spec)
    if request.precision not in MODES:
        raise UsageError(f"--for gpu has fp32 and fp16; for {request.precision} build a plan: --for tensorrt")
    mode = MODES[request.precision]
    cache = {"trt_engine_cache_enable": "true", "trt_engine_cache_path": ENGINE_CACHE}
    return Engine(ONNX, mode.lower(), accelerator={"precision_mode": mode, **cache})


def bound_to() -> dict[str, str]:
    """The same folder serves on every GPU."""
    return {}
