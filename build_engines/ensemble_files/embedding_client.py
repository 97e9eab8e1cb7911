"""The client of an ensemble that takes a text and gives an embedding: `{"embedding": [floats]}`."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clients.base import ModelClient, Tensors
from serving.codecs import TEXT


class Client(ModelClient):
    """INPUT0 STRING [n, 1] -> finaloutput FP32 [n, length]."""

    codec = TEXT
    example = b"The quick brown fox jumps over the lazy dog."

    def preprocess(self, instances: Sequence[str]) -> Tensors:
        return {"INPUT0": np.array([[text.encode()] for text in instances], dtype=np.object_)}

    def postprocess(
        self,
        outputs: Tensors,
        inputs: Tensors,
        instances: Sequence[str],
        parameters: Mapping[str, Any],
    ) -> list[Any]:
        return [{"embedding": vector} for vector in outputs["finaloutput"].tolist()]
