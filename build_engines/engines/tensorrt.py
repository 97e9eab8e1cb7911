"""Builds a TensorRT plan with trtexec, which must run on the kind of GPU that will serve the plan.

    1/model.onnx, profile, precision (INT8: 1/calibration.cache) --> trtexec --> 1/model.plan

The ONNX file is kept, for machines without a GPU and for building plans for other GPUs. For INT8,
ONNX Runtime measures the range of each tensor on the calibration samples, and these ranges are
written as TensorRT's calibration cache.
"""

import re
import struct
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path

import numpy as np
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, create_calibrator

from build_engines import onnx_reader
from build_engines.build_record import cache_folder
from build_engines.engines.calibration import calibration_batches, client_in
from build_engines.engines.trtexec import WHERE_TO_GET_IT, Trtexec, this_gpu
from build_engines.errors import BuildError, UsageError
from build_engines.model_spec import ONNX, PLAN, Engine, ModelSpec
from build_engines.request import Request
from clients._image_settings import keeps_ratio

CALIBRATION = "calibration.cache"
INT8_LEVELS = 127.0  # TensorRT's INT8 is symmetric: the largest value is 127 steps from 0


def build(model_spec: ModelSpec, folder: Path, request: Request) -> Engine:
    """Write 1/model.plan beside 1/model.onnx, and return the engine. Raise BuildError if the plan
    cannot be built here, and UsageError if it cannot be built from this model."""
    check(model_spec)
    onnx = folder / "1" / "model.onnx"
    gpu = this_gpu()
    program = Trtexec.find()
    if not gpu:
        raise BuildError(
            "nvidia-smi finds no GPU, and a plan must be built on the kind of GPU that serves "
            f"it; {WHERE_TO_GET_IT}"
        )
    calibration = None
    if request.precision == "int8":
        calibration = _write_calibration(model_spec, folder, request, program.code)
    shapes = model_spec.profile()
    inputs, _ = onnx_reader.specs(onnx_reader.read(onnx))
    profile = {spec.name: shapes[spec.name] for spec in inputs if -1 in spec.shape}
    print(
        f"trtexec (TensorRT {program.version}) builds in {request.precision} for {gpu.gpu}",
        flush=True,
    )
    timing = _timing_cache(gpu.gpu, program.version)
    program.build(onnx, request.precision, profile, timing, calibration)
    largest = model_spec.max_batch_size
    half = max(largest // 2, 1)  # the typical batch of the profile
    return Engine(
        PLAN,
        request.precision,
        {**asdict(gpu), "tensorrt": program.version},
        preferred_batch_sizes=tuple(sorted({half, largest})) if largest else (),
    )


def check(model_spec: ModelSpec) -> None:
    """Raise UsageError for a model that is not an ONNX file, or that has resize=keep_ratio."""
    if model_spec.platform != ONNX:
        raise UsageError("a TensorRT plan is built from an ONNX file: export the model as one")
    if keeps_ratio(model_spec.settings):
        raise UsageError(
            "TensorRT takes images of one size, and this model's images keep their "
            "proportions: build it with --for cpu, which ONNX Runtime serves on a GPU too"
        )


def _timing_cache(gpu: str, version: str) -> Path:
    """Create the cache folder. Return the path of the file for kernel timings, which are valid only
    for one kind of GPU and one version of TensorRT."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", f"timing-{gpu}-{version}")
    cache_folder().mkdir(parents=True, exist_ok=True)
    return cache_folder() / f"{name}.cache"


def _write_calibration(model_spec: ModelSpec, folder: Path, request: Request, code: int) -> Path:
    """Write 1/calibration.cache for the TensorRT version `code`, and return its path. Raise
    UsageError if the model has no client, or if there are no samples to calibrate with."""
    client = client_in(folder, model_spec)
    if client is None:
        raise UsageError(
            "INT8 is calibrated on instances that a client reads: name one with --client, "
            "or take fp16"
        )
    cache = folder / "1" / CALIBRATION
    ranges = activation_ranges(folder / "1/model.onnx", calibration_batches(client, request))
    cache.write_text(calibration_cache(ranges, code), encoding="utf-8")
    return cache


def activation_ranges(onnx: Path, batches: CalibrationDataReader) -> dict[str, float]:
    """Run the model on the batches. Return the largest absolute value of each FP32 or FP16 tensor
    in the graph that is not a weight, keyed by the tensor's name."""
    with tempfile.TemporaryDirectory() as scratch:
        calibrator = create_calibrator(
            str(onnx),
            augmented_model_path=str(Path(scratch) / "augmented.onnx"),
            calibrate_method=CalibrationMethod.MinMax,
        )
        calibrator.collect_data(batches)
        ranges = calibrator.compute_data()
    largest = {}
    for name in ranges:
        lowest_and_highest = ranges[name].range_value
        largest[name] = float(np.abs(lowest_and_highest).max())
    return largest


def calibration_cache(largest: Mapping[str, float], code: int) -> str:
    """Return a calibration cache in the format of TensorRT's IInt8EntropyCalibrator2: a header with
    the version `code`, then a line NAME: SCALE for each tensor that is not always 0.

    `largest` holds the largest absolute value of each tensor. A scale is the size of one INT8 step,
    written as a big-endian 32-bit float in hexadecimal.
    """
    lines = [f"TRT-{code}-EntropyCalibration2"]
    for name, value in sorted(largest.items()):
        if value > 0:
            scale = struct.pack(">f", value / INT8_LEVELS)
            lines.append(f"{name}: {scale.hex()}")
    return "\n".join(lines) + "\n"
