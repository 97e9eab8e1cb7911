"""Stands in for NVIDIA's trtexec, which needs an NVIDIA GPU. It takes the options that trtexec
documents for the version (NVIDIA/TensorRT, samples/common/sampleOptions.cpp). It refuses others,
and wrong shapes, with trtexec's own messages, and prints in trtexec's format. Its plan is the ONNX
file with a mark, so that a stand-in backend can run it. The variables STAND_IN_* choose the version
and the faults."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

COMMON = {
    "duration",
    "exportOutput",
    "help",
    "iterations",
    "loadEngine",
    "loadInputs",
    "maxShapes",
    "memPoolSize",
    "minShapes",
    "onnx",
    "optShapes",
    "saveEngine",
    "shapes",
    "skipInference",
    "timingCacheFile",
    "verbose",
    "warmUp",
}
OPTIONS = {  # keyed by version, as NvInferVersion.h encodes it
    8601: COMMON | {"fp16", "int8", "calib", "workspace"},
    100800: COMMON | {"fp16", "int8", "calib", "stronglyTyped"},
    110000: COMMON,
}
CODE = int(os.environ.get("STAND_IN_TENSORRT", "100800"))
MARK = "built by the stand-in for trtexec"


def say(level: str, text: str) -> None:
    print(f"[11/21/2026-06:30:05] [{level}] {text}", flush=True)


def main(words: list[str]) -> int:
    line = f"TensorRT.trtexec [TensorRT v{CODE}] # trtexec {' '.join(words)}"
    print(f"&&&& RUNNING {line}", flush=True)
    if "--help" in words:
        print("=== Build Options ===")
        for name in sorted(OPTIONS[CODE]):
            print(f"  --{name}=…   as documented")
        return 0
    options = {}
    for word in words:
        name, _, value = word.removeprefix("--").partition("=")
        options[name] = value
    log_call(options)
    errors = run(options)
    for error in errors:
        say("E", error)
    print(f"&&&& {'FAILED' if errors else 'PASSED'} {line}", flush=True)
    return 1 if errors else 0


def run(options: dict[str, str]) -> list[str]:
    """Run a plan, or build one. Return trtexec's errors."""
    unknown = sorted(options.keys() - OPTIONS[CODE])
    if unknown:
        return [f"Unknown option: --{name} {options[name]}" for name in unknown]
    if "loadEngine" in options:
        run_plan(options)
        return []
    return build_plan(options)


def build_plan(options: dict[str, str]) -> list[str]:
    """Write the plan of an ONNX file. Return trtexec's errors."""
    import onnx  # imported late, because --help is called more often and does not need it

    model = onnx.load(options["onnx"])
    error = wrong_shapes(model, options) or wrong_calibration(options)
    if error:
        return [error]
    deadline = time.monotonic() + float(os.environ.get("STAND_IN_SECONDS", "0"))
    while time.monotonic() < deadline:
        say(
            "I",
            "[TRT] Local timing cache in use. Profiling results in this builder pass will "
            "not be stored.",
        )
        time.sleep(0.2)
    fault = os.environ.get("STAND_IN_FAULT")
    if fault:
        return [fault, "Failed to create engine from model or file.", "Engine set up failed"]
    if options.get("timingCacheFile"):
        Path(options["timingCacheFile"]).write_bytes(b"timing")
    model.metadata_props.add(key="plan", value=MARK)
    plan = b"" if os.environ.get("STAND_IN_EMPTY") else model.SerializeToString()
    Path(options["saveEngine"]).write_bytes(plan)
    return []


def run_plan(options: dict[str, str]) -> None:
    """Run the plan with ONNX Runtime on the given inputs."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(
        options["loadEngine"], providers=["CPUExecutionProvider"]
    )
    shapes = dict(pairs(options["shapes"]))
    files = dict(pairs(options["loadInputs"]))
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8}
    feed: dict[str, Any] = {}
    unknown = files.keys() - {node.name for node in session.get_inputs()}
    if unknown:
        raise SystemExit(f"Cannot find input tensor with name {unknown}")
    for node in session.get_inputs():
        sizes = [int(size) for size in shapes[node.name].split("x")]
        feed[node.name] = np.fromfile(files[node.name], kinds[node.type]).reshape(sizes)
    names = [node.name for node in session.get_outputs()]
    outputs = []
    for name, array in zip(names, session.run(names, feed), strict=True):
        dimensions = "x".join(map(str, array.shape))
        values = [float(f"{value:.6g}") for value in array.ravel()]  # trtexec prints six digits
        outputs.append({"name": name, "dimensions": dimensions, "values": values})
    Path(options["exportOutput"]).write_text(json.dumps(outputs))


def pairs(text: str) -> list[tuple[str, str]]:
    """Parse NAME:VALUE,NAME:VALUE. Names may contain colons, and be quoted."""
    parsed = []
    for part in filter(None, text.split(",")):
        name, _, value = part.rpartition(":")
        parsed.append((name.strip("'"), value))
    return parsed


def wrong_shapes(model: Any, options: dict[str, str]) -> str:
    """Return trtexec's error about shapes, or "". It requires a shape for every input that varies,
    and none for a model with fixed shapes."""
    sides = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    varies = {name for name, dims in sides.items() if any(not dim.dim_value for dim in dims)}
    shaped = [
        {name for name, _ in pairs(options.get(key, ""))}
        for key in ("minShapes", "optShapes", "maxShapes")
    ]
    if any(shaped) and not varies:
        return "Static model does not take explicit shapes"
    if all(names == varies for names in shaped):
        return ""
    return f"shapes for {shaped}, and what varies is {varies}"


def wrong_calibration(options: dict[str, str]) -> str:
    """Return trtexec's error about a calibration table, or ""."""
    if "calib" not in options:
        return ""
    first = Path(options["calib"]).read_text().splitlines()[0]
    if first == f"TRT-{CODE}-EntropyCalibration2":
        return ""
    return "Calibration table does not match calibrator algorithm type."


def log_call(options: dict[str, str]) -> None:
    """Append the options and this process's id to STAND_IN_LOG, if that is set."""
    log = os.environ.get("STAND_IN_LOG")
    if log:
        with Path(log).open("a") as file:
            file.write(json.dumps(options | {"pid": os.getpid()}) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
