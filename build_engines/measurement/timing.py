"""Times a model in this process, on random tensors."""

import time
from collections.abc import Callable, Sequence
from statistics import median
from typing import Any

import numpy as np

from build_engines.model_folder.spec import full_shape
from clients._resizing import keeps_ratio
from clients.base import Model, Tensors, TensorSpec
from serving.host.machine import cpu_quota
from serving.triton.tensors import numpy_dtype

LEAST_RUNS = 3
SECONDS = 1.0  # for the runs of each
LEVELS = {"b": 2, "u": 256}  # of a Boolean, of a pixel


def threads() -> int:
    """The number of threads that the backend uses: this process's processors."""
    return max(1, round(cpu_quota()))


def example_feed(model: Model, batch: int, length: int = 16) -> Tensors:
    """Random tensors (a fixed seed) for every input; where a dimension varies `length`, or an image's shorter side."""
    if keeps_ratio(model.parameters):
        length = int(model.parameters["resize_to"].partition(",")[0])
    rng = np.random.default_rng(0)
    return {spec.name: _random(spec, batch if model.max_batch_size else 0, length, rng) for spec in model.inputs}


def _random(spec: TensorSpec, batch: int, length: int, rng: np.random.Generator) -> Any:
    shape = full_shape(spec, batch, length)
    dtype = numpy_dtype(spec.datatype)
    if dtype == np.object_:
        return np.full(shape, "text", np.object_)
    if dtype.kind == "f":
        return rng.random(shape).astype(dtype)
    return np.ones(shape, dtype) if dtype.kind == "i" else rng.integers(0, LEVELS[dtype.kind], shape).astype(dtype)


def latency(run: Callable[[], object]) -> float:
    """The median of the runs that SECONDS hold, in milliseconds, after a warm-up."""
    return latencies([run])[0]


def latencies(runs: Sequence[Callable[[], object]]) -> list[float]:
    """The latencies of several runs in turns, so that a disturbance of the machine affects all of them."""
    for run in runs:
        run()
    times: list[list[float]] = [[] for _ in runs]
    end = time.perf_counter() + SECONDS * len(runs)
    while time.perf_counter() < end or len(times[0]) < LEAST_RUNS:
        for taken, run in zip(times, runs, strict=True):
            started = time.perf_counter()
            run()
            taken.append(time.perf_counter() - started)
    return [median(taken) * 1e3 for taken in times]
