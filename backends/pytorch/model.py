"""Serves `platform: "pytorch_libtorch"` without NVIDIA's image: TorchScript in a Python-based
backend.

It accepts the same config.pbtxt as NVIDIA's own C++ backend (triton-inference-server/
pytorch_backend), with the same tensor names and, with one exception, parameters (naming.py).
Each instance runs in its own process. The container does not include PyTorch; if it is missing, a
load fails with an error that says what to install.
"""

import json
from pathlib import Path
from typing import Any

import naming  # Triton's stub puts this folder on its path
from instance import Instance, Texts, explain_missing

REMEDY = "pip install torch there (a CPU build is enough without a GPU), or serve the model as ONNX"


def complete(config: dict[str, Any], _folder: Path) -> dict[str, Any]:
    """Return `config`. Raise ValueError if it is not complete, because a TorchScript file contains
    neither shapes nor datatypes."""
    naming.check(config)
    return config


class TritonPythonModel(Instance):  # type: ignore[misc]  # mypy finds no base class
    """Runs a TorchScript module. PyTorch is imported only by `initialize`, because the import takes
    seconds, and the process that Triton starts to complete config.pbtxt does not need PyTorch."""

    complete = staticmethod(complete)

    def initialize(self, args: Texts) -> None:
        """Load the module. Raise ValueError if it is invalid or does not match config.pbtxt,
        FileNotFoundError if it is missing, and ModuleNotFoundError if PyTorch is; the load then
        fails."""
        with explain_missing("the platform pytorch_libtorch needs PyTorch", REMEDY):
            from torch_instance import TorchInstance
        self.batcher = TorchInstance(json.loads(args["model_config"]), args).batcher
