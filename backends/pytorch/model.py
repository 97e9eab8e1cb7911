"""Serves `platform: "pytorch_libtorch"` without NVIDIA's image: TorchScript in a Python-based
backend.

It accepts the same config.pbtxt as NVIDIA's own C++ backend, with the same tensor names
(naming.py), parameters and defaults (torch_settings.py; triton-inference-server/pytorch_backend).
Each instance runs in a process of its own. The container does not include PyTorch. Without it, a
load fails with an error that says what to install.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import naming  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path
from instance import needs  # type: ignore[import-not-found]

REMEDY = "pip install torch there (a CPU build is enough without a GPU), or serve the model as ONNX"


def complete(config: dict[str, Any], _folder: Path) -> dict[str, Any]:
    """Raise ValueError if config.pbtxt is not complete."""
    naming.check(config)
    return config


class TritonPythonModel:
    """One instance of one version of a model. Triton prescribes the names and arguments of the
    methods."""

    @staticmethod
    def auto_complete_config(auto_complete_model_config: Any) -> Any:
        """Check config.pbtxt, which must be complete, because a TorchScript file contains neither
        shapes nor datatypes.

        Triton starts a process only for this call, so do not import PyTorch, which would take
        seconds.
        """
        complete(auto_complete_model_config.as_dict(), Path())
        return auto_complete_model_config

    def initialize(self, args: Mapping[str, str]) -> None:
        """Load the module. A ValueError, or a ModuleNotFoundError if PyTorch is missing, makes the
        load fail."""
        with needs("the platform pytorch_libtorch needs PyTorch", REMEDY):
            from torch_instance import TorchInstance  # type: ignore[import-not-found]
        self.instance = TorchInstance(json.loads(args["model_config"]), args)

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Answer the requests that the dynamic batcher has merged. Return one response for each, in
        the same order."""
        responses: list[Any] = self.instance.batcher.answer(requests)
        return responses

    def finalize(self) -> None:
        """Free the weights before the process ends."""
        del self.instance
