"""Runs a model's file outside Triton.

ONNX Runtime runs in this process, with the default options of its backend; OpenVINO in a separate
process, with the model's parameters; and a TensorRT plan in trtexec.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from backends.onnxruntime import onnx_session
from backends.openvino.openvino_settings import OpenvinoSettings
from build_engines.engines.trtexec import run_plan
from build_engines.errors import BuildError, first_line
from build_engines.model_spec import ONNX, PLAN, ModelSpec, full_shape
from build_engines.stored_model import StoredModel
from clients._image_settings import keeps_ratio
from clients.base import Model, Tensors, TensorSpec
from serving.repository.cpu_engine import OPENVINO, requested_engine
from serving.triton.tensors import numpy_dtype

Runner = Callable[[Tensors], Tensors]
LEVELS = {"b": 2, "u": 256}  # dtype.kind -> how many values a Boolean or a pixel can have


class OnnxFile:
    """Runs an ONNX file with ONNX Runtime on the CPU."""

    def __init__(self, path: Path) -> None:
        """Load the file. Raise BuildError if that fails."""
        try:
            self.session = onnx_session.load(path, onnx_session.SessionSettings.from_config({}))
        except (ValueError, FileNotFoundError) as err:
            raise BuildError(first_line(err)) from err
        self.inputs = {node.name for node in self.session.get_inputs()}
        # the outputs' shapes; a dimension that varies is a string or None
        self.outputs = {node.name: node.shape for node in self.session.get_outputs()}

    def __call__(self, feed: Tensors) -> Tensors:
        # a client also prepares arrays for its own postprocess
        own_inputs = {name: array for name, array in feed.items() if name in self.inputs}
        arrays = self.session.run([*self.outputs], own_inputs, onnx_session.run_options())
        return dict(zip(self.outputs, arrays, strict=True))


def openvino_runner(path: Path, parameters: Mapping[str, str]) -> Runner:
    """Return a Runner for an ONNX file in OpenVINO. It runs in a separate process, because OpenVINO
    has crashed in a process that also ran ONNX Runtime. It raises BuildError if that process
    crashes, or if OpenVINO fails."""
    pool = ProcessPoolExecutor(1, mp_context=get_context("spawn"))
    pairs = tuple(parameters.items())  # hashable, for the cache of _compiled

    def run(feed: Tensors) -> Tensors:
        try:
            return pool.submit(_infer_by_openvino, path, pairs, feed).result()
        except BrokenProcessPool as err:
            raise BuildError("the process in which OpenVINO ran has crashed") from err
        except Exception as err:  # OpenVINO's exceptions have no base class of their own
            raise BuildError(first_line(err)) from err

    return run


@cache
def _compiled(path: Path, parameters: tuple[tuple[str, str], ...]) -> Any:
    """Return the compiled model. Each process compiles it only once."""
    import openvino

    values = {name: {"string_value": value} for name, value in parameters}
    settings = OpenvinoSettings.from_config({"parameters": values})
    core = openvino.Core()
    properties = settings.properties(core.get_property("CPU", "OPTIMIZATION_CAPABILITIES"))
    return core.compile_model(str(path), "CPU", properties)


def _infer_by_openvino(
    path: Path, parameters: tuple[tuple[str, str], ...], feed: Tensors
) -> Tensors:
    """Run the model once, and return its outputs. OpenVINO's synchronous `infer` is not used,
    because it does not report mismatched shapes (openvino_engine.py)."""
    compiled = _compiled(path, parameters)
    request = compiled.create_infer_request()
    inputs = {name for port in compiled.inputs for name in port.names}
    request.start_async({name: feed[name] for name in feed.keys() & inputs})
    request.wait()
    return {
        name: request.get_output_tensor(index).data.copy()
        for index, port in enumerate(compiled.outputs)
        for name in port.names
    }


RUNNERS: dict[str, Callable[[Path], Runner]] = {
    ONNX: OnnxFile,
    PLAN: lambda path: partial(run_plan, path),
}


def runner_of(stored: StoredModel) -> Runner:
    """Return a Runner for the model's newest version. It uses OpenVINO if `cpu_engine` in the
    configuration is "openvino" (not if it is "auto"), or else the engine of the configuration's
    platform.

    Raise BuildError if the model's file is missing, or for a platform that is not in RUNNERS.
    """
    platform = stored.config.platform
    if platform not in RUNNERS:
        raise BuildError(
            f"{stored.folder.name} is of platform '{platform or stored.config.backend}', "
            f"which this command does not run; it runs {', '.join(RUNNERS)}"
        )
    if requested_engine(stored.config) == OPENVINO:
        return openvino_runner(stored.file, stored.model.parameters)
    return RUNNERS[platform](stored.file)


def model_feed(model: Model, prepared: Tensors) -> Tensors:
    """Convert tensors that a client `prepared` to the form that the model's file takes. If the
    model takes no batches, remove the batch dimension."""
    if model.max_batch_size:
        return prepared
    return {spec.name: prepared[spec.name][0] for spec in model.inputs}


def client_outputs(model: Model, outputs: Tensors) -> Tensors:
    """Convert the file's outputs to the form that the client takes. If the model takes no batches,
    add a batch dimension."""
    if model.max_batch_size:
        return outputs
    return {name: array[None] for name, array in outputs.items()}


def example_feed(model: Model | ModelSpec, batch: int, length: int = 16) -> Tensors:
    """Return a tensor for every input, with `batch` rows if the model takes batches: random floats,
    Booleans or unsigned integers below 256 (with a fixed seed), ones for signed integers, or the
    string "text".

    Variable dimensions have the size `length` or, for images that keep their proportions, the size
    of the shorter side.
    """
    if keeps_ratio(model.parameters):
        length = int(model.parameters["resize_to"].partition(",")[0])
    rng = np.random.default_rng(0)
    if not model.max_batch_size:
        batch = 0
    return {spec.name: _random_tensor(spec, batch, length, rng) for spec in model.inputs}


def _random_tensor(spec: TensorSpec, batch: int, length: int, rng: np.random.Generator) -> Any:
    shape = full_shape(spec, batch, length)
    dtype = numpy_dtype(spec.datatype)
    if dtype == np.object_:
        return np.full(shape, "text", np.object_)
    if dtype.kind == "f":
        return rng.random(shape).astype(dtype)
    if dtype.kind == "i":
        return np.ones(shape, dtype)
    return rng.integers(0, LEVELS[dtype.kind], shape).astype(dtype)
