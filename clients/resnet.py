"""Image classification with a ResNet, or any network that takes one image and gives one score per class."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clients._image import EXAMPLE, LABELS, ImageClient
from clients.base import (
    ACTIVATIONS,
    Model,
    Parameter,
    Tensors,
    TensorSpec,
    label_of,
    labels_mismatch,
    labels_of,
    scores_output,
)
from serving.errors import InferenceFailed, InvalidRequest


class Client(ImageClient):
    """Classes of an image, best first: `{"classes": [{"label", "class_id", "score"}, …]}`.

    The settings of a classifier besides those of its input (clients/_image.py):

    | Setting | Default | Meaning |
    |---|---|---|
    | `activation` | softmax | softmax when the model returns logits (of one logit the sigmoid), sigmoid when classes do not exclude each other, none when it returns probabilities |
    | `labels` | labels.txt | a file in the model's folder, one label per line; without it the class ids are the labels |

    Of several outputs the client uses the one with as many scores as there are labels, else the one named logits or
    probabilities.
    """  # noqa: E501

    example = EXAMPLE
    settings = (
        *ImageClient.settings,
        Parameter("activation", "softmax", "what turns outputs into scores", choices=("softmax", "sigmoid", "none")),
        LABELS,
    )
    parameters = (Parameter("top_k", 5, "how many classes to return", minimum=1, maximum=1000),)

    def __init__(self, model: Model) -> None:
        """Raises InvalidRequest when shape, settings and labels do not fit together, OSError when the file
        that `labels` names is missing."""
        super().__init__(model)
        self.labels = labels_of(model, self.options["labels"])
        self.output = scores_output(model, len(self.labels))
        self.outputs = (self.output.name,)
        if not _is_a_list(self.output.shape):
            raise InvalidRequest(self._no_list(self.output.shape))
        if mismatch := labels_mismatch(
            model, self.labels, self.output.name, _class_count(self.output, model.max_batch_size)
        ):
            raise InvalidRequest(mismatch)

    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[Any], parameters: Mapping[str, Any]
    ) -> list[Any]:
        """The output [n, classes] -> the `top_k` classes of each image, highest score first, ties by class id.

        Raises InferenceFailed when the output is not finite or its number of classes is not that of the labels.
        """
        output = outputs[self.output.name]
        if not _is_a_list(output.shape[1:]):
            raise InferenceFailed(self._no_list(output.shape[1:]))
        rows = self.finite(outputs, self.output.name).reshape(len(instances), -1)
        if mismatch := labels_mismatch(self.model, self.labels, self.output.name, rows.shape[1]):
            raise InferenceFailed(mismatch)
        function = self.options["activation"]
        if function == "softmax" and rows.shape[1] == 1:
            function = "sigmoid"  # the softmax of one logit is always 1
        scores = ACTIVATIONS[function](rows)
        best = np.argsort(-scores, axis=1, kind="stable")[:, : parameters["top_k"]]
        ranked = np.take_along_axis(scores, best, axis=1)
        return [self._prediction(*row) for row in zip(best.tolist(), ranked.tolist(), strict=True)]

    def _prediction(self, class_ids: list[int], scores: list[float]) -> dict[str, Any]:
        return {
            "classes": [
                {"label": label_of(self.labels, i), "class_id": i, "score": score}
                for i, score in zip(class_ids, scores, strict=True)
            ]
        }

    def _no_list(self, shape: Sequence[int]) -> str:
        return (
            f"output '{self.output.name}' {list(shape)} of model '{self.model.name}' is no list of scores, one "
            "for each class: a detector, a segmentation or an encoder takes another client, or none"
        )


def _is_a_list(shape: Sequence[int]) -> bool:
    """Whether no more than one dimension, beside a batch of its own, is other than 1."""
    own_batch = shape[0] == -1 if len(shape) > 1 else False
    return sum(size != 1 for size in shape[int(own_batch) :]) <= 1


def _class_count(spec: TensorSpec, max_batch_size: int) -> int:
    """The number of scores per image, -1 when the shape does not say."""
    shape = spec.shape[1:] if max_batch_size == 0 and len(spec.shape) > 1 else spec.shape
    return -1 if min(shape, default=-1) < 0 else int(np.prod(shape))
