"""Triton's `backend: "dali"` without NVIDIA's image: a DALI pipeline in a python-based backend.

It serves what NVIDIA's own backend serves (triton-inference-server/dali_backend): 1/model.dali, or
a 1/dali.py with one pipeline marked @autoserialize. Inputs have the names of the pipeline's
external sources, outputs their order. Each instance runs in its own process. The container does not
include DALI: without it the load fails and says what to install.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import instance  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path
import numpy as np
from batching import Batcher, Call  # type: ignore[import-not-found]
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
REMEDY = "pip install nvidia-dali-cuda120 there (it runs without a GPU too)"
THREADS = "a whole number from 1"


def complete(config: dict[str, Any], _folder: Path) -> dict[str, Any]:
    """Raise ValueError if config.pbtxt has no inputs or outputs, because a serialized pipeline does
    not name them."""
    for side in ("input", "output"):
        if not config[side]:
            raise ValueError(
                f"config.pbtxt must list the model's {side}s: "
                f'{side} {{ name: "DALI_{side.upper()}_0" data_type: … dims: [ … ] }}'
            )
    return config


class TritonPythonModel:
    """One instance of one version of a model; the methods' names and arguments are Triton's."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Check config.pbtxt, which must be complete."""
        complete(auto_complete_model_config.as_dict(), Path())
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Make the pipeline. ValueError, FileNotFoundError, or ModuleNotFoundError without DALI,
        fails the load."""
        with instance.needs("the backend dali needs NVIDIA DALI", REMEDY):
            import dali_pipeline  # type: ignore[import-not-found]
        config = json.loads(args["model_config"])
        self.batching = config["max_batch_size"] > 0
        self.outputs = [entry["name"] for entry in config["output"]]
        batch_size, threads = config["max_batch_size"] or 1, self._threads(config)
        device = (
            int(args["model_instance_device_id"]) if args["model_instance_kind"] == "GPU" else None
        )
        filename = config.get("default_model_filename", "")
        content = dali_pipeline.serialized(
            instance.version_folder(args), filename, batch_size, threads, device
        )
        self.runner = dali_pipeline.Runner(content, batch_size, threads, device)
        self.batcher = Batcher(
            self._read,
            self._run,
            (lambda call: None) if self.batching else (lambda call: call.index),
        )

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer the requests that the dynamic batcher merged: one response per request, in the
        same order."""
        responses: list[Any] = self.batcher.answer(requests)
        return responses

    def finalize(self) -> None:
        """Free the pipeline's memory before the process ends."""
        del self.runner

    def _threads(self, config: Mapping[str, Any]) -> int:
        threads = int(
            instance.read(instance.given_parameters(config), "num_threads", int, 0, THREADS)
        )
        return threads if threads > 0 else int(instance.default_threads())

    def _read(self, request: Any) -> tuple[Arrays, tuple[str, ...]]:
        wanted = set(request.requested_output_names())
        feed = {tensor.name(): tensor.as_numpy() for tensor in request.inputs()}
        return feed, tuple(name for name in self.outputs if name in wanted)

    def _run(self, calls: Sequence[Call]) -> list[Arrays]:
        """Run the pipeline once on the samples of all calls; they may have different lengths."""
        rows = [list(self._samples(next(iter(call.feed.values())))) for call in calls]
        ends = np.cumsum([len(each) for each in rows])
        inputs = {
            name: [sample for call in calls for sample in self._samples(call.feed[name])]
            for name in calls[0].feed
        }
        results = dict(zip(self.outputs, self.runner.run(inputs), strict=True))
        return [
            {
                name: self._joined(name, results[name][end - len(each) : end])
                for name in call.outputs
            }
            for call, each, end in zip(calls, rows, ends, strict=True)
        ]

    def _samples(self, array: NDArray[Any]) -> Sequence[NDArray[Any]]:
        return list(array) if self.batching else [array]

    def _joined(self, name: str, samples: Sequence[NDArray[Any]]) -> NDArray[Any]:
        if not self.batching:
            return samples[0]
        if len({sample.shape for sample in samples}) > 1:
            raise ValueError(
                f"output '{name}' has samples of different shapes in one request, "
                f"{sorted({sample.shape for sample in samples})}: send them one by one"
            )
        return np.stack(samples)
