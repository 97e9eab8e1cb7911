"""What a task of the text client is: data and two functions, as a client's."""

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
    """One for each model; it keeps no request's state. `truncation` says which text of a pair is shortened, `fields`
    what a prediction consists of."""

    codec: ClassVar[Codec] = TEXT
    settings: ClassVar[tuple[Parameter, ...]] = ()
    parameters: ClassVar[tuple[Parameter, ...]] = ()
    truncation: ClassVar[str] = "longest_first"
    fields: ClassVar[Mapping[str, Schema]] = {}

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Mapping[str, Any]) -> None:
        """`options` are the values of the client's settings; raises InvalidRequest when they do not fit the model."""
        self.model, self.tokenizer, self.options = model, tokenizer, options
        self.outputs: tuple[str, ...] = (model.outputs[0].name,)  # that are read

    def rows(self, instance: Any) -> int:
        """About how many rows `tokens` makes of it."""
        return 1

    def tokens(self, instances: Sequence[Any], parameters: Mapping[str, Any]) -> Tensors:
        """The model's inputs, one row or several for each instance; `num_tokens` [n instances], before truncation, and
        where it is not all that are more than the model takes, `truncated` [n instances]."""
        return self.tokenizer.encode(instances, self.options["pad_to_multiple_of"])

    @abstractmethod
    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[Any], parameters: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """A prediction for each instance; `inputs` is what `tokens` made."""

    def read(self, outputs: Tensors) -> Array:
        """The output that is read, in FP32."""
        return outputs[self.outputs[0]].astype(np.float32, copy=False)

    def labels(self) -> list[str]:
        """Those of the setting's file, else of config.json, by class id."""
        if self.options["labels"]:
            return read_labels(self.model, self.options["labels"])
        named = self.tokenizer.config.get("id2label", {})
        return [named[key] for key in sorted(named, key=int)]


def label(labels: Sequence[str], index: int) -> str:
    """transformers' own word for a class that has no label."""
    return labels[index] if index < len(labels) else f"LABEL_{index}"
