"""The base of the text client's tasks: data and two functions, like a client."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from clients._schemas import Schema
from clients._text.tokenizer import TextTokenizer
from clients.base import Model, Parameter, Tensors, read_labels
from serving.codecs import TEXT, Codec

Array = NDArray[Any]


class Task(ABC):
    """The task of one model, without any request's state. `truncation` says which text of a pair is shortened; `fields`
    are those of a prediction."""

    codec: ClassVar[Codec] = TEXT
    settings: ClassVar[tuple[Parameter, ...]] = ()
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    truncation: ClassVar[str] = "longest_first"
    fields: ClassVar[Mapping[str, Schema]] = {}

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Mapping[str, Any]) -> None:
        """Take the values of the client's settings as `options`. Raise InvalidRequest if they do not fit the model."""
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.outputs: tuple[str, ...] = (model.outputs[0].name,)  # that are read

    def rows(self, instance: Any) -> int:
        """Return about how many rows `tokens` makes of an instance."""
        return 1

    def tokens(self, instances: Sequence[Any], parameters: Mapping[str, Any]) -> Tensors:
        """Return the model's inputs, one row or more for each instance, and `num_tokens` [n instances] before
        truncation. `truncated` [n instances] is there if more tokens than the model takes need not mean truncation."""
        return self.tokenizer.encode(instances, self.options["pad_to_multiple_of"])

    @abstractmethod
    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[Any], parameters: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Return a prediction for each instance. `inputs` is what `tokens` returned."""

    def read(self, outputs: Tensors) -> Array:
        """Return the first output that is read, as FP32."""
        return outputs[self.outputs[0]].astype(np.float32, copy=False)

    def labels(self) -> list[str]:
        """Return the labels of the setting's file, else of config.json, by class id."""
        if self.options["labels"]:
            return read_labels(self.model, self.options["labels"])
        named = self.tokenizer.config.get("id2label", {})
        return [named[key] for key in sorted(named, key=int)]


def label(labels: Sequence[str], index: int) -> str:
    """Return a class's label, or transformers' name for a class without one."""
    return labels[index] if index < len(labels) else f"LABEL_{index}"
