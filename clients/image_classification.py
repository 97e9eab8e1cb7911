"""Classifies images with a network that takes one image and returns one score for each class."""

from collections.abc import Sequence
from math import prod
from typing import Any

from clients._image import ImageClient
from clients._labels import LABELS, label_of, labels_mismatch, labels_of, scores_output
from clients.base import ACTIVATIONS, Floats, Instances, Model, Parameter, Tensors, Values, best
from serving.errors import InferenceFailed, InvalidRequest


class Client(ImageClient):
    """Finds the classes of an image, best first: `{"classes": [{"label", "class_id", "score"},
    …]}`. If the model has several outputs, the client uses the one with as many scores as there are
    labels, or else one whose name contains "logit" or "prob", or else the first."""

    task = "image-classification"
    settings = (
        *ImageClient.settings,
        Parameter(
            "activation",
            "softmax",
            "function that turns outputs into scores; for a single logit, softmax means sigmoid",
            choices=("softmax", "sigmoid", "none"),
        ),
        LABELS,
    )
    parameters = (Parameter("top_k", 5, "how many classes to return", minimum=1, maximum=1000),)

    def __init__(self, model: Model) -> None:
        """Read settings and labels. Raise InvalidRequest if the shapes, settings and labels do not
        match, and OSError if the file that `labels` names is missing."""
        super().__init__(model)
        self.labels = labels_of(model, self.options["labels"])
        self.output = scores_output(model, len(self.labels))
        self.outputs = (self.output.name,)
        if mistake := self._mistake(self.shape_of_each(self.output)):
            raise InvalidRequest(mistake)

    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> list[Any]:
        """Return the `top_k` classes of each image, highest score first. Equal scores are ordered
        by class id.

        Raise InferenceFailed if the output has infinite or NaN values, or a shape that `_mistake`
        rejects.
        """
        scores = self.finite(outputs, self.output.name)
        rows = scores.reshape(len(instances), -1)
        if mistake := self._mistake(scores.shape[1:]):
            raise InferenceFailed(mistake)
        function = self.options["activation"]
        if function == "softmax" and rows.shape[1] == 1:
            function = "sigmoid"  # the softmax of one logit is always 1
        return [
            {"classes": self._classes(row, parameters["top_k"])}
            for row in ACTIVATIONS[function](rows)
        ]

    def _classes(self, scores: Floats, count: int) -> list[dict[str, Any]]:
        return [
            {"label": label_of(self.labels, class_id), "class_id": class_id, "score": score}
            for class_id, score in best(scores, count)
        ]

    def _mistake(self, shape: Sequence[int]) -> str:
        """Return why an output of this shape does not have one score for each class, or "" if it
        does. At most one dimension may have a size other than 1."""
        if sum(size != 1 for size in shape) > 1:
            return (
                f"output '{self.output.name}' {list(shape)} of model '{self.model.name}' is "
                "not a list of scores, one for each class: a detector, a segmentation or an "
                "encoder takes another client, or none"
            )
        classes = -1 if -1 in shape else prod(shape)
        return labels_mismatch(self.model, self.labels, self.output.name, classes)
