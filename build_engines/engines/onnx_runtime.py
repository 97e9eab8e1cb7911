"""Creates the engines of --for cpu, openvino and gpu, which serve an ONNX or TorchScript file.

fp16 is refused for a CPU, because it was no faster than fp32 on any CPU that was measured.
"""

from pathlib import Path

import onnxruntime

from build_engines.engines import tensorrt
from build_engines.engines.cpu_quantization import quantize
from build_engines.errors import UsageError
from build_engines.families.find_family import by_client
from build_engines.model_spec import ONNX, TORCHSCRIPT, Engine, ModelSpec
from build_engines.request import Request
from serving.repository.cpu_engine import CPU_ENGINE, OPENVINO

ENGINE_CACHE = "/tmp/serve-engines"
NO_FP16 = (
    "fp16 is no faster than fp32 on a CPU (ONNX Runtime computes it in fp32): take fp32, int8, "
    "or --for gpu"
)


def for_cpu(model_spec: ModelSpec, folder: Path, request: Request) -> Engine:
    """Return the engine for a CPU. For int8, quantize 1/model.onnx in place; for fp32, leave the
    model's file as it is. Raise UsageError for fp16, and for int8 if the model is a TorchScript
    file."""
    if request.precision == "fp16":
        raise UsageError(NO_FP16)
    if model_spec.platform == TORCHSCRIPT:
        if request.precision == "int8":
            raise UsageError(
                "a TorchScript file is served as it is: quantize it in torch, or export it as ONNX"
            )
        return Engine(TORCHSCRIPT, "fp32")
    if request.precision == "int8":
        quantize(model_spec, folder, request)
        return Engine(ONNX, "int8", {"onnxruntime": onnxruntime.__version__}, runs_on_cpu=True)
    # The fp32 file can be served on a GPU too, unless it has operators that no GPU supports.
    return Engine(ONNX, "fp32", runs_on_cpu=by_client(model_spec.client).cpu_only)


def for_openvino(model_spec: ModelSpec, folder: Path, request: Request) -> Engine:
    """Return the engine for OpenVINO. For int8, quantize 1/model.onnx in place. For fp32, leave the
    file as it is; config_pbtxt.py decides whether OpenVINO may compute it in BF16.

    The configuration for a CPU names OpenVINO as the engine, because ONNX Runtime would run an INT8
    file made for OpenVINO slowly. Raise UsageError for fp16, and for a model that is not an ONNX
    file.
    """
    if request.precision == "fp16":
        raise UsageError(NO_FP16)
    if model_spec.platform != ONNX:
        raise UsageError("OpenVINO runs ONNX files: export the model as one")
    int8 = request.precision == "int8"
    if int8:
        quantize(model_spec, folder, request, OPENVINO)
    return Engine(ONNX, request.precision, runs_on_cpu=int8, cpu_parameters={CPU_ENGINE: OPENVINO})


def for_gpu(model_spec: ModelSpec, folder: Path, request: Request) -> Engine:
    """Return the engine for any GPU. 1/model.onnx stays as it is: ONNX Runtime's TensorRT provider
    serves it, so no plan has to be shipped. The provider builds an engine at the first request of
    each shape and keeps it in its cache. The `accelerator` parameters are described in the README
    of NVIDIA's ONNX Runtime backend ("ONNX Runtime with TensorRT optimization"). Raise UsageError
    for int8, and for a model that TensorRT cannot run."""
    tensorrt.check(model_spec)
    if request.precision not in ("fp32", "fp16"):
        raise UsageError(
            f"--for gpu has fp32 and fp16; for {request.precision} build a plan: --for tensorrt"
        )
    cache = {"trt_engine_cache_enable": "true", "trt_engine_cache_path": ENGINE_CACHE}
    return Engine(
        ONNX, request.precision, accelerator={"precision_mode": request.precision.upper(), **cache}
    )
