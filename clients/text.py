"""Serves texts with BERT and similar networks: embeddings, and the tasks of the transformers
library's pipelines.

The setting `task` selects the task. The model's folder contains the tokenizer's files as
transformers saves them. With the same weights, the predictions equal those of transformers' own
pipelines or, for embeddings and rankings, of sentence-transformers. clients/_text has the tasks.
"""

from typing import Any

import numpy as np

from clients._text.answers import QuestionAnswering
from clients._text.classification import TextClassification, TextRanking, ZeroShotClassification
from clients._text.embedding import Embedding
from clients._text.entities import TokenClassification
from clients._text.fill_mask import FillMask
from clients._text.task import Task
from clients._text.tokenizer import TextTokenizer
from clients.base import Instances, Model, ModelClient, Parameter, Tensors, Values
from serving.codecs import TEXT, Codec
from serving.errors import DecodingError
from serving.repository.model_config import FILLED

TASKS: dict[str, type[Task]] = {
    "embedding": Embedding,
    "fill-mask": FillMask,
    "text-classification": TextClassification,
    "token-classification": TokenClassification,
    "question-answering": QuestionAnswering,
    "zero-shot-classification": ZeroShotClassification,
    "text-ranking": TextRanking,
}
TRUNCATE = Parameter("truncate", True, "whether to cut a text that is too long, or to refuse it")
TASK = Parameter("task", "embedding", "what the model's output is", choices=tuple(TASKS))


class Client(ModelClient):
    """Performs one text task. The task determines the form of an instance and the parameters that a
    caller may set."""

    codec: Codec = TEXT
    example = b"Paris is the [MASK] of France."
    settings = (
        TASK,
        Parameter(
            "tokenizer", "tokenizer", "folder of the tokenizer's files, inside the model's folder"
        ),
        Parameter("max_length", 0, "longest text in tokens; 0: the model's own limit", minimum=0),
        Parameter(
            "pad_to_multiple_of",
            1,
            "pads each batch to a multiple of this number of tokens",
            minimum=1,
        ),
        Parameter("labels", "", "file of labels; default: id2label in config.json"),
        *(setting for task in TASKS.values() for setting in task.settings),
    )
    # The parameters of all tasks, because the docs list them. Of those with the same name, the last
    # one counts. __init__ keeps only the parameters of the model's task.
    parameters = (
        TRUNCATE,
        *{value.name: value for task in TASKS.values() for value in task.parameters}.values(),
    )

    def __init__(self, model: Model) -> None:
        self.task = TASK.parse(model.parameters.get("task", TASK.default))
        task_class = TASKS[self.task]
        self.codec = task_class.codec
        self.parameters = (TRUNCATE, *task_class.parameters)
        super().__init__(model)
        # the inputs that the backend fills in, because it merges and pads texts itself
        self.filled_inputs = [
            spec.name for spec in model.inputs if spec.optional and spec.name in FILLED
        ]
        multiple = 1 if self.filled_inputs else self.options["pad_to_multiple_of"]
        folder = model.file(self.options["tokenizer"])
        self.tokenizer = TextTokenizer(
            folder, self.options["max_length"], task_class.truncation, multiple
        )
        self.text_task = task_class(model, self.tokenizer, self.options)
        self.outputs = self.text_task.outputs
        self.int32_inputs = {spec.name for spec in model.inputs if spec.datatype == "INT32"}

    def rows(self, instance: Any) -> int:
        return self.text_task.rows(instance)

    def length(self, opened: Instances, parameters: Values) -> int:
        return sum(self.text_task.length(text, parameters) for text in opened)

    def prepare(self, instances: Instances, parameters: Values) -> Tensors:
        """Return input_ids, attention_mask and token_type_ids [rows, longest], in the datatype of
        the model's inputs (INT64 or INT32), `truncated` [n instances], and whatever else the task
        needs. Omit optional inputs that have only their default values. Raise DecodingError for a
        text that is too long if `truncate` is false."""
        tensors = self.text_task.tokens(instances, parameters)
        most = self.tokenizer.max_length
        truncated = tensors.setdefault("truncated", tensors["num_tokens"] > most)
        if not parameters["truncate"] and truncated.any():
            index = int(truncated.argmax())
            count = tensors["num_tokens"][index]
            raise DecodingError(
                f"it has {count} tokens, and the model takes at most {most}: shorten it, or leave "
                "out 'truncate'",
                instance=index,
            )
        for name in self.filled_inputs:
            if (tensors[name] == FILLED[name]).all():
                del tensors[name]
        for name in self.int32_inputs & tensors.keys():
            tensors[name] = tensors[name].astype(np.int32)
        return tensors

    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> list[Any]:
        """Return the task's predictions, each with its number of `tokens` and whether the text was
        `truncated`."""
        predictions = self.text_task.predict(outputs, inputs, instances, parameters)
        return [
            prediction | {"tokens": count, "truncated": cut}
            for prediction, count, cut in zip(
                predictions,
                inputs["num_tokens"].tolist(),
                inputs["truncated"].tolist(),
                strict=True,
            )
        ]
