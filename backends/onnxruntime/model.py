"""Triton's `platform: "onnxruntime_onnx"` without NVIDIA's image: ONNX Runtime in a python-based backend.

It serves the config.pbtxt that NVIDIA's own C++ backend serves, with the same parameters and defaults
(triton-inference-server/onnxruntime_backend, src/onnxruntime.cc). Each instance is a process of its own:

    requests --feed--> arrays --group--> equal ones --concatenate--> one run --split--> responses

Requests that cannot share a run (other shapes, max_batch_size 0) run on their own, and so does each request
of a run that failed: the error of one does not reach the others.
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_config  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path
import onnx_session  # type: ignore[import-not-found]
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

Arrays = dict[str, NDArray[Any]]
Config = dict[str, Any]


class InvalidInput(ValueError):
    """The caller's fault, found before ONNX Runtime sees it."""


@dataclass(frozen=True)
class Call:
    """One request: its place among the requests, its arrays, the outputs that it asks for."""

    index: int
    feed: Arrays
    outputs: tuple[str, ...]

    def key(self) -> tuple[Any, ...]:
        """Equal for calls that can be concatenated along the first dimension."""
        return tuple((name, array.dtype.str, array.shape[1:]) for name, array in sorted(self.feed.items()))


class TritonPythonModel:
    """One instance of one version of a model; the methods' names and arguments are Triton's."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fills what config.pbtxt leaves out from the ONNX file; a complete one is left as it is."""
        config = auto_complete_model_config.as_dict()
        if not (config["input"] and config["output"]):
            onnx_config.complete(config, onnx_session.load(stub_model_path(), onnx_session.UNOPTIMIZED))
            if config["max_batch_size"] > 1 and "sequence_batching" not in config:
                auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Makes the session and checks config.pbtxt against the file; ValueError fails the load."""
        config = json.loads(args["model_config"])
        settings = onnx_session.SessionSettings.from_config(config)
        self.session = onnx_session.load(model_path(args, config), settings, onnx_session.providers(args))
        onnx_config.check(config, self.session)
        self.run_options = onnx_session.run_options()
        self.batching = config["max_batch_size"] > 0
        self.scalars = {node.name for node in self.session.get_inputs() if not node.shape}
        self.strings = {node.name for node in self.session.get_inputs() if node.type == "tensor(string)"}
        pb_utils.Logger.log_info(
            f"{args['model_instance_name']}: {self.session.get_providers()[0]}, {settings.describe()}"
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """What the dynamic batcher merged -> one response per request, in the same order."""
        responses: dict[int, Any] = {}
        groups: dict[Any, list[Call]] = {}
        for index, request in enumerate(requests):
            try:
                call = self._read(index, request)
            except Exception as err:
                responses[index] = failure(err)
            else:
                groups.setdefault(call.key() if self.batching else index, []).append(call)
        for calls in groups.values():
            responses.update(self._answer(calls))
        return [responses[index] for index in range(len(requests))]

    def finalize(self) -> None:
        """Frees the session's memory before the process ends."""
        del self.session

    def _read(self, index: int, request: Any) -> Call:
        feed = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        for name in self.strings & feed.keys():
            feed[name] = decode(name, feed[name])
        for name in self.scalars & feed.keys():
            feed[name] = feed[name].reshape(()) if feed[name].size == 1 else feed[name]
        wanted = set(request.requested_output_names())
        return Call(index, feed, tuple(node.name for node in self.session.get_outputs() if node.name in wanted))

    def _answer(self, calls: list[Call]) -> Iterator[tuple[int, Any]]:
        """(index, response) of each call: from one run, or from one each where that is not possible."""
        if len(calls) > 1:
            try:
                yield from self._run_merged(calls)
                return
            except Exception as err:  # ONNX Runtime's exceptions have no base of their own
                pb_utils.Logger.log_verbose(f"a run of {len(calls)} requests failed, each runs again: {err}")
        for call in calls:
            try:
                yield call.index, respond(self._run(call.feed, call.outputs))
            except Exception as err:
                yield call.index, failure(err)

    def _run_merged(self, calls: list[Call]) -> list[tuple[int, Any]]:
        sizes = [len(next(iter(call.feed.values()))) for call in calls]
        feed = {name: np.concatenate([call.feed[name] for call in calls]) for name in calls[0].feed}
        names = tuple(dict.fromkeys(name for call in calls for name in call.outputs))
        results = self._run(feed, names)
        if any(result.shape[:1] != (sum(sizes),) for result in results.values()):
            raise ValueError("an output's first dimension is not the batch")
        bounds = np.cumsum(sizes)
        return [
            (call.index, respond({name: results[name][end - size : end] for name in call.outputs}))
            for call, size, end in zip(calls, sizes, bounds, strict=True)
        ]

    def _run(self, feed: Arrays, names: Sequence[str]) -> Arrays:
        return dict(zip(names, self.session.run(list(names), feed, self.run_options), strict=True))


def respond(arrays: Arrays) -> Any:
    """Arrays -> Triton's response; a scalar goes as shape [1], since config.pbtxt knows no empty dims."""
    tensors = [pb_utils.Tensor(name, array if array.ndim else array.reshape(1)) for name, array in arrays.items()]
    return pb_utils.InferenceResponse(output_tensors=tensors)


def failure(error: Exception) -> Any:
    """Triton's error response with ONNX Runtime's message; wrong input is the caller's fault."""
    invalid = isinstance(error, InvalidArgument | InvalidInput)
    code = pb_utils.TritonError.INVALID_ARG if invalid else pb_utils.TritonError.INTERNAL
    return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def decode(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """BYTES as Triton has them -> str, which ONNX Runtime's Python interface takes."""
    try:
        texts = [text.decode() for text in array.ravel()]
    except UnicodeDecodeError as err:
        raise InvalidInput(f"input '{name}' has bytes that are not UTF-8 ({err})") from err
    return np.array(texts, dtype=np.object_).reshape(array.shape)


def model_path(args: Mapping[str, str], config: Config) -> Path:
    """Where an instance's model lies."""
    filename = config.get("default_model_filename") or "model.onnx"
    return Path(args["model_repository"]) / args["model_version"] / filename


def stub_model_path() -> Path:
    """The same while the configuration is completed, when the stub's own command line is all there is."""
    return Path(os.fsdecode(Path("/proc/self/cmdline").read_bytes().split(b"\0")[1]))
