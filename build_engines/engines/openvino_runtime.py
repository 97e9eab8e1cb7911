"""Engines for a CPU, by OpenVINO: fp32 unchanged, which it computes in BF16 where the processor can, or INT8.

The configuration names the engine, because ONNX Runtime is slow with such an INT8 file.
"""

from pathlib import Path

from build_engines.engines.onnx_runtime import NO_FP16
from build_engines.engines.quantization import quantized
from build_engines.errors import UsageError
from build_engines.model_folder.spec import ONNX, Engine, ModelSpec
from build_engines.request import Request
from serving.repository.engines import OPENVINO, PARAMETER


def build(model_spec: ModelSpec, folder: Path, request: Request) -> Engine:
    """Leaves 1/model.onnx in the precision that is asked for."""
    if request.precision == "fp16":
        raise UsageError(NO_FP16)
    if request.precision == "auto":
        raise UsageError("--precision auto compares engines: say --for auto, or fp32 or int8 for this one")
    if model_spec.platform != ONNX:
        raise UsageError("OpenVINO runs ONNX files: export the model as one")
    if request.precision == "int8":
        quantized(model_spec, folder, request, OPENVINO).replace(folder / "1" / "model.onnx")
    int8 = request.precision == "int8"
    return Engine(ONNX, request.precision, cpu_only=int8, cpu_parameters={PARAMETER: OPENVINO})


def bound_to() -> dict[str, str]:
    """It runs on every processor."""
    return {}
