"""Classes of a text or of a pair of texts."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from clients._schemas import CLASSES, Schema
from clients._text.fields import Fields, as_text
from clients._text.scores import ACTIVATIONS, best
from clients._text.task import Task, label
from clients._text.tokenizer import TextTokenizer
from clients.base import Model, Parameter, Tensors

FUNCTIONS = ("auto", "softmax", "sigmoid", "none")


class TextClassification(Task):
    """`{"classes": [{"label", "class_id", "score"}, …]}`, best first."""

    fields: ClassVar[Mapping[str, Schema]] = {"classes": CLASSES}
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
        self.function = self._function()

    def _function(self) -> str:
        """Choose the function as transformers' text-classification pipeline does."""
        if self.options["activation"] != "auto":
            return str(self.options["activation"])
        problem = self.tokenizer.config.get("problem_type")
        if problem == "regression":
            return "none"
        single = 1 in (len(self.names), self.model.outputs[0].shape[-1])
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
