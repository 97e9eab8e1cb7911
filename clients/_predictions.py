"""What predictions of several clients consist of: scores made of logits, and the best of them."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def softmax(logits: Array) -> Array:
    """Softmax over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sigmoid(logits: Array) -> Array:
    """1 / (1 + e^-x), without an overflow."""
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))


def best(scores: Array, count: int) -> list[tuple[int, float]]:
    """Return (index, score) of the `count` highest scores of a vector, highest first."""
    if count < len(scores):
        candidates = np.argpartition(scores, -count)[-count:]
    else:
        candidates = np.arange(len(scores))
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    return [(int(index), float(scores[index])) for index in order]


ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"softmax": softmax, "sigmoid": sigmoid, "none": np.asarray}
