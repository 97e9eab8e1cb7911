"""The client of an ensemble that takes an encoded image and gives a score for each class."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clients._labels import labels_of
from clients.base import ACTIVATIONS, Model, ModelClient, Parameter, Tensors
from clients.resnet import Client as Classifier
from serving.codecs import ENCODED_IMAGE

LABELS = "labels.txt"


class Client(ModelClient):
    """INPUT UINT8 [n, bytes] -> OUTPUT FP32 [n, classes]: `{"classes": [{"label", "class_id", "score"}, …]}`."""

    codec = ENCODED_IMAGE
    example = Classifier.example
    settings = (Parameter("activation", "softmax", "what turns outputs into scores", choices=tuple(ACTIVATIONS)),)
    parameters = (Parameter("top_k", 5, "how many classes to return", minimum=1),)

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.labels = labels_of(model, LABELS)

    def preprocess(self, instances: Sequence[bytes]) -> Tensors:
        """Pad with zeros to the longest; decoders ignore them."""
        longest = max(map(len, instances))
        rows = [np.frombuffer(image.ljust(longest, b"\0"), np.uint8) for image in instances]
        return {"INPUT": np.stack(rows)}

    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[bytes], parameters: Mapping[str, Any]
    ) -> list[Any]:
        scores = ACTIVATIONS[self.options["activation"]](outputs["OUTPUT"].astype(np.float32, copy=False))
        best = np.argsort(-scores, axis=1, kind="stable")[:, : parameters["top_k"]]
        rows = zip(best.tolist(), scores.tolist(), strict=True)
        labels = [*self.labels, *map(str, range(len(self.labels), scores.shape[1]))]
        return [
            {"classes": [{"label": labels[i], "class_id": i, "score": values[i]} for i in row]} for row, values in rows
        ]
