"""The classes of an output, which its parameter `classification` asks for: "score:index", or "score:index:label".

They are made here of the output itself. Triton 24.10, when asked for them, divides by zero and dies if the output is
empty or holds strings.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from serving.budget import MOST_STRINGS, Budget, check_count
from serving.codecs import describe
from serving.errors import InvalidRequest
from serving.served_model import ServedModel
from serving.triton.tensors import InferReply, Tensor

CLASSIFICATION = "classification"
SCORES = {"FP32", "FP64", *(f"{sign}INT{bits}" for sign in ("", "U") for bits in (8, 16, 32, 64))}  # as for Triton


def read_count(name: str, value: Any) -> int:
    """Return how many classes of an output are wanted. Raise InvalidRequest."""
    if type(value) is not int or value < 1:
        raise InvalidRequest(
            f"output '{name}': {CLASSIFICATION} is how many classes to give, at least 1; got {describe(value)}"
        )
    return value


def check_scores(name: str, datatype: str) -> None:
    """Raise InvalidRequest if the numbers of an output cannot be scores."""
    if datatype not in SCORES:
        raise InvalidRequest(
            f"output '{name}' is {datatype}, which has no classes: {CLASSIFICATION} takes {', '.join(sorted(SCORES))}"
        )


def with_classes(served: ServedModel, reply: InferReply, counts: Mapping[str, int], budget: Budget) -> InferReply:
    """Return the reply with classes in place of the outputs in `counts`. Raise InvalidRequest, PayloadTooLarge."""
    is_batched = served.model.max_batch_size > 0
    outputs = (
        _classes(each, counts[each.name], is_batched, served.labels.get(each.name, ()), budget)
        if each.name in counts
        else each
        for each in reply.outputs
    )
    return replace(reply, outputs=tuple(outputs))


def _classes(tensor: Tensor, count: int, is_batched: bool, labels: Sequence[bytes], budget: Budget) -> Tensor:
    """Return [rows, classes] of strings, or [classes] of a model without a batch dimension; the highest score first, of
    equal ones the lowest index."""
    check_scores(tensor.name, tensor.datatype)
    shape = tensor.shape if is_batched else (1, *tensor.shape)
    width = math.prod(shape[1:])
    count = min(count, width)
    check_count(shape[0] * count, MOST_STRINGS, f"classes of output '{tensor.name}'", "ask for fewer")
    scores = tensor.array().reshape(shape[0], width)
    order = width - 1 - np.argsort(scores[:, ::-1], axis=1, kind="stable")[:, ::-1][:, :count]
    classes = np.empty(order.shape, np.object_)
    form, length = ("%f" if scores.dtype.kind == "f" else "%d"), 0
    for row, indices in enumerate(order):
        for at, (index, score) in enumerate(zip(indices.tolist(), scores[row, indices].tolist(), strict=True)):
            label = labels[index] if index < len(labels) else b""
            classes[row, at] = f"{form % score}:{index}".encode() + (b":" + label if label else b"")
            length += len(classes[row, at])
        budget.check_output(length)
    return Tensor.of(tensor.name, classes if is_batched else classes[0], "BYTES")
