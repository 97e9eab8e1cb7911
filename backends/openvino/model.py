"""Serves `backend: "openvino"` without NVIDIA's image: OpenVINO in a Python-based backend.

It accepts the same config.pbtxt as NVIDIA's own C++ backend, with the same parameters
(triton-inference-server/openvino_backend). Each instance runs in a process of its own, in which no
other engine is loaded, because processes with both ONNX Runtime and OpenVINO have crashed. The
container does not include OpenVINO. Without it, a load fails with an error that says what to
install.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import instance  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path
import triton_python_backend_utils as pb_utils
from batching import Batcher, merge_of, read_request  # type: ignore[import-not-found]
from numpy.typing import NDArray
from openvino_settings import OpenvinoSettings  # type: ignore[import-not-found]

Arrays = dict[str, NDArray[Any]]
NEEDS = "the backend openvino needs OpenVINO"
REMEDY = (
    "pip install --no-deps openvino there (its numpy must stay below 2), or serve the model "
    "with ONNX Runtime"
)


def complete(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Fill in the fields that are missing in config.pbtxt, in place, from the model in the
    version's folder. Raise ValueError if that is not possible."""
    if not (config["input"] and config["output"]):
        with instance.needs(NEEDS, REMEDY):
            import openvino_engine  # type: ignore[import-not-found]
        filename = config["default_model_filename"] or openvino_engine.DEFAULT_FILE
        openvino_engine.complete(config, folder / filename)
    return config


class TritonPythonModel:
    """One instance of one version of a model. Triton prescribes the names and arguments of the
    methods."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Fill in the missing fields of config.pbtxt from the model. Do not change a complete
        configuration."""
        config = auto_complete_model_config.as_dict()
        complete(config, instance.stub_version_folder(config))
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Compile the model, and compare config.pbtxt with it.

        A ValueError or FileNotFoundError, or a ModuleNotFoundError if OpenVINO is missing, makes
        the load fail.
        """
        with instance.needs(NEEDS, REMEDY):
            import openvino_engine
        config = json.loads(args["model_config"])
        settings = OpenvinoSettings.from_config(config)
        file = instance.model_file(args, config, openvino_engine.DEFAULT_FILE)
        model, self.scalars = openvino_engine.fitted(file, config)
        compiled = openvino_engine.Compiled(
            model, settings, args["model_name"], args["model_version"]
        )
        merge = merge_of(config, openvino_engine.MULTIPLE)
        self.runs = openvino_engine.Runs(compiled.model, merge)
        self.rows = openvino_engine.rows_of_tables(model)
        self.check_range = openvino_engine.check_range
        self.outputs = [entry["name"] for entry in config["output"]]
        self.batcher = Batcher(self._read, self.runs.run, merge)
        instance.give_back_memory()
        for warning in compiled.warnings:
            pb_utils.Logger.log_warn(f"{args['model_instance_name']}: {warning}")
        pb_utils.Logger.log_info(f"{args['model_instance_name']}: {compiled.describe()}")

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer the requests that the dynamic batcher has merged. Return one response for each, in
        the same order."""
        responses: list[Any] = self.batcher.answer(requests)
        return responses

    def finalize(self) -> None:
        """Free the model's memory before the process ends."""
        self.runs.close()

    def _read(self, request: Any) -> tuple[Arrays, tuple[str, ...]]:
        feed, names = read_request(request, self.outputs, scalars=self.scalars)
        for name, array in feed.items():
            self.check_range(name, array, self.rows.get(name))
        return feed, names
