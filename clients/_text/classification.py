"""Tasks whose network gives scores of a text or of a pair: classes, classes that the caller names, and ranking."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from clients._labels import scores_output
from clients._text.task import Array, Fields, Task, as_text, label
from clients._text.tokenizer import TextTokenizer
from clients.base import ACTIVATIONS, Model, Names, Parameter, Tensors, best, softmax
from serving.budget import MOST_MADE, MOST_ROWS, check_count
from serving.errors import DecodingError, InvalidRequest

FUNCTIONS = ("auto", "softmax", "sigmoid", "none")
MOST_LABELS = 100  # each is a row with the whole text
LONGEST_TEMPLATE = 1_000  # characters
HOLE = "{}"


class TextClassification(Task):
    """`{"classes": [{"label", "class_id", "score"}, …]}`, best first."""

    codec = Fields("text", optional=("text_pair",))
    settings = (
        Parameter(
            "activation",
            "auto",
            "text-classification: turns logits into scores; auto: as problem_type in config.json says",
            choices=FUNCTIONS,
        ),
    )
    parameters = (
        Parameter("top_k", 5, "how many classes", minimum=1, maximum=1000),
        Parameter("function_to_apply", "auto", "turns logits into scores; auto: the model's own", choices=FUNCTIONS),
    )

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Mapping[str, Any]) -> None:
        super().__init__(model, tokenizer, options)
        self.names = self.labels()
        self.output = scores_output(model, len(self.names))
        self.outputs = (self.output.name,)
        self.function = self._function()

    def _function(self) -> str:
        """Choose the function as transformers' text-classification pipeline does."""
        if self.options["activation"] != "auto":
            return str(self.options["activation"])
        problem = self.tokenizer.config.get("problem_type")
        if problem == "regression":
            return "none"
        single = 1 in (len(self.names), self.output.shape[-1])
        return "sigmoid" if single or problem == "multi_label_classification" else "softmax"

    def tokens(self, instances: Sequence[Any], parameters: Mapping[str, Any]) -> Tensors:
        return super().tokens([as_text(each) for each in instances], parameters)

    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[Any], parameters: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Make the likeliest classes of logits [n, labels]."""
        asked = parameters["function_to_apply"]
        scores = ACTIVATIONS[self.function if asked == "auto" else asked](self.read(outputs))
        return [
            {
                "classes": [
                    {"label": label(self.names, index), "class_id": index, "score": score}
                    for index, score in best(row, parameters["top_k"])
                ]
            }
            for row in scores
        ]


def _template(value: Any) -> str:
    if not isinstance(value, str) or value.count(HOLE) != 1 or len(value) > LONGEST_TEMPLATE:
        raise ValueError(value)
    return value


class ZeroShotClassification(Task):
    """`{"classes": [{"label", "class_id", "score"}, …]}`, best first; class_id counts the labels as they were given.

    A model of natural language inference says how far the text entails that it is about each label that the caller
    names (Yin et al. 2019, arXiv:1909.00161).
    """

    codec = Fields("text", optional=("candidate_labels",), lists=("candidate_labels",))
    parameters = (
        Parameter("candidate_labels", Names(), "the labels to choose from, where an instance names none"),
        Parameter(
            "hypothesis_template",
            "This example is {}.",
            "a sentence; the label takes the place of {}",
            parser=_template,
            form=f"a text of at most {LONGEST_TEMPLATE} characters with exactly one {HOLE}",
        ),
        Parameter("multi_label", False, "whether several labels may be true"),
    )
    truncation = "only_first"

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Mapping[str, Any]) -> None:
        super().__init__(model, tokenizer, options)
        found = [index for index, name in enumerate(self.labels()) if name.lower().startswith("entail")]
        if not found:
            raise InvalidRequest(
                f"model '{model.name}': none of its labels ({', '.join(self.labels()) or 'there are none'}) begins "
                "with 'entail'; zero-shot-classification takes a model of natural language inference"
            )
        self.outputs = (scores_output(model, len(self.labels())).name,)
        self.entailment = found[0]
        self.contradiction = -1 if self.entailment == 0 else 0

    def rows(self, instance: Any) -> int:
        return 1 if isinstance(instance, str) else len(instance["candidate_labels"])

    def tokens(self, instances: Sequence[Any], parameters: Mapping[str, Any]) -> Tensors:
        """Return a row for each label of each instance; `owners` [rows] has the instance of each row. Raise
        PayloadTooLarge."""
        named = [self._labels(index, each, parameters) for index, each in enumerate(instances)]
        template = parameters["hypothesis_template"]
        made = sum(len(template) + len(one) for labels in named for one in labels)
        check_count(made, MOST_MADE, "characters of hypotheses", "send fewer or shorter labels")
        texts = [each if isinstance(each, str) else each["text"] for each in instances]
        pairs = [
            (text, template.replace(HOLE, one)) for text, labels in zip(texts, named, strict=True) for one in labels
        ]
        owners = np.repeat(np.arange(len(named)), [len(labels) for labels in named])
        return per_instance(self.encoded(pairs), owners, self.tokenizer.max_length)

    def encoded(self, pairs: Sequence[tuple[str, str]]) -> Tensors:
        """Return the tokens of the pairs. Raise InvalidRequest if a label alone is longer than the model takes."""
        try:
            return self.tokenizer.encode(pairs, self.options["pad_to_multiple_of"])
        except Exception as err:  # the tokenizer raises no narrower class
            raise InvalidRequest(f"a label is too long: {err}") from err

    def _labels(self, index: int, instance: Any, parameters: Mapping[str, Any]) -> Sequence[str]:
        own = () if isinstance(instance, str) else instance.get("candidate_labels", ())
        labels: Sequence[str] = own or parameters["candidate_labels"]
        if not labels:
            raise DecodingError("it has no labels to choose from: name them in 'candidate_labels'", instance=index)
        if len(labels) > MOST_LABELS:
            raise DecodingError(f"it has {len(labels)} labels, at most {MOST_LABELS} are tried", instance=index)
        return labels

    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[Any], parameters: Mapping[str, Any]
    ) -> list[dict[str, Any]]:
        """Make each instance's labels of logits [rows, 3]."""
        logits = self.read(outputs)
        predictions = []
        for index, instance in enumerate(instances):
            labels = self._labels(index, instance, parameters)
            scores = self._scores(logits[inputs["owners"] == index], parameters["multi_label"])
            found = [{"label": labels[at], "class_id": at, "score": score} for at, score in best(scores, len(labels))]
            predictions.append({"classes": found})
        return predictions

    def _scores(self, logits: Array, several: bool) -> Array:
        if several or len(logits) == 1:
            return softmax(logits[:, [self.contradiction, self.entailment]])[:, 1]
        return softmax(logits[:, self.entailment])


def per_instance(tensors: Tensors, owners: Array, limit: int) -> Tensors:
    """Return what `encode` made of several rows for an instance, with `num_tokens` of its longest row and `owners`."""
    counts = np.zeros(int(owners.max()) + 1, np.int64)
    np.maximum.at(counts, owners, tensors["num_tokens"])
    return tensors | {"num_tokens": counts, "truncated": counts > limit, "owners": owners}


class TextRanking(Task):
    """`{"ranking": [{"index", "score"}, …]}` of documents by how well they answer a query, in pairs (a cross-encoder),
    best first; index counts the documents as they were given."""

    codec = Fields("query", "documents", lists=("documents",))
    parameters = (
        Parameter("top_k", 0, "how many documents; 0: all", minimum=0),
        Parameter("return_documents", False, "whether each entry has its document too"),
    )

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Mapping[str, Any]) -> None:
        super().__init__(model, tokenizer, options)
        output = scores_output(model, 1)
        self.outputs = (output.name,)
        if (count := output.shape[-1]) not in (1, -1):
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
