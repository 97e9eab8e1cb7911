"""Finds the answer to a question in a context, as transformers' question-answering pipeline (4.57)
does."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from tokenizers import Encoding

from clients._text.task import Fields, Predictions, Task
from clients._text.tokenizer import UNLIMITED, TextTokenizer
from clients.base import (
    Array,
    Instances,
    Model,
    Parameter,
    Tensors,
    Values,
    best,
    check_time,
    softmax,
)

# number of tokens that neighboring windows share; short windows share half of theirs
DEFAULT_STRIDE = 128
# transformers' names for the outputs with the logits of starts and ends
TWO_OUTPUTS = ("start_logits", "end_logits")
IMPOSSIBLE = -10000.0  # the logit that is set for a token that cannot be part of an answer


class QuestionAnswering(Task):
    """Predicts `{"answers": [{"answer", "score", "start", "end"}, …]}`, best first. `start` and
    `end` are indices of characters in the context. An empty answer means that the context does not
    contain an answer."""

    codec = Fields("question", "context")
    parameters = (
        Parameter("top_k", 1, "how many answers", minimum=1, maximum=100),
        Parameter("max_answer_len", 15, "longest answer in tokens", minimum=1, maximum=512),
        Parameter(
            "max_seq_len",
            384,
            "tokens of a window: the question and a part of the context",
            minimum=8,
        ),
        Parameter(
            "doc_stride",
            0,
            "tokens that neighboring windows share; 0: 128, or half of a shorter window",
            minimum=0,
            maximum=UNLIMITED,
        ),
        Parameter("handle_impossible_answer", False, "whether the context may have no answer"),
        Parameter("align_to_words", True, "whether an answer consists of whole words"),
    )

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Values) -> None:
        super().__init__(model, tokenizer, options)
        self.cls_id = tokenizer.special("cls_token", "[CLS]")[1]
        if {spec.name for spec in model.outputs} >= set(TWO_OUTPUTS):
            self.outputs = TWO_OUTPUTS

    def rows(self, instance: Mapping[str, str]) -> int:
        # a token has about four characters, but windows overlap, and each repeats the question
        return 1 + len(instance["context"]) // self.tokenizer.max_length

    def tokens(self, instances: Sequence[Mapping[str, str]], parameters: Values) -> Tensors:
        length = min(parameters["max_seq_len"], self.tokenizer.max_length)
        stride = parameters["doc_stride"] or min(DEFAULT_STRIDE, length // 2)
        pairs = [(instance["question"], instance["context"]) for instance in instances]
        return self.tokenizer.windows(pairs, length, stride)

    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> Predictions:
        """Return the best answers to each question, from the logits of starts and ends in all
        windows of its context."""
        starts, ends = self._logits(outputs)
        owners = inputs["owners"].tolist()
        rows = list(zip(owners, inputs["encodings"], starts, ends, strict=True))
        predictions = []
        for index, instance in enumerate(instances):
            windows = [
                (encoding, start, end) for owner, encoding, start, end in rows if owner == index
            ]
            predictions.append({"answers": self._answers(instance["context"], windows, parameters)})
        return predictions

    def _logits(self, outputs: Tensors) -> tuple[Array, Array]:
        """Return the logits of starts and the logits of ends, each [rows, sequence]. The model
        returns them in two outputs, or in one of the shape [rows, sequence, 2]."""
        if self.outputs == TWO_OUTPUTS:
            starts, ends = (outputs[name].astype(np.float32, copy=False) for name in TWO_OUTPUTS)
            return starts, ends
        logits = self.first_output(outputs)
        return logits[..., 0], logits[..., 1]

    def _answers(self, context: str, windows: Sequence[Any], parameters: Values) -> Predictions:
        """Return the best answers in a context. A window is (encoding, logits of starts, logits of
        ends). The scores of answers with the same text are added up."""
        answers: dict[str, dict[str, Any]] = {}  # by text in lower case
        no_answer = 1.0  # the probability that there is no answer: the lowest of all windows
        top_k = parameters["top_k"]
        are_words = parameters["align_to_words"]
        # several spans of tokens may cover the same words; the number is that of transformers
        count = top_k * 2 + 10 if are_words else top_k
        for encoding, start, end in windows:
            check_time()
            offsets = encoding.offsets  # each access builds a new list
            starts, ends = self._probabilities(encoding, start, end)
            # the first token, [CLS], stands for no answer
            no_answer = min(no_answer, float(starts[0] * ends[0]))
            starts[0] = ends[0] = 0.0
            for first, last, score in _spans(starts, ends, count, parameters):
                begin = offsets[first][0]
                stop = offsets[last][1]
                if are_words:
                    begin, stop = _whole_words(encoding, first, last) or (begin, stop)
                text = context[begin:stop]
                answer = answers.setdefault(
                    text.lower(), {"answer": text, "score": 0.0, "start": begin, "end": stop}
                )
                answer["score"] += score
        candidates = list(answers.values())
        if parameters["handle_impossible_answer"]:
            candidates.append({"answer": "", "score": no_answer, "start": 0, "end": 0})
        return sorted(candidates, key=lambda answer: -float(answer["score"]))[:top_k]

    def _probabilities(self, encoding: Encoding, start: Array, end: Array) -> tuple[Array, Array]:
        """Return two probabilities for each token: that an answer starts with it, and that an
        answer ends with it. Tokens outside the context get 0, except the [CLS] that the tokenizer
        adds (a question may contain the text [CLS])."""
        # 0 for tokens of the question, 1 for those of the context, None for special tokens
        source = np.array(encoding.sequence_ids)
        is_cls = np.array(encoding.ids) == self.cls_id
        possible = (source == 1) | (is_cls & (source != 0))
        size = len(possible)  # the outputs are longer if the text was padded
        logits = np.stack((start[:size], end[:size]))
        starts, ends = softmax(np.where(possible, logits, IMPOSSIBLE)) * possible
        return starts, ends


def _spans(
    starts: Array, ends: Array, count: int, parameters: Values
) -> list[tuple[int, int, float]]:
    """Return at most `count` spans, best first, as tuples (first token, last token, score)."""
    length = min(parameters["max_answer_len"], len(starts))
    padded = np.concatenate((ends, np.zeros(length, ends.dtype)))
    ends_near = np.lib.stride_tricks.sliding_window_view(padded, length)
    # scores[i, j] is the score of the span from token i to token i + j
    scores = starts[:, None] * ends_near[: len(starts)]
    spans = []
    for index, score in best(scores.ravel(), count):
        first, more = divmod(index, length)
        if score > 0:
            spans.append((first, first + more, score))
    return spans


def _whole_words(encoding: Encoding, first: int, last: int) -> tuple[int, int] | None:
    """Extend an answer to whole words. Return its start and end in the context, or None if the
    first or last token is not part of a word."""
    words: list[Any] = [encoding.token_to_word(token) for token in (first, last)]
    if None in words:
        return None
    # 1 is the context, the second text of the pair
    spans: list[Any] = [encoding.word_to_chars(word, 1) for word in words]
    (start, _), (_, end) = spans
    return start, end
