"""A part of an ensemble, on Triton's Python backend: an encoder's output and attention_mask [n, s]
-> [n, h].

The encoder's output is [n, h], or [n, s, h] for all tokens. finaloutput is that, or of tokens the
mean without padding or the first, scaled to length 1: config.pbtxt's parameters pooling (mean, cls)
and normalize (true, false) decide.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

LEAST_LENGTH = 1e-12  # as torch.nn.functional.normalize


class TritonPythonModel:
    """The methods' names and arguments are Triton's."""

    def initialize(self, args: Mapping[str, str]) -> None:
        config = json.loads(args["model_config"])
        self.encoded, parameters = config["input"][0]["name"], config["parameters"]
        self.mean = parameters["pooling"]["string_value"] == "mean"
        self.normalize = parameters["normalize"]["string_value"] == "true"

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """One response per request."""
        return [pb_utils.InferenceResponse([self._answer(request)]) for request in requests]

    def _answer(self, request: Any) -> Any:
        hidden = (
            pb_utils.get_input_tensor_by_name(request, self.encoded)
            .as_numpy()
            .astype(np.float32, copy=False)
        )
        mask = (
            pb_utils.get_input_tensor_by_name(request, "attention_mask")
            .as_numpy()
            .astype(np.float32)
        )
        vectors = self._pooled(hidden, mask)
        if self.normalize:
            vectors = vectors / np.maximum(
                np.linalg.norm(vectors, axis=1, keepdims=True), LEAST_LENGTH
            )
        return pb_utils.Tensor("finaloutput", vectors.astype(np.float32, copy=False))

    def _pooled(
        self, hidden: NDArray[np.float32], mask: NDArray[np.float32]
    ) -> NDArray[np.float32]:
        if hidden.ndim == 2:
            return hidden
        if not self.mean:
            return hidden[:, 0]
        return np.asarray(np.einsum("nsh,ns->nh", hidden, mask) / mask.sum(axis=1, keepdims=True))
