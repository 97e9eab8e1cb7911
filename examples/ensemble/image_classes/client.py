"""Defines the client of an ensemble that takes an encoded image and returns a score for each
class."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clients import ENCODED_IMAGE, InferenceFailed, Model, ModelClient, Parameter, Tensors
from clients.base import best, softmax


class Client(ModelClient):
    """Serves the ensemble, which maps INPUT, UINT8 [n, bytes], to OUTPUT, FP32 [n, classes]. A
    prediction is `{"classes": [{"label", "class_id", "score"}, …]}`."""

    codec = ENCODED_IMAGE
    parameters = (Parameter("top_k", 5, "how many classes to return", minimum=1, maximum=1000),)

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.labels = model.file("labels.txt").read_text(encoding="utf-8").splitlines()

    def prepare(self, instances: Sequence[bytes], parameters: Mapping[str, Any]) -> Tensors:
        """Pad the images with zeros to the length of the longest one. Decoders ignore the zeros."""
        longest = max(map(len, instances))
        rows = [np.frombuffer(image.ljust(longest, b"\0"), np.uint8) for image in instances]
        return {"INPUT": np.stack(rows)}

    def postprocess(
        self,
        outputs: Tensors,
        inputs: Tensors,
        instances: Sequence[bytes],
        parameters: Mapping[str, Any],
    ) -> list[Any]:
        logits = outputs["OUTPUT"]
        if not np.isfinite(logits).all():
            raise InferenceFailed(f"output 'OUTPUT' of model '{self.model.name}' is not finite")
        return [self._prediction(row, parameters["top_k"]) for row in softmax(logits)]

    def _prediction(self, scores: Any, count: int) -> dict[str, Any]:
        ranked = best(scores, count)
        return {
            "classes": [
                {"label": self.labels[index], "class_id": index, "score": score}
                for index, score in ranked
            ]
        }
