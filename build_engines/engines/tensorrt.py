"""Build a TensorRT plan with trtexec, on the kind of GPU that serves it.

    1/model.onnx --profile, precision--> trtexec --> 1/model.plan (, 1/calibration.cache)

The ONNX file stays: it is served on a machine without a GPU, and a plan for another GPU is built from it. INT8's
ranges are measured here, by ONNX Runtime on the calibration instances, and written as TensorRT's calibration cache.
"""

import re
import struct
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, create_calibrator

from build_engines.engines import trtexec
from build_engines.engines.quantization import calibration_batches, client_of
from build_engines.engines.trtexec import Build, Gpu, Profile, Trtexec, TrtexecError, this_gpu
from build_engines.errors import BuildError, UsageError
from build_engines.model_folder.files import cache_folder
from build_engines.model_folder.spec import MODEL_FILES, ONNX, PLAN, Engine, ModelSpec
from build_engines.request import Request
from build_engines.weights import onnx_files
from clients._image import keeps_ratio

CALIBRATION = "calibration.cache"
INT64_SINCE = 10  # TensorRT's major version; older ones make INT32 of it, which the clients do not send
INT8_LEVELS = 127.0  # TensorRT's INT8 is symmetric: the largest value is 127 steps from 0


def build(model_spec: ModelSpec, folder: Path, request: Request) -> Engine:
    """Write 1/model.plan beside 1/model.onnx; raise BuildError."""
    check(model_spec)
    precision = request.precision
    onnx = folder / "1" / "model.onnx"
    try:
        program, gpu = trtexec.inspect(), _gpu()
        _check_inputs(model_spec, program)
        calibration = _calibrated(model_spec, folder, request, program) if precision == "int8" else None
        timing = _timing_file(gpu, program)
        _run(program, gpu, Build(onnx, precision, profile(model_spec, onnx), timing, calibration))
    except TrtexecError as err:
        raise BuildError(str(err)) from err
    facts = {
        "gpu": gpu.name,
        "compute_capability": gpu.compute_capability,
        "driver": gpu.driver,
        "tensorrt": program.version,
    }
    return Engine(PLAN, precision, facts, preferred_batch_sizes=_preferred(model_spec))


def check(model_spec: ModelSpec) -> None:
    """Raise UsageError for a model that TensorRT does not take."""
    if model_spec.platform != ONNX:
        raise UsageError("a TensorRT plan is built from an ONNX file: export the model as one")
    if keeps_ratio(model_spec.settings):
        raise UsageError(
            "TensorRT takes images of one size, and this model's images keep their proportions: build it with "
            "--for cpu, which ONNX Runtime serves on a GPU too"
        )


def bound_to() -> dict[str, str]:
    """Return what a plan depends on of this machine; nothing where none can be built."""
    try:
        gpu = this_gpu()
        return {"gpu": gpu.name, "tensorrt": trtexec.inspect().version} if gpu else {}
    except TrtexecError:
        return {}


def profile(model_spec: ModelSpec, onnx: Path) -> Profile:
    """Return the shapes of the inputs that vary in the file; trtexec refuses shapes for an input of a fixed shape."""
    inputs, _ = onnx_files.specs(onnx_files.read(onnx))
    varying = [spec.name for spec in inputs if -1 in spec.shape]
    shapes = model_spec.profile()
    return {name: shapes[name] for name in varying}


def _gpu() -> Gpu:
    if gpu := this_gpu():
        return gpu
    raise BuildError(
        "there is no GPU that nvidia-smi knows of, and a plan is built on the kind of GPU that serves it; "
        f"{trtexec.WHERE_TO_GET_IT}"
    )


def _timing_file(gpu: Gpu, program: Trtexec) -> Path:
    """Return the file that keeps the times of kernels, which hold for one GPU and one TensorRT version."""
    folder = cache_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder / (re.sub(r"[^A-Za-z0-9.]+", "-", f"timing-{gpu.name}-{program.version}") + ".cache")


def _check_inputs(model_spec: ModelSpec, program: Trtexec) -> None:
    wide = [spec.name for spec in model_spec.inputs if spec.datatype == "INT64"]
    if wide and int(program.version.partition(".")[0]) < INT64_SINCE:
        raise BuildError(
            f"the input '{wide[0]}' is INT64, which TensorRT {program.version} does not have: use an image with "
            f"TensorRT {INT64_SINCE} or newer (tritonserver 24.05 on)"
        )


def _run(program: Trtexec, gpu: Gpu, wanted: Build) -> None:
    started = time.monotonic()
    print(f"trtexec (TensorRT {program.version}) builds in {wanted.precision} for {gpu.name}", flush=True)

    def say(line: str) -> None:
        print(f"trtexec, {time.monotonic() - started:.0f} s: {line}", flush=True)

    trtexec.build(program, wanted, wanted.onnx.with_name(MODEL_FILES[PLAN]), say)


def _preferred(model_spec: ModelSpec) -> tuple[int, ...]:
    """The batch sizes that kernels were chosen for: the usual and the largest."""
    if not model_spec.max_batch_size or not model_spec.inputs:
        return ()
    _, usual, largest = model_spec.profile()[model_spec.inputs[0].name]
    return tuple(sorted({usual[0], largest[0]}))


def _calibrated(model_spec: ModelSpec, folder: Path, request: Request, program: Trtexec) -> Path:
    """Write 1/calibration.cache."""
    client = client_of(model_spec, folder)
    if client is None:
        raise UsageError("INT8 is calibrated on instances that a client reads: name one with --client, or take fp16")
    onnx, cache = folder / "1" / "model.onnx", folder / "1" / CALIBRATION
    ranges = activation_ranges(onnx, calibration_batches(client, model_spec.client, request))
    cache.write_text(calibration_cache(ranges, program.code), encoding="utf-8")
    return cache


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
