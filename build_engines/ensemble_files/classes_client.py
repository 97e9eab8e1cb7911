"""The client of an ensemble that takes an encoded image and gives a score for each class."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clients._labels import labels_of
from clients.base import ACTIVATIONS, Model, ModelClient, Parameter, Tensors, best
from clients.resnet import Client as Classifier
from serving.codecs import ENCODED_IMAGE
from serving.errors import InferenceFailed

LABELS = "labels.txt"


class Client(ModelClient):
    """INPUT UINT8 [n, bytes] -> OUTPUT FP32 [n, classes]: `{"classes": [{"label", "class_id",
    "score"}, …]}`."""

    codec = ENCODED_IMAGE
    example = Classifier.example
    settings = (
        Parameter(
            "activation", "softmax", "what turns outputs into scores", choices=tuple(ACTIVATIONS)
        ),
    )
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
        self,
        outputs: Tensors,
        inputs: Tensors,
        instances: Sequence[bytes],
        parameters: Mapping[str, Any],
    ) -> list[Any]:
        rows = outputs["OUTPUT"].astype(np.float32, copy=False)
        if not np.isfinite(rows).all():
            raise InferenceFailed(f"output 'OUTPUT' of model '{self.model.name}' is not finite")
        function, classes = self.options["activation"], rows.shape[1]
        if function == "softmax" and classes == 1:
            function = "sigmoid"  # the softmax of one logit is always 1
        labels = [*self.labels, *map(str, range(len(self.labels), classes))]
        top = (best(row, parameters["top_k"]) for row in ACTIVATIONS[function](rows))
        return [
            {"classes": [{"label": labels[i], "class_id": i, "score": score} for i, score in row]}
            for row in top
        ]
