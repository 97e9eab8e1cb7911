"""Ranks documents by how well they answer a query, in pairs (a cross-encoder)."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from clients._schemas import INTEGER, NUMBER, Schema, listed, record
from clients._text.fields import Fields
from clients._text.scores import ACTIVATIONS, best
from clients._text.task import Task
from clients._text.tokenizer import TextTokenizer
from clients._text.zero_shot import per_instance
from clients.base import Model, Parameter, Tensors
from serving.budget import MOST_MADE, MOST_ROWS
from serving.errors import DecodingError, InvalidRequest


class TextRanking(Task):
    """`{"ranking": [{"index", "score"}, …]}`, best first; index counts the documents as they were given."""

    fields: ClassVar[Mapping[str, Schema]] = {"ranking": listed(record(index=INTEGER, score=NUMBER))}
    codec = Fields("query", "documents", lists=("documents",))
    parameters = (
        Parameter("top_k", 0, "how many documents; 0: all", minimum=0),
        Parameter("return_documents", False, "whether each entry has its document too"),
    )

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Mapping[str, Any]) -> None:
        super().__init__(model, tokenizer, options)
        if (count := model.outputs[0].shape[-1]) not in (1, -1):
            raise InvalidRequest(f"model '{model.name}' gives {count} scores for a pair; text-ranking takes one")
        self.activation = ACTIVATIONS[self._activation()]

    def _activation(self) -> str:
        """Choose the function as sentence-transformers' CrossEncoder does: the one in config.json, else the sigmoid."""
        if self.options["activation"] != "auto":
            return str(self.options["activation"])
        config = self.tokenizer.config
        written = (config.get("sentence_transformers") or {}).get("activation_fn")
        written = written or config.get("sbert_ce_default_activation_function") or ""
        return "none" if written.endswith("Identity") else "sigmoid"

    def rows(self, instance: Mapping[str, Any]) -> int:
        return len(instance["documents"])

    def tokens(self, instances: Sequence[Mapping[str, Any]], parameters: Mapping[str, Any]) -> Tensors:
        """Return a row for each document of each instance; `owners` [rows] has the instance of each row."""
        for index, each in enumerate(instances):
            self._check(index, each)
        pairs = [(each["query"], document) for each in instances for document in each["documents"]]
        owners = np.repeat(np.arange(len(instances)), [len(each["documents"]) for each in instances])
        return per_instance(super().tokens(pairs, parameters), owners, self.tokenizer.max_length)

    def _check(self, index: int, instance: Mapping[str, Any]) -> None:
        count = len(instance["documents"])
        if count > MOST_ROWS:
            raise DecodingError(f"it has {count} documents, at most {MOST_ROWS} are ranked at a time", instance=index)
        if count * min(len(instance["query"]), self.tokenizer.max_characters) > MOST_MADE:
            raise DecodingError("its query is too long for so many documents: send fewer at a time", instance=index)

    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[Any], parameters: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Make the ranking of each instance's documents of logits [rows, 1]."""
        scores = self.activation(self.read(outputs)[:, 0])
        predictions = []
        for index, instance in enumerate(instances):
            own = scores[inputs["owners"] == index]
            entries: list[dict[str, Any]] = [
                {"index": at, "score": score} for at, score in best(own, parameters["top_k"] or len(own))
            ]
            if parameters["return_documents"]:
                entries = [entry | {"document": instance["documents"][entry["index"]]} for entry in entries]
            predictions.append({"ranking": entries})
        return predictions
