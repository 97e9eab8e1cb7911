"""Runs and times a TensorRT plan through trtexec, which loads it anew for every call: seconds each.

Values come back as trtexec prints them, with six digits.
"""

import json
import re
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from build_engines.engines import trtexec
from build_engines.engines.trtexec import TrtexecError
from build_engines.errors import BuildError
from build_engines.weights import onnx_files
from clients.base import Tensors, TensorSpec

SECONDS = 300.0  # of one call: loading a plan of gigabytes
_MEDIAN = re.compile(r"GPU Compute Time:.*\bmedian = ([0-9.]+) ms")


def run_plan(path: Path, feed: Tensors) -> Tensors:
    """The plan's outputs; BuildError where it cannot be run here."""
    with tempfile.TemporaryDirectory() as scratch:
        folder, feed = Path(scratch), _inputs(path, feed)
        files = {name: folder / f"{number}.bin" for number, name in enumerate(feed)}
        for name, array in feed.items():
            files[name].write_bytes(np.ascontiguousarray(array).tobytes())
        outputs = folder / "outputs.json"
        inputs = ",".join(f"{trtexec.quoted(name)}:{file}" for name, file in files.items())
        once = ["--iterations=1", "--warmUp=0", "--duration=0"]
        _run(path, feed, [f"--loadInputs={inputs}", f"--exportOutput={outputs}", *once])
        return {entry["name"]: _array(entry) for entry in json.loads(outputs.read_text(encoding="utf-8"))}


def plan_latency(path: Path, feed: Tensors) -> float:
    """The median time of a run on the GPU, without the copies to and from it, in milliseconds."""
    said = _run(path, feed, [])
    found = _MEDIAN.search("\n".join(said))
    if not found:
        raise BuildError("trtexec did not say how long a run takes")
    return float(found[1])


def _run(path: Path, feed: Tensors, words: list[str]) -> list[str]:
    try:
        program = trtexec.inspect()
        shapes = [f"--shapes={text}"] if (text := _shapes(path, feed)) else []
        return trtexec.run([program.path, f"--loadEngine={path}", *shapes, *words], lambda _: None, SECONDS)
    except TrtexecError as err:
        raise BuildError(str(err)) from err


def _shapes(path: Path, feed: Tensors) -> str:
    """Return the shapes of the inputs that vary in the ONNX file beside the plan; of all inputs without one."""
    varying = {spec.name for spec in _specs(path) if -1 in spec.shape} if _specs(path) else set(feed)
    named = {name: "x".join(map(str, array.shape)) for name, array in feed.items() if name in varying}
    return ",".join(f"{trtexec.quoted(name)}:{shape}" for name, shape in named.items())


def _inputs(path: Path, feed: Tensors) -> Tensors:
    """Return the feed without tensors that the model does not take: trtexec refuses those."""
    names = {spec.name for spec in _specs(path)} or set(feed)
    return {name: array for name, array in feed.items() if name in names}


def _specs(path: Path) -> tuple[TensorSpec, ...]:
    """Return the inputs of the ONNX file beside the plan; none without one."""
    onnx = path.with_suffix(".onnx")
    return tuple(onnx_files.specs(onnx_files.read(onnx))[0]) if onnx.is_file() else ()


def _array(entry: dict[str, Any]) -> Any:
    shape = [int(size) for size in entry["dimensions"].split("x") if size]
    return np.array(entry["values"], np.float32).reshape(shape)
