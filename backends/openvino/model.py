"""Serves `backend: "openvino"` without NVIDIA's image: OpenVINO in a Python-based backend.

It accepts the same config.pbtxt as NVIDIA's own C++ backend, with the same parameters, except those
that openvino_settings.py refuses (triton-inference-server/openvino_backend). Each instance runs in
its own process without any other engine, because processes that used both ONNX Runtime and OpenVINO
have crashed.
"""

import json
from pathlib import Path
from typing import Any

# Triton's stub puts this file's folder on sys.path. At installation, the modules of _shared
# (instance, batching) are copied into it.
import instance
import openvino_engine as engine
from batching import Batcher, Read, merge_of, read_request
from openvino_settings import OpenvinoSettings


def complete(config: dict[str, Any], folder: Path) -> dict[str, Any]:
    """If `config` lacks inputs or outputs, fill in its missing fields, in place, from the model in
    the version's folder. Return `config`. Raise ValueError if that is not possible, and
    FileNotFoundError if there is no such file."""
    if not (config["input"] and config["output"]):
        name = config["default_model_filename"] or engine.DEFAULT_FILE
        engine.complete(config, folder / name)
    return config


class TritonPythonModel(instance.Instance):  # type: ignore[misc]  # mypy finds no base class
    """Runs a model of OpenVINO's, or an ONNX file."""

    complete = staticmethod(complete)

    def initialize(self, args: instance.Texts) -> None:
        """Compile the model, and check config.pbtxt against it. Raise ValueError if they disagree
        or one is invalid, and FileNotFoundError if the file is missing; the load then fails."""
        config = json.loads(args["model_config"])
        settings = OpenvinoSettings.from_config(config)
        file = instance.model_file(args, config, engine.DEFAULT_FILE)
        model, self.scalars = engine.adapted_model(file, config)
        self.rows = engine.rows_of_tables(model)  # for `_read`, because OpenVINO checks no index
        self.outputs = [entry["name"] for entry in config["output"]]
        merge = merge_of(config, engine.MULTIPLE)
        runs = engine.Runs(engine.compile_model(model, settings, args), merge)
        self.batcher = Batcher(self._read, runs.run, merge)
        instance.give_back_memory()  # what the compilation took

    def _read(self, request: Any) -> Read:
        feed, names = read_request(request, self.outputs, scalars=self.scalars)
        for name, array in feed.items():
            engine.check_range(name, array, self.rows.get(name))
        return feed, names
