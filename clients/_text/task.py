"""Defines the base class of the text client's tasks, and reads the instances of tasks that take
more than one text."""

import json
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np

from clients._labels import labels_of
from clients._text.tokenizer import Text, TextTokenizer
from clients.base import Array, Instances, Model, Parameter, Tensors, Values
from serving.budget import read_json
from serving.codecs import TEXT, Codec, Limits, describe
from serving.codecs.base import TextCodec
from serving.errors import DecodingError
from serving.named_value import unknown

Predictions = list[dict[str, Any]]


class Task(ABC):
    """Performs a task with one model. It keeps no state between requests. `truncation` says which
    text of a pair is shortened."""

    codec: Codec = TEXT
    settings: tuple[Parameter, ...] = ()
    parameters: tuple[Parameter, ...] = ()
    truncation = "longest_first"

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Values) -> None:
        """Store the values of the client's settings (`options`). A subclass raises InvalidRequest
        if the model, the tokenizer or the settings do not suit its task."""
        self.model = model
        self.tokenizer = tokenizer
        self.options = options
        self.outputs: tuple[str, ...] = (model.outputs[0].name,)  # the outputs that `predict` reads

    def rows(self, instance: Any) -> int:
        """Return roughly how many rows `tokens` creates for an instance."""
        return 1

    def length(self, instance: Any, parameters: Values) -> int:
        """Return roughly how many characters `tokens` reads for the instance. A text that is part
        of several rows counts once for each row."""
        return self.codec.length(instance)

    def tokens(self, instances: Instances, parameters: Values) -> Tensors:
        """Return the model's inputs, one row or more for each instance, and `num_tokens` [n
        instances], counted before truncation. If the task can read long texts in windows, also
        return `truncated` [n instances], because a text may then have more tokens than the model
        accepts without being cut."""
        return self.tokenizer.encode(instances)

    def encode_groups(self, groups: Sequence[Sequence[Text]]) -> Tensors:
        """Return one row of tokens for each text or pair in `groups`, which has the texts of each
        instance. `owners` [rows] contains the index of the instance to which each row belongs.
        `num_tokens` [instances] counts the tokens of each instance's longest row before truncation.
        `truncated` [instances] says whether that row was cut."""
        sizes = [len(group) for group in groups]
        owners = np.repeat(np.arange(len(groups)), sizes)
        texts = list(chain.from_iterable(groups))
        tensors = self.tokenizer.encode(texts, owners.tolist())  # errors name the instance
        counts = np.zeros(len(groups), np.int64)
        np.maximum.at(counts, owners, tensors["num_tokens"])
        truncated = counts > self.tokenizer.max_length
        return tensors | {"num_tokens": counts, "truncated": truncated, "owners": owners}

    @abstractmethod
    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> Predictions:
        """Return a prediction for each instance. `inputs` is what `tokens` returned."""

    def first_output(self, outputs: Tensors) -> Array:
        """Return the first of the task's outputs, as FP32."""
        return outputs[self.outputs[0]].astype(np.float32, copy=False)

    def labels(self) -> list[str]:
        """Return the labels from the setting's file, or else from config.json, in the order of the
        class ids."""
        if self.options["labels"]:
            return labels_of(self.model, self.options["labels"])
        named = self.tokenizer.config.get("id2label", {})
        return [named[key] for key in sorted(named, key=int)]


def label(labels: Sequence[str], index: int) -> str:
    """Return a class's label, or transformers' name for a class without one."""
    return labels[index] if index < len(labels) else f"LABEL_{index}"


class Fields(TextCodec):
    """Reads an object that has the keys `required`, and may have the keys `optional`. The values
    are lists of strings for the keys in `lists`, and strings for the others. If "text" is the only
    required key, the instance may also be a string."""

    def __init__(
        self, *required: str, optional: tuple[str, ...] = (), lists: tuple[str, ...] = ()
    ) -> None:
        self.required = required
        self.lists = lists
        self.keys: tuple[str, ...] = (*required, *optional)
        self.may_be_string = required == ("text",)
        pattern = {key: ["…"] if key in lists else "…" for key in self.keys}
        self.expected = json.dumps(pattern, ensure_ascii=False)
        if self.may_be_string:
            self.expected = f"a string, or {self.expected}"

    def open(self, data: bytes, limits: Limits) -> Any:
        """Return the instance in `data`. If it may be a string, `data` is that string, unless it is
        a JSON object with the key "text" and no unknown keys. Otherwise, `data` must be a JSON
        object. Raise DecodingError."""
        text = super().open(data, limits)
        value = {}
        if text.lstrip().startswith("{"):
            with suppress(ValueError):
                value = read_json(data)
        is_instance = "text" in value and value.keys() <= set(self.keys)
        if self.may_be_string and not is_instance:
            return text
        return self.open_json(value, limits)

    def open_json(self, value: Any, limits: Limits) -> Any:
        """Return a string, or a dict of strings and lists of strings. Raise DecodingError for an
        unknown or missing key, a value of the wrong type, or an empty list."""
        if self.may_be_string and isinstance(value, str):
            return value
        is_complete = isinstance(value, dict) and value.keys() >= set(self.required)
        if not is_complete:
            raise DecodingError(f"expected {self.expected}, got {describe(value)}")
        if strange := sorted(value.keys() - set(self.keys)):
            raise DecodingError(unknown("key", strange[0], self.keys))
        for key, content in value.items():
            self._check_value(key, content)
        if self.may_be_string and len(value) == 1:
            return value["text"]
        return dict(value)

    def length(self, opened: Any) -> int:
        if isinstance(opened, str):
            return len(opened)
        count = 0
        for value in opened.values():
            texts = value if isinstance(value, list) else [value]
            count += sum(map(len, texts))
        return count

    def _check_value(self, key: str, value: Any) -> None:
        texts = [value]
        expected = "a string"
        if key in self.lists:
            texts = value if isinstance(value, list) else []
            expected = "a list of at least one string"
        if not texts or not all(isinstance(text, str) for text in texts):
            raise DecodingError(f"expected {expected}, got {describe(value)}", field=key)


def text_or_pair(instance: str | Mapping[str, str]) -> Text:
    """Return a text, or the pair of a text and its `text_pair`. As in transformers, an empty
    `text_pair` counts as none."""
    if isinstance(instance, str):
        return instance
    text, second = instance["text"], instance.get("text_pair")
    return (text, second) if second else text
