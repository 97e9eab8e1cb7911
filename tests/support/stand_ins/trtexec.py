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
    *(
        "help",
        "onnx",
        "saveEngine",
        "minShapes",
        "optShapes",
        "maxShapes",
        "verbose",
        "loadEngine",
        "shapes",
    ),
    *(
        "loadInputs",
        "exportOutput",
        "iterations",
        "warmUp",
        "duration",
        "memPoolSize",
        "skipInference",
    ),
    "timingCacheFile",
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
        print(
            "=== Build Options ===\n"
            + "\n".join(f"  --{name}=…   as documented" for name in sorted(OPTIONS[CODE]))
        )
        return 0
    errors = list(build({word.partition("=")[0][2:]: word.partition("=")[2] for word in words}))
    for error in errors:
        say("E", error)
    print(f"&&&& {'FAILED' if errors else 'PASSED'} {line}", flush=True)
    return 1 if errors else 0


def build(options: dict[str, str]):  # type: ignore[no-untyped-def]
    note(options)
    if unknown := options.keys() - OPTIONS[CODE]:
        yield from (f"Unknown option: --{name} {options[name]}" for name in sorted(unknown))
        return
    if "loadEngine" in options:
        run_plan(options)
        return
    import onnx  # imported late, because --help is called more often and does not need it

    model = onnx.load(options["onnx"])
    if error := wrong_shapes(model, options) or wrong_calibration(options):
        yield error
        return
    deadline = time.monotonic() + float(os.environ.get("STAND_IN_SECONDS", "0"))
    while time.monotonic() < deadline:
        say(
            "I",
            "[TRT] Local timing cache in use. Profiling results in this builder pass will "
            "not be stored.",
        )
        time.sleep(0.2)
    if fault := os.environ.get("STAND_IN_FAULT"):
        yield from (fault, "Failed to create engine from model or file.", "Engine set up failed")
        return
    if timing := options.get("timingCacheFile"):
        Path(timing).write_bytes(b"timing")
    model.metadata_props.add(key="plan", value=MARK)
    Path(options["saveEngine"]).write_bytes(
        b"" if os.environ.get("STAND_IN_EMPTY") else model.SerializeToString()
    )


def run_plan(options: dict[str, str]) -> None:
    """Run the plan with ONNX Runtime on the given inputs."""
    import numpy as np
    import onnxruntime

    session = onnxruntime.InferenceSession(
        options["loadEngine"], providers=["CPUExecutionProvider"]
    )
    shapes = {
        name: [int(size) for size in shape.split("x")] for name, shape in pairs(options["shapes"])
    }
    files = dict(pairs(options["loadInputs"]))
    kinds = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(uint8)": np.uint8}
    feed: dict[str, Any] = {}
    if strangers := files.keys() - {node.name for node in session.get_inputs()}:
        raise SystemExit(f"Cannot find input tensor with name {strangers}")
    for node in session.get_inputs():
        feed[node.name] = np.fromfile(files[node.name], kinds[node.type]).reshape(shapes[node.name])
    names = [node.name for node in session.get_outputs()]
    outputs = [
        {
            "name": name,
            "dimensions": "x".join(map(str, array.shape)),
            "values": [float(f"{value:.6g}") for value in array.ravel()],
        }
        for name, array in zip(names, session.run(names, feed), strict=True)
    ]
    Path(options["exportOutput"]).write_text(json.dumps(outputs))


def pairs(text: str) -> list[tuple[str, str]]:
    """Parse NAME:VALUE,NAME:VALUE."""
    return [
        (part.rpartition(":")[0].strip("'"), part.rpartition(":")[2])
        for part in text.split(",")
        if part
    ]


def wrong_shapes(model: Any, options: dict[str, str]) -> str:
    """Return trtexec's error about shapes, or "". It requires a shape for every input that varies,
    and none for a model with fixed shapes."""
    sides = {value.name: value.type.tensor_type.shape.dim for value in model.graph.input}
    varies = {name for name, dims in sides.items() if any(not dim.dim_value for dim in dims)}
    names = [
        {part.rpartition(":")[0].strip("'") for part in options.get(key, "").split(",") if part}
        for key in ("minShapes", "optShapes", "maxShapes")
    ]
    if any(names) and not varies:
        return "Static model does not take explicit shapes"
    return (
        ""
        if all(each == varies for each in names)
        else f"shapes for {names}, and what varies is {varies}"
    )


def wrong_calibration(options: dict[str, str]) -> str:
    if "calib" not in options:
        return ""
    first = Path(options["calib"]).read_text().splitlines()[0]
    matches = first == f"TRT-{CODE}-EntropyCalibration2"
    return "" if matches else "Calibration table does not match calibrator algorithm type."


def note(options: dict[str, str]) -> None:
    if log := os.environ.get("STAND_IN_LOG"):
        with Path(log).open("a") as file:
            file.write(json.dumps(options | {"pid": os.getpid()}) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
