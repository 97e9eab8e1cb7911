"""TensorRT plans, by trtexec: 1/model.plan and its fingerprint beside 1/model.onnx, on the GPU that they are for.

    1/model.onnx --profile, precision--> trtexec --> 1/model.plan, 1/fingerprint.json (, 1/calibration.cache)

The ONNX file stays: `serve` builds from it again on another GPU, and serves it on a machine without one. INT8's
ranges are measured here, by ONNX Runtime on the calibration instances, and written as TensorRT's calibration cache.
"""

import math
import os
import struct
import tempfile
import time
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, create_calibrator

from build_engines.engines.calibration import calibration_batches, client_of
from build_engines.errors import BuildError, UsageError
from build_engines.model_folder.spec import MODEL_FILES, ONNX, PLAN, Engine, ModelSpec
from build_engines.request import Request
from build_engines.weights import onnx_files
from build_engines.weights.digests import digest
from build_engines.weights.downloads import cache_folder
from clients._resizing import keeps_ratio
from serving.preparation import trtexec
from serving.preparation.trtexec import CALIBRATION, Trtexec, TrtexecError
from serving.repository.fingerprint import Build, Fingerprint, Hardware, Profile, find_trtexec, this_hardware

INT64_SINCE = 10  # TensorRT's major version; older ones make INT32 of it, which the clients do not send
INT8_LEVELS = 127.0  # TensorRT's INT8 is symmetric: the largest value is 127 steps from 0


def build(model_spec: ModelSpec, folder: Path, request: Request) -> Engine:
    """Leaves 1/model.plan and 1/fingerprint.json beside 1/model.onnx; raises BuildError.

    The precision `auto` is fp16, which every GPU that TensorRT 8 and later run on computes fastest but for INT8.
    """
    if model_spec.platform != ONNX:
        raise UsageError("a TensorRT plan is built from an ONNX file: export the model as one")
    if keeps_ratio(model_spec.settings):
        raise UsageError(
            "a TensorRT plan is for images of one size, and this model's keep their proportions: leave --for tensorrt "
            "out, and ONNX Runtime serves it on a GPU too"
        )
    precision = "fp16" if request.precision == "auto" else request.precision
    onnx = folder / "1" / "model.onnx"
    try:
        program = trtexec.inspect(find_trtexec(os.environ))
        hardware = _hardware(program)
        _check_inputs(model_spec, program)
        calibration = _calibrated(model_spec, folder, request, program) if precision == "int8" else ""
        built = Build(
            source_sha256=digest(onnx),
            precision=precision,
            profile=profile(model_spec, onnx),
            calibration_sha256=calibration,
        )
        made = Fingerprint(hardware, built)
        _run(program, made, onnx)
    except TrtexecError as err:
        raise BuildError(str(err)) from err
    facts = {name: getattr(hardware, name) for name in ("gpu", "compute_capability", "tensorrt", "cuda", "driver")}
    return Engine(PLAN, precision, facts, preferred_batch_sizes=_preferred(model_spec))


def bound_to() -> dict[str, str]:
    """What of the machine a plan depends on; nothing where there is no GPU."""
    found = this_hardware()
    return {"gpu": found.gpu, "tensorrt": found.tensorrt} if found else {}


def profile(model_spec: ModelSpec, onnx: Path) -> Profile:
    """The shapes of the inputs that vary in the file; trtexec refuses shapes for one whose shape is fixed."""
    inputs, _ = onnx_files.specs(onnx_files.read(onnx))
    varying = [spec.name for spec in inputs if -1 in spec.shape]
    shapes = model_spec.profile()
    return {name: (shapes[name].minimum, shapes[name].optimum, shapes[name].maximum) for name in varying}


def _hardware(program: Trtexec) -> Hardware:
    """This machine's, with the version of the TensorRT that builds."""
    found = this_hardware()
    if found is None:
        raise BuildError(
            f"there is no GPU that nvidia-smi knows of, and a plan is built on the kind of GPU that "
            f"serves it; {trtexec.WHERE_TO_GET_IT}"
        )
    return replace(found, tensorrt=program.version)


def _check_inputs(model_spec: ModelSpec, program: Trtexec) -> None:
    wide = [spec.name for spec in model_spec.inputs if spec.datatype == "INT64"]
    if wide and int(program.version.partition(".")[0]) < INT64_SINCE:
        raise BuildError(
            f"the input '{wide[0]}' is INT64, which TensorRT {program.version} does not have: use an image with "
            f"TensorRT {INT64_SINCE} or newer (tritonserver 24.05 on)"
        )


def _run(program: Trtexec, made: Fingerprint, onnx: Path) -> None:
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    print(f"trtexec (TensorRT {program.version}) builds in {made.build.precision} for {made.hardware.gpu}", flush=True)

    def say(line: str) -> None:
        print(f"trtexec, {time.monotonic() - started:.0f} s: {line}", flush=True)

    timing = trtexec.timing_file(cache, made.hardware)
    trtexec.build(
        trtexec=program,
        fingerprint=made,
        onnx=onnx,
        plan=onnx.with_name(MODEL_FILES[PLAN]),
        timing=timing,
        say=say,
        seconds=math.inf,
    )


def _preferred(model_spec: ModelSpec) -> tuple[int, ...]:
    """The batch sizes that kernels were chosen for: the usual and the largest."""
    if not model_spec.max_batch_size or not model_spec.inputs:
        return ()
    shapes = model_spec.profile()[model_spec.inputs[0].name]
    return tuple(sorted({shapes.optimum[0], shapes.maximum[0]}))


def _calibrated(model_spec: ModelSpec, folder: Path, request: Request, program: Trtexec) -> str:
    """Writes 1/calibration.cache; its SHA-256."""
    client = client_of(model_spec, folder)
    if client is None:
        raise UsageError("INT8 is calibrated on instances that a client reads: name one with --client, or take fp16")
    onnx, cache = folder / "1" / "model.onnx", folder / "1" / CALIBRATION
    ranges = activation_ranges(onnx, calibration_batches(client, model_spec.client, request))
    cache.write_text(calibration_cache(ranges, program.code), encoding="utf-8")
    return digest(cache)


def activation_ranges(onnx: Path, batches: CalibrationDataReader) -> dict[str, float]:
    """The largest absolute value of each tensor of the graph, by its name."""
    with tempfile.TemporaryDirectory() as scratch:
        calibrator = create_calibrator(
            str(onnx),
            augmented_model_path=str(Path(scratch) / "augmented.onnx"),
            calibrate_method=CalibrationMethod.MinMax,
        )
        calibrator.collect_data(batches)
        found = calibrator.compute_data()
    bounds = {name: found[name].range_value for name in found}
    return {name: float(max(abs(low).max(), abs(high).max())) for name, (low, high) in bounds.items()}


def calibration_cache(ranges: Mapping[str, float], code: int) -> str:
    """As TensorRT's IInt8EntropyCalibrator2 writes it, for the version `code`: a header, then NAME: SCALE.

    A scale is one step of INT8, a 32-bit float whose bytes, the highest first, are written in hexadecimal digits.
    """
    scales = {name: value / INT8_LEVELS for name, value in sorted(ranges.items()) if value > 0}
    lines = [f"{name}: {struct.pack('>f', scale).hex()}" for name, scale in scales.items()]
    return "\n".join([f"TRT-{code}-EntropyCalibration2", *lines]) + "\n"
