"""What the config.pbtxt of a TensorRT model says for a build, and the same model's config.pbtxt for ONNX Runtime."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.repository.fingerprint import Build
from serving.repository.model_config import ModelConfig, written
from serving.repository.plans import PlanModel, Version
from serving.settings.table import Settings

LENGTHS = (1, 128, 512)  # the least, the usual and the most of a dimension that varies
TENSORRT_PROVIDER = "onnxruntime_tensorrt"
HALF = ("fp16", "int8")


def wanted_build(config: Any, version: Version) -> Build:
    """How the plan was built before; where that is not known, in fp32 for batches up to max_batch_size."""
    if version.fingerprint:
        return replace(version.fingerprint.build, source_sha256=version.source)
    batch = config.max_batch_size
    varying = [tensor for tensor in config.input if batch or -1 in tensor.dims]
    return Build(version.source, "fp32", {tensor.name: _shapes(tuple(tensor.dims), batch) for tensor in varying})


def _shapes(dims: tuple[int, ...], batch: int) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    batches = ((1,), (max(batch // 2, 1),), (batch,)) if batch else ((), (), ())
    least, usual, most = (
        (*first, *(length if size == -1 else size for size in dims))
        for first, length in zip(batches, LENGTHS, strict=True)
    )
    return least, usual, most


def onnx_config(model: PlanModel, found: Sequence[Version], settings: Settings) -> str:
    """The config.pbtxt with which ONNX Runtime serves the model's ONNX file, on the GPU where there is one."""
    config = ModelConfig()
    config.CopyFrom(model.config)
    config.platform, config.backend = "onnxruntime_onnx", ""
    if config.default_model_filename:
        config.default_model_filename = model.onnx
    config.optimization.ClearField("cuda")
    gpu = settings.device == "gpu"
    for group in config.instance_group:
        del group.profile[:]
        if not gpu:
            group.kind = group.KIND_CPU
            del group.gpus[:]
    if gpu and settings.tensorrt == TENSORRT_PROVIDER:
        precisions = [version.fingerprint.build.precision for version in found if version.fingerprint]
        _add_tensorrt(config, bool(precisions and precisions[-1] in HALF), settings.engine_cache)
    return written(config)


def _add_tensorrt(config: Any, half: bool, cache: Path) -> None:
    """Parameters as NVIDIA's ONNX Runtime backend has them (its README, "ONNX Runtime with TensorRT optimization")."""
    provider = config.optimization.execution_accelerators.gpu_execution_accelerator.add(name="tensorrt")
    provider.parameters["precision_mode"] = "FP16" if half else "FP32"
    provider.parameters["trt_engine_cache_enable"] = "true"
    provider.parameters["trt_engine_cache_path"] = str(cache)
