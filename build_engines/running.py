"""Runs a model folder's engine in this process, and times it."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import onnxruntime

from build_engines.draft import ONNX, PLAN, TORCHSCRIPT, BuildError
from build_engines.plan_runner import run_plan
from clients.base import Model, Tensors, TensorSpec
from serving.host.machine import cpu_quota
from serving.triton.tensors import numpy_dtype

Runner = Callable[[Tensors], Tensors]


def threads() -> int:
    """As many as the backend uses: the processors that this process may."""
    return max(1, round(cpu_quota()))


def onnx_runner(path: Path, count: int = 0) -> Runner:
    """An ONNX file on ONNX Runtime's CPU provider, with the backend's options; `count` threads, 0: `threads()`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count or threads()
    options.add_session_config_entry("session.intra_op.spin_duration_us", "20")
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as err:  # ONNX Runtime's exceptions have no base of their own
        raise BuildError(f"ONNX Runtime cannot load {path}: {_line(err)}") from err
    inputs = {node.name for node in session.get_inputs()}
    names = [node.name for node in session.get_outputs()]
    return lambda feed: dict(
        zip(names, session.run(names, {k: v for k, v in feed.items() if k in inputs}), strict=True)
    )


def torch_runner(path: Path) -> Runner:
    """A TorchScript file on torch's CPU; inputs by their order, outputs as OUTPUT__0 …"""
    import torch

    try:
        module = torch.jit.load(str(path), map_location="cpu").eval()
    except (RuntimeError, ValueError) as err:
        raise BuildError(f"torch cannot load {path}: {_line(err)}") from err

    def run(feed: Tensors) -> Tensors:
        with torch.inference_mode():
            outputs = module(*(torch.from_numpy(array) for array in feed.values()))
        found = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        return {f"OUTPUT__{number}": tensor.numpy() for number, tensor in enumerate(found)}

    return run


def plan_runner(path: Path) -> Runner:
    """A TensorRT plan, through trtexec."""
    return lambda feed: run_plan(path, feed)


RUNNERS: dict[str, Callable[[Path], Runner]] = {ONNX: onnx_runner, TORCHSCRIPT: torch_runner, PLAN: plan_runner}


def example_feed(model: Model, batch: int, length: int = 16) -> Tensors:
    """Random tensors (a fixed seed) for every input; `length` where a dimension varies."""
    rng = np.random.default_rng(0)
    return {spec.name: _random(spec, batch if model.max_batch_size else 0, length, rng) for spec in model.inputs}


def _random(spec: TensorSpec, batch: int, length: int, rng: np.random.Generator) -> Any:
    shape = (*([batch] if batch else []), *(length if size == -1 else size for size in spec.shape))
    dtype = numpy_dtype(spec.datatype)
    if dtype == np.object_:
        return np.full(shape, "text", np.object_)
    if dtype.kind == "f":
        return rng.random(shape).astype(dtype)
    return np.ones(shape, dtype) if dtype.kind == "i" else rng.integers(0, _LEVELS[dtype.kind], shape).astype(dtype)


_LEVELS = {"b": 2, "u": 256}  # of a Boolean, of a pixel


def latency(run: Callable[[], object], seconds: float = 1.0, least: int = 3) -> float:
    """The median of the runs that `seconds` hold, in milliseconds, after a warm-up."""
    return latencies([run], seconds, least)[0]


def latencies(runs: Sequence[Callable[[], object]], seconds: float = 1.0, least: int = 3) -> list[float]:
    """The same of several, taken in turns: what disturbs the machine then disturbs all of them."""
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + seconds * len(runs)
    while time.perf_counter() < end or len(times[0]) < least:
        for taken, run in zip(times, runs, strict=True):
            started = time.perf_counter()
            run()
            taken.append(time.perf_counter() - started)
    return [median(taken) * 1e3 for taken in times]


def _line(err: Exception) -> str:
    return (str(err).strip().splitlines() or [type(err).__name__])[0]
