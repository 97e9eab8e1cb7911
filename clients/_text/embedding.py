"""Converts a text to a vector, as sentence-transformers does."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from clients._text.task import Predictions, Task
from clients._text.tokenizer import TextTokenizer
from clients.base import Array, Instances, Model, Parameter, Tensors, Values
from serving.errors import InvalidRequest
from serving.named_value import unknown

POOLED = "sentence_embedding"  # sentence-transformers' name for the output


class ExplicitPrompt(str):
    """A prompt that the caller set, which replaces the model's default prompt even if it is
    empty."""

    __slots__ = ()


def _explicit(value: Any) -> ExplicitPrompt:
    if not isinstance(value, str):
        raise TypeError(value)
    return ExplicitPrompt(value)


class Embedding(Task):
    """Predicts `{"embedding": FP32 [dimensions]}`: the mean, the maximum, the first or the last of
    the tokens' vectors, cut to `dimensions` and, by default, scaled to length 1.

    If the network has the output `sentence_embedding` [hidden] and config.pbtxt does not set
    `pooling`, the client reads that output. Otherwise it reads the first output, [tokens, hidden]
    or [hidden].
    """

    settings = (
        Parameter(
            "pooling",
            "mean",
            "embedding: the tokens that it comes from",
            choices=("mean", "cls", "max", "last"),
        ),
    )
    parameters = (
        Parameter("normalize", True, "whether to scale the embedding to length 1"),
        Parameter(
            "dimensions", 0, "how many numbers of the embedding, from its first; 0: all", minimum=0
        ),
        Parameter("prompt_name", "", "name of one of the model's prompts, to put before the text"),
        Parameter(
            "prompt",
            "",
            'a prompt to put before the text; if set to "", none is',
            parser=_explicit,
            form="a string",
        ),
    )

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Values) -> None:
        super().__init__(model, tokenizer, options)
        is_pooled = any(spec.name == POOLED for spec in model.outputs)
        if is_pooled and "pooling" not in model.parameters:
            self.outputs = (POOLED,)
        prompts = tokenizer.sentence_transformers
        self.prompts: dict[str, str] = prompts.get("prompts") or {}
        self.default_prompt_name = prompts.get("default_prompt_name") or ""

    def length(self, instance: str, parameters: Values) -> int:
        return len(self._prompt(parameters)) + len(instance)

    def tokens(self, instances: Sequence[str], parameters: Values) -> Tensors:
        # The tokenizer reads at most max_characters of prompt and text, so the rest of a longer
        # prompt need not be copied. One more character shows the tokenizer that the text was cut.
        prompt = self.tokenizer.part(self._prompt(parameters), self.tokenizer.max_characters + 1)
        if prompt:
            instances = [prompt + text for text in instances]
        return super().tokens(instances, parameters)

    def _prompt(self, parameters: Values) -> str:
        """Return the prompt to put before each text: the explicit one, or else the named one, or
        else the model's default, or else "". Raise InvalidRequest for an unknown name."""
        prompt = parameters["prompt"]
        if isinstance(prompt, ExplicitPrompt):
            return str(prompt)
        name = parameters["prompt_name"] or self.default_prompt_name
        if not name:
            return ""
        if name not in self.prompts:
            reason = unknown("prompt", name, self.prompts)
            raise InvalidRequest(f"parameter 'prompt_name': {reason}")
        return self.prompts[name]

    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> Predictions:
        """Return the vector of each text, from an output [n, sequence, hidden], or [n, hidden] if
        the network pools the tokens itself. Raise InvalidRequest if the vectors have fewer than
        `dimensions` numbers."""
        values = self.first_output(outputs)
        if values.ndim == 3:
            mask = inputs.get("attention_mask", np.ones_like(inputs["input_ids"]))
            values = self._pooled(values, mask)
        count = parameters["dimensions"]
        if count > values.shape[1]:
            raise InvalidRequest(
                f"parameter 'dimensions': the embedding has {values.shape[1]}, not {count}"
            )
        # a copy, so that the memory of the whole array can be freed
        values = values[:, : count or None].copy()
        if parameters["normalize"]:
            lengths = np.linalg.norm(values, axis=1, keepdims=True)
            values = values / np.maximum(lengths, 1e-12)
        return [{"embedding": vector} for vector in values]

    def _pooled(self, values: Array, attention_mask: Array) -> Array:
        pooling = self.options["pooling"]
        if pooling == "cls":
            return np.asarray(values[:, 0])
        if pooling == "last":
            last = attention_mask.sum(axis=1) - 1
            return np.asarray(values[np.arange(len(values)), last])
        if pooling == "max":
            is_token = attention_mask[..., None] > 0
            return np.asarray(np.where(is_token, values, -np.inf).max(axis=1))
        mask = attention_mask.astype(np.float32)
        sums = np.einsum("nsh,ns->nh", values, mask)
        return np.asarray(sums / mask.sum(axis=1, keepdims=True))
