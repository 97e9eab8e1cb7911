"""Triton's `platform: "onnxruntime_onnx"` without NVIDIA's image: ONNX Runtime in a python-based backend.

It serves the config.pbtxt that NVIDIA's own C++ backend serves, with the same parameters and defaults
(triton-inference-server/onnxruntime_backend, src/onnxruntime.cc). Each instance runs in its own process.
Requests that cannot share a run (different shapes, max_batch_size 0) run alone.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import instance  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path
import onnx_config  # type: ignore[import-not-found]
import onnx_runs  # type: ignore[import-not-found]
import onnx_session  # type: ignore[import-not-found]
import triton_python_backend_utils as pb_utils
from batching import Batcher, alone, decode, same_shapes  # type: ignore[import-not-found]
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import InvalidArgument

Arrays = dict[str, NDArray[Any]]


class TritonPythonModel:
    """One instance of one version of a model; the methods' names and arguments are Triton's."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fills what is missing in config.pbtxt from the ONNX file; does not change a complete one."""
        config = auto_complete_model_config.as_dict()
        if not (config["input"] and config["output"]):
            onnx_config.complete(config, onnx_session.load(instance.stub_model_path(), onnx_session.UNOPTIMIZED))
            if config["max_batch_size"] > 1 and "sequence_batching" not in config:
                auto_complete_model_config.set_dynamic_batching()
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Creates the session and checks config.pbtxt against the file; ValueError fails the load."""
        config = json.loads(args["model_config"])
        settings = onnx_session.SessionSettings.from_config(config)
        path = instance.version_folder(args) / (config.get("default_model_filename") or "model.onnx")
        providers = onnx_session.providers(args)
        self.runs = onnx_runs.Runs(lambda each: onnx_session.load(path, each, providers), settings)
        self.session = self.runs.session
        onnx_config.check(config, self.session)
        self.scalars = {node.name for node in self.session.get_inputs() if not node.shape}
        self.strings = {node.name for node in self.session.get_inputs() if node.type == "tensor(string)"}
        key = same_shapes if config["max_batch_size"] > 0 else alone
        self.batcher = Batcher(self._read, self.runs.run, key, (InvalidArgument,))
        pb_utils.Logger.log_info(
            f"{args['model_instance_name']}: {self.session.get_providers()[0]}, {settings.describe()}"
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """The requests that the dynamic batcher merged -> one response per request, in the same order."""
        responses: list[Any] = self.batcher.answer(requests)
        return responses

    def finalize(self) -> None:
        """Frees the sessions' memory before the process ends."""
        self.runs.close()
        del self.session

    def _read(self, request: Any) -> tuple[Arrays, tuple[str, ...]]:
        feed = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        for name in self.strings & feed.keys():
            feed[name] = decode(name, feed[name])
        for name in self.scalars & feed.keys():
            feed[name] = feed[name].reshape(()) if feed[name].size == 1 else feed[name]
        wanted = set(request.requested_output_names())
        return feed, tuple(node.name for node in self.session.get_outputs() if node.name in wanted)
