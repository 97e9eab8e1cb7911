"""Engines for a CPU, by ONNX Runtime: fp32 unchanged, or INT8 if that keeps the accuracy.

fp16 is no faster than fp32 on any CPU that was measured.
"""

from pathlib import Path

import onnxruntime

from build_engines.engines.calibration import client_of, model_of
from build_engines.engines.quantization import quantized
from build_engines.errors import BuildError, UsageError
from build_engines.measurement import comparison, timing
from build_engines.measurement.runners import onnx_runner
from build_engines.model_folder.spec import ONNX, TORCHSCRIPT, Engine, ModelSpec
from build_engines.request import Request

FASTER = 1.2  # how much faster INT8 must be, for auto to take it
NO_FP16 = "fp16 is no faster than fp32 on a CPU (ONNX Runtime computes it in fp32): take fp32, int8, or --for tensorrt"


def build(model_spec: ModelSpec, folder: Path, request: Request) -> Engine:
    """Leaves 1/model.onnx in the precision that is asked for."""
    if request.precision == "fp16":
        raise UsageError(NO_FP16)
    facts = {"onnxruntime": onnxruntime.__version__}
    if model_spec.platform == TORCHSCRIPT:
        if request.precision == "int8":
            raise UsageError("a TorchScript file is served as it is: quantise it in torch, or export it as ONNX")
        return Engine(TORCHSCRIPT, "fp32")
    if request.precision == "int8":
        model = quantized(model_spec, folder, request)
        model.replace(folder / "1" / "model.onnx")
        return Engine(ONNX, "int8", facts, cpu_only=True)
    if model_spec.cpu_only:
        return Engine(ONNX, "fp32", cpu_only=True)
    if request.precision == "auto":
        return _faster(model_spec, folder, request, facts)
    return Engine(ONNX, "fp32")


def bound_to() -> dict[str, str]:
    """An engine for a CPU is up to date on every machine."""
    return {}


def _faster(model_spec: ModelSpec, folder: Path, request: Request, facts: dict[str, str]) -> Engine:
    """INT8 if it is faster here and within the limits for its kind of model, else fp32; prints why."""
    reference = folder / "1" / "model.onnx"
    try:
        model = quantized(model_spec, folder, request)
    except BuildError as err:
        print(f"auto: fp32, for INT8 is not possible: {err}", flush=True)
        return Engine(ONNX, "fp32")
    client, described = client_of(model_spec, folder), model_of(model_spec, folder)
    runs = [onnx_runner(path) for path in (reference, model)]
    feed = timing.example_feed(described, batch=1, length=min(model_spec.lengths[1], 128))
    fp32, int8 = timing.latencies([lambda run=run: run(feed) for run in runs])  # type: ignore[misc]
    faster = fp32 >= FASTER * int8
    scores = comparison.compare(described, client, runs[1], runs[0]) if faster else []
    found = "; ".join(map(str, scores)) or f"int8 is not {FASTER} times as fast"
    print(f"auto: fp32 {fp32:.2f} ms, int8 {int8:.2f} ms; {found}", flush=True)
    if not faster or not all(score.passed for score in scores):
        model.unlink()
        return Engine(ONNX, "fp32")
    model.replace(reference)
    return Engine(ONNX, "int8", facts, cpu_only=True)
