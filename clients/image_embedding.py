"""Converts images to vectors, with a vision encoder from the transformers library or any other
network that returns one vector per image."""

from typing import Any

import numpy as np

from clients._image import ImageClient
from clients.base import Instances, Model, Parameter, Tensors, Values
from serving.errors import InferenceFailed, InvalidRequest


class Client(ImageClient):
    """Predicts `{"embedding": FP32 [dimensions]}`, scaled to length 1 or exactly as the network
    returns it. The client uses the model's first output, [dimensions]. All of its settings concern
    the network's input (clients/_image_settings.py)."""

    task = "image-embedding"
    parameters = (Parameter("normalize", True, "whether to scale the embedding to length 1"),)

    def __init__(self, model: Model) -> None:
        """Read the settings. Raise InvalidRequest if the shapes and settings do not match."""
        super().__init__(model)
        self.output = model.outputs[0]
        if len(self.shape_of_each(self.output)) != 1:
            raise InvalidRequest(
                f"output '{self.output.name}' {list(self.output.shape)} of model "
                f"'{model.name}' is not a vector; export the network with its pooled output first"
            )

    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> list[Any]:
        """Return a vector for each image. Raise InferenceFailed if the output has infinite or NaN
        values, or is not one vector for each image."""
        vectors = self.of_each(outputs, self.output.name)
        if vectors.ndim != 2:
            raise InferenceFailed(
                f"output '{self.output.name}' {list(vectors.shape)} is not one vector for "
                "each image"
            )
        if parameters["normalize"]:
            vectors = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        return [{"embedding": vector} for vector in vectors.astype(np.float32, copy=False)]
