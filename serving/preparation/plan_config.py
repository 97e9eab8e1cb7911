"""What the config.pbtxt of a TensorRT model says for a build, and the same model's config.pbtxt for ONNX Runtime."""

from pathlib import Path
from typing import Any

from google.protobuf import text_format

from serving.repository.fingerprint import Build
from serving.repository.model_config import ModelConfig

LENGTHS = (1, 128, 512)  # the least, the usual and the most of a dimension that varies
TENSORRT_PROVIDER = "onnxruntime_tensorrt"
HALF = ("fp16", "int8")


def build_by_config(config: Any, source_sha256: str) -> Build:
    """How a plan without a fingerprint is built: in fp32, for batches up to max_batch_size."""
    varying = [tensor for tensor in config.input if config.max_batch_size or -1 in tensor.dims]
    profile = {tensor.name: _shapes(tuple(tensor.dims), config.max_batch_size) for tensor in varying}
    return Build(source_sha256, "fp32", profile)


def _shapes(dims: tuple[int, ...], batch: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    batches = ((1,), (max(batch // 2, 1),), (batch,)) if batch else ((), (), ())
    least, usual, most = (
        (*first, *(length if size == -1 else size for size in dims))
        for first, length in zip(batches, LENGTHS, strict=True)
    )
    return least, usual, most


def onnx_config(given: Any, onnx: str, setting: str, gpu: bool, build: Build | None, cache: Path) -> str:
    """The config.pbtxt with which ONNX Runtime serves the file `onnx`, of the model's ModelConfig.

    Where there is a `gpu`, `setting` chooses its provider, whose own plans go into `cache`; else it runs on the CPU.
    """
    config = ModelConfig()
    config.CopyFrom(given)
    config.platform, config.backend = "onnxruntime_onnx", ""
    if config.default_model_filename:
        config.default_model_filename = onnx
    config.optimization.ClearField("cuda")
    for group in config.instance_group:
        del group.profile[:]
        if not gpu:
            group.kind = group.KIND_CPU
            del group.gpus[:]
    if gpu and setting == TENSORRT_PROVIDER:
        _add_tensorrt(config, bool(build and build.precision in HALF), cache)
    return "# Written by serve.\n" + str(text_format.MessageToString(config))


def _add_tensorrt(config: Any, half: bool, cache: Path) -> None:
    """Parameters as NVIDIA's ONNX Runtime backend has them (its README, "ONNX Runtime with TensorRT optimization")."""
    provider = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
    provider.parameters["precision_mode"] = "FP16" if half else "FP32"
    provider.parameters["trt_engine_cache_enable"] = "true"
    provider.parameters["trt_engine_cache_path"] = str(cache)
