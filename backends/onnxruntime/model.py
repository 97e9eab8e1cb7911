"""Serves `platform: "onnxruntime_onnx"` without NVIDIA's image: ONNX Runtime in a Python-based
backend.

It accepts the same config.pbtxt as NVIDIA's own C++ backend
(triton-inference-server/onnxruntime_backend, src/onnxruntime.cc), with the same parameters and
nearly the same defaults (onnx_session.py). Each instance runs in its own process. Requests whose
inputs can be joined are merged into one run of the model (batching.py).
"""

import json
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

import instance  # Triton's stub puts this folder on its path
import tensors as specs
import triton_python_backend_utils as pb_utils
from batching import Arrays, Batcher, Calls, InvalidInput, Merge, merge_of, read_request, run_merged
from onnx_session import UNOPTIMIZED, SessionSettings, load, providers, run_options
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

Config = dict[str, Any]

DATATYPES = {
    "tensor(int8)": "TYPE_INT8",
    "tensor(int16)": "TYPE_INT16",
    "tensor(int32)": "TYPE_INT32",
    "tensor(int64)": "TYPE_INT64",
    "tensor(uint8)": "TYPE_UINT8",
    "tensor(uint16)": "TYPE_UINT16",
    "tensor(uint32)": "TYPE_UINT32",
    "tensor(uint64)": "TYPE_UINT64",
    "tensor(bool)": "TYPE_BOOL",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}


def tensors(nodes: Iterable[Any]) -> dict[str, Any]:
    """Return a Tensor for each of a session's inputs, outputs or initializers, keyed by name."""
    named = {}
    for node in nodes:
        shape = tuple(size if isinstance(size, int) else -1 for size in node.shape)
        named[node.name] = specs.Tensor(node.name, node.type, shape, DATATYPES)
    return named


def complete(config: Config, folder: Path) -> Config:
    """If `config` lacks inputs or outputs, fill in its missing fields, in place, from the file in
    the version's folder. Return `config`. Raise ValueError if that is not possible, and
    FileNotFoundError if there is no such file."""
    if not (config["input"] and config["output"]):
        session = load(folder / config["default_model_filename"], UNOPTIMIZED)
        specs.complete(config, tensors(session.get_inputs()), tensors(session.get_outputs()))
    return config


def check(config: Config, session: Any) -> None:
    """Raise ValueError if config.pbtxt and the ONNX file disagree."""
    inputs, outputs = tensors(session.get_inputs()), tensors(session.get_outputs())
    specs.check(config, inputs, outputs, tensors(session.get_overridable_initializers()))


class TritonPythonModel(instance.Instance):  # type: ignore[misc]  # mypy finds no base class
    """Runs an ONNX file."""

    complete = staticmethod(complete)

    def initialize(self, args: instance.Texts) -> None:
        """Create the session, and check config.pbtxt against the file. Raise ValueError if they
        disagree or one is invalid, and FileNotFoundError if the file is missing; the load then
        fails."""
        config = json.loads(args["model_config"])
        settings = SessionSettings.from_config(config)
        path = instance.model_file(args, config, "model.onnx")
        merge = merge_of(config)
        load_session = partial(load, path, execution_providers=providers(args))
        runs = Runs(load_session, settings, merge)
        check(config, runs.session)
        inputs = runs.session.get_inputs()
        read = partial(
            read_request,
            outputs=[node.name for node in runs.session.get_outputs()],
            strings={node.name for node in inputs if node.type == "tensor(string)"},
            scalars={node.name for node in inputs if not node.shape},
        )
        self.batcher = Batcher(read, runs.run, merge, (InvalidInput, InvalidArgument))
        pb_utils.Logger.log_info(
            f"{args['model_instance_name']}: {runs.session.get_providers()[0]}, {settings}"
        )


class Runs:
    """Runs the model on merged calls: once for all of them, or once for each call, in separate
    threads.

    For texts and small images, one run on all threads is fastest. A batch of large images does not
    fit into the processors' caches, and the threads of a run wait for each other hundreds of times.
    Therefore, if a model takes large images and there are at least as many calls as threads, each
    call gets a run of its own on one thread. Measured with YOLOv5n at 640 pixels, 8 callers, and 2
    processors that also decode the images, a call takes 24.5 ms of processor time instead of 32 to
    37.

    `session` uses all threads. `single` is a second session, whose runs use one thread. It needs
    memory for a second copy of the weights, so it is created only when it is first used.
    """

    def __init__(
        self,
        load_session: Callable[[SessionSettings], Any],
        settings: SessionSettings,
        merge: Merge,
    ) -> None:
        self.load_session = load_session
        self.settings = settings
        self.merge = merge
        self.session = load_session(settings)
        self.options = run_options()
        self.pool = ThreadPoolExecutor(settings.intra_op_threads)

    @cached_property
    def single(self) -> Any:
        return self.load_session(replace(self.settings, intra_op_threads=1))

    def run(self, calls: Calls) -> list[Arrays]:
        """Return the outputs of each call, in the order of the calls."""
        if self.settings.separate_runs and len(calls) >= self.settings.intra_op_threads:
            run_model = partial(self._run_model, self.single)
            groups = [[call] for call in calls]
            results = self.pool.map(partial(run_merged, run_model, self.merge), groups)
            return list(chain.from_iterable(results))
        run_model = partial(self._run_model, self.session)
        outputs: list[Arrays] = run_merged(run_model, self.merge, calls)
        return outputs

    def _run_model(self, session: Any, feed: Arrays, names: Sequence[str]) -> Arrays:
        """Run the session once on these inputs. Return the outputs with these names."""
        arrays = session.run(list(names), feed, self.options)
        return dict(zip(names, arrays, strict=True))
