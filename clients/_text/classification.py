"""Serves the text tasks that return one score per class or per text: classification of texts and
pairs, classification with the caller's own labels (zero-shot), and ranking of documents."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from clients._labels import scores_output
from clients._text.task import Fields, Predictions, Task, label, text_or_pair
from clients._text.tokenizer import TextTokenizer
from clients.base import (
    ACTIVATIONS,
    Array,
    Instances,
    Model,
    Names,
    Parameter,
    Tensors,
    Values,
    best,
    softmax,
)
from serving.budget import MOST_MADE, MOST_ROWS, check_count
from serving.errors import DecodingError, InvalidRequest, ServingError

FUNCTIONS = ("auto", "softmax", "sigmoid", "none")
# maps torch's names of the functions that a CrossEncoder may apply to its scores to our names
CROSS_ENCODERS = {"Identity": "none", "Sigmoid": "sigmoid"}
MOST_LABELS = 100  # each label adds a row with the whole text
LONGEST_TEMPLATE = 1_000  # maximum number of characters
PLACEHOLDER = "{}"


class TextClassification(Task):
    """Predicts `{"classes": [{"label", "class_id", "score"}, …]}`, best first."""

    codec = Fields("text", optional=("text_pair",))
    settings = (
        Parameter(
            "activation",
            "auto",
            "text-classification: turns logits into scores; auto: as problem_type in "
            "config.json says",
            choices=FUNCTIONS,
        ),
    )
    parameters = (
        Parameter("top_k", 5, "how many classes", minimum=1, maximum=1000),
        Parameter(
            "function_to_apply",
            "auto",
            "turns logits into scores; auto: the model's own",
            choices=FUNCTIONS,
        ),
    )

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Values) -> None:
        super().__init__(model, tokenizer, options)
        self.names = self.labels()
        self.output = scores_output(model, len(self.names))
        self.outputs = (self.output.name,)
        self.function = self._function()

    def _function(self) -> str:
        """Return the setting `activation` or, if that is "auto", the function that transformers'
        text-classification pipeline chooses."""
        if self.options["activation"] != "auto":
            return str(self.options["activation"])
        problem = self.tokenizer.config.get("problem_type")
        if problem == "regression":
            return "none"
        if problem == "multi_label_classification":
            return "sigmoid"
        is_single = 1 in (len(self.names), self.output.shape[-1])
        return "sigmoid" if is_single else "softmax"

    def tokens(self, instances: Instances, parameters: Values) -> Tensors:
        return super().tokens([text_or_pair(instance) for instance in instances], parameters)

    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> Predictions:
        """Return the most likely classes of each text, from logits [n, labels]."""
        scores = _activated(self.first_output(outputs), parameters, self.function)
        return [{"classes": self._classes(row, parameters["top_k"])} for row in scores]

    def _classes(self, scores: Array, count: int) -> list[dict[str, Any]]:
        return [
            {"label": label(self.names, index), "class_id": index, "score": score}
            for index, score in best(scores, count)
        ]


def _activated(logits: Array, parameters: Values, own: str) -> Array:
    """Apply the function that the request names or, if that is "auto", the model's own."""
    function = parameters["function_to_apply"]
    if function == "auto":
        function = own
    return ACTIVATIONS[function](logits)


def _template(value: Any) -> str:
    """Return the template unchanged. Raise ValueError if it is not valid."""
    if not isinstance(value, str):
        raise ValueError(value)
    if len(value) > LONGEST_TEMPLATE or value.count(PLACEHOLDER) != 1:
        raise ValueError(value)
    return value


class ZeroShotClassification(Task):
    """Predicts `{"classes": [{"label", "class_id", "score"}, …]}`, best first. `class_id` is the
    index of the label in the request.

    The network is a model of natural language inference. It scores whether the text entails a
    sentence that contains the label (Yin et al. 2019, arXiv:1909.00161).
    """

    codec = Fields("text", optional=("candidate_labels",), lists=("candidate_labels",))
    parameters = (
        Parameter(
            "candidate_labels",
            Names(),
            "the labels to choose from, if an instance does not name any",
        ),
        Parameter(
            "hypothesis_template",
            "This example is {}.",
            "a sentence; {} becomes the label",
            parser=_template,
            form=f"a text of at most {LONGEST_TEMPLATE} characters with exactly one {PLACEHOLDER}",
        ),
        Parameter("multi_label", False, "whether several labels may be true"),
    )
    truncation = "only_first"

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Values) -> None:
        super().__init__(model, tokenizer, options)
        labels = self.labels()
        entailments = [
            index for index, name in enumerate(labels) if name.lower().startswith("entail")
        ]
        if not entailments:
            raise InvalidRequest(
                f"model '{model.name}': none of its labels {labels} begins with 'entail'; "
                "zero-shot-classification takes a model of natural language inference"
            )
        self.outputs = (scores_output(model, len(labels)).name,)
        self.entailment = entailments[0]
        # the opposite end of the labels, as in transformers' pipeline
        self.contradiction = -1 if self.entailment == 0 else 0

    def rows(self, instance: Any) -> int:
        # a text without labels takes those of the parameters, which are not known here
        return 1 if isinstance(instance, str) else len(instance["candidate_labels"])

    def length(self, instance: Any, parameters: Values) -> int:
        labels = max(self.rows(instance), len(parameters["candidate_labels"]))
        return labels * (self.codec.length(instance) + len(parameters["hypothesis_template"]))

    def tokens(self, instances: Instances, parameters: Values) -> Tensors:
        """Return one row of tokens for each label of each instance. `owners` [rows] contains the
        index of the instance to which each row belongs. Raise DecodingError for an instance with no
        labels or too many, PayloadTooLarge for too many characters, and InvalidRequest if a
        hypothesis alone is longer than the model accepts."""
        template = parameters["hypothesis_template"]
        labels = [
            self._candidates(index, instance, parameters)
            for index, instance in enumerate(instances)
        ]
        all_labels = list(chain.from_iterable(labels))
        length = len(all_labels) * len(template) + sum(map(len, all_labels))
        check_count(length, MOST_MADE, "characters of hypotheses", "send fewer or shorter labels")
        groups = []
        for instance, own in zip(instances, labels, strict=True):
            text = instance if isinstance(instance, str) else instance["text"]
            groups.append([(text, template.replace(PLACEHOLDER, name)) for name in own])
        try:
            return self.encode_groups(groups)
        except ServingError:  # TooLate or DecodingError
            raise
        except Exception as err:  # the tokenizer raises no narrower class
            raise InvalidRequest(f"a label is too long: {err}") from err

    def _candidates(self, index: int, instance: Any, parameters: Values) -> Sequence[str]:
        """Return the labels to choose from. Raise DecodingError if there are none or too many."""
        labels: Sequence[str] = parameters["candidate_labels"]
        if not isinstance(instance, str):
            labels = instance["candidate_labels"] or labels
        if not labels:
            raise DecodingError(
                "it has no labels to choose from: name them in 'candidate_labels'", instance=index
            )
        if len(labels) > MOST_LABELS:
            raise DecodingError(
                f"it has {len(labels)} labels, at most {MOST_LABELS} are tried", instance=index
            )
        return labels

    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> Predictions:
        """Return the labels of each instance with their scores, from logits [rows, 3]."""
        logits = self.first_output(outputs)
        predictions = []
        for number, instance in enumerate(instances):
            labels = self._candidates(number, instance, parameters)
            own = logits[inputs["owners"] == number]
            scores = self._scores(own, parameters["multi_label"])
            classes = [
                {"label": labels[index], "class_id": index, "score": score}
                for index, score in best(scores, len(labels))
            ]
            predictions.append({"classes": classes})
        return predictions

    def _scores(self, logits: Array, multi_label: bool) -> Array:
        """Return the score of each label of a text. If several labels may be true, or there is only
        one, compare a label's entailment with its contradiction; otherwise, with the entailment of
        the other labels."""
        if multi_label or len(logits) == 1:
            columns = [self.contradiction, self.entailment]
            return softmax(logits[:, columns])[:, 1]
        return softmax(logits[:, self.entailment])


class TextRanking(Task):
    """Predicts `{"ranking": [{"index", "score"}, …]}`: the documents, sorted by how well they
    answer the query. `index` is the index of the document in the instance. The network is a
    cross-encoder, which reads pairs of texts."""

    codec = Fields("query", "documents", lists=("documents",))
    parameters = (
        Parameter("top_k", 0, "how many documents; 0: all", minimum=0),
        Parameter("return_documents", False, "whether an entry has its document too"),
        Parameter(
            "function_to_apply",
            "auto",
            "turns logits into scores; auto: the model's own",
            choices=("auto", "sigmoid", "none"),
        ),
    )

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Values) -> None:
        super().__init__(model, tokenizer, options)
        output = scores_output(model, 1)
        self.outputs = (output.name,)
        count = output.shape[-1]
        if count not in (1, -1):
            raise InvalidRequest(
                f"model '{model.name}' gives {count} scores for a pair; text-ranking takes one"
            )
        self.function = self._function()

    def _function(self) -> str:
        """Return the setting `activation` (TextClassification declares it) or, if that is "auto",
        the function that sentence-transformers' CrossEncoder chooses: the one that
        config_sentence_transformers.json or config.json names, or else the sigmoid. Raise
        InvalidRequest if that function is not in CROSS_ENCODERS, or if the setting is softmax,
        which would mix the scores of all instances in a batch."""
        activation = str(self.options["activation"])
        if activation == "softmax":
            raise InvalidRequest("parameter 'activation': text-ranking takes auto, sigmoid or none")
        if activation != "auto":
            return activation
        config = self.tokenizer.config
        own = config.get("sentence_transformers")
        functions = (
            self.tokenizer.sentence_transformers.get("activation_fn"),
            own.get("activation_fn") if isinstance(own, dict) else None,
            config.get("sbert_ce_default_activation_function"),
        )
        function = next(filter(None, functions), "Sigmoid")
        name = str(function).rpartition(".")[2]
        if name not in CROSS_ENCODERS:
            raise InvalidRequest(
                f"its files apply {function} to its scores; supported are "
                f"{', '.join(CROSS_ENCODERS)}: set the parameter 'activation'"
            )
        return CROSS_ENCODERS[name]

    def rows(self, instance: Mapping[str, Any]) -> int:
        return len(instance["documents"])

    def length(self, instance: Mapping[str, Any], parameters: Values) -> int:
        # the query is repeated for each document
        repeated = (self.rows(instance) - 1) * len(instance["query"])
        return repeated + self.codec.length(instance)

    def tokens(self, instances: Sequence[Mapping[str, Any]], parameters: Values) -> Tensors:
        """Return one row of tokens for each document of each instance, together with the query.
        `owners` [rows] contains the index of the instance to which each row belongs. Raise
        DecodingError for too many documents or characters."""
        groups = []
        for index, instance in enumerate(instances):
            self._check_size(index, instance)
            groups.append([(instance["query"], document) for document in instance["documents"]])
        return self.encode_groups(groups)

    def _check_size(self, index: int, instance: Mapping[str, Any]) -> None:
        """Raise DecodingError if the instance has too many documents, or too many characters when
        the query is repeated for each document."""
        count = len(instance["documents"])
        if count > MOST_ROWS:
            raise DecodingError(
                f"it has {count} documents, at most {MOST_ROWS} are ranked at a time",
                instance=index,
            )
        most = self.tokenizer.max_characters
        lengths = [min(len(document), most) for document in instance["documents"]]
        length = count * min(len(instance["query"]), most) + sum(lengths)
        if length > MOST_MADE:
            reason = (
                f"its documents, and the query before each, have {length} characters, at most "
                f"{MOST_MADE} are read at a time: send fewer or shorter ones"
            )
            raise DecodingError(reason, instance=index)

    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> Predictions:
        """Return the ranking of each instance's documents from logits [rows, 1]."""
        logits = self.first_output(outputs)[:, 0]
        scores = _activated(logits, parameters, self.function)
        predictions = []
        for index, instance in enumerate(instances):
            own = scores[inputs["owners"] == index]
            count = parameters["top_k"] or len(own)
            entries: list[dict[str, Any]] = [
                {"index": position, "score": score} for position, score in best(own, count)
            ]
            if parameters["return_documents"]:
                for entry in entries:
                    entry["document"] = instance["documents"][entry["index"]]
            predictions.append({"ranking": entries})
        return predictions
