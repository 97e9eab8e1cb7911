"""Finds the entities in a text, as transformers' token-classification pipeline does."""

import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from tokenizers import Encoding

from clients._text.task import Predictions, Task, label
from clients._text.tokenizer import UNLIMITED, TextTokenizer
from clients.base import Array, Model, Names, Parameter, Tensors, Values, check_time, softmax

STRATEGIES = ("none", "simple", "first", "average", "max")


@dataclass(frozen=True)
class Token:
    """A token, or a word of several tokens. `tag` is the label with the highest score. `continues`
    is true if the token belongs to the word of the token before it."""

    text: str
    scores: Array
    tag: str
    score: float
    start: int
    end: int
    continues: bool = False


Entity = dict[str, Any]


class TokenClassification(Task):
    """Predicts `{"entities": [{"label", "score", "word", "start", "end"}, …]}`, in the order of the
    text. `start` and `end` are indices of characters."""

    parameters = (
        Parameter("aggregation_strategy", "none", "how tokens become entities", choices=STRATEGIES),
        Parameter("ignore_labels", Names(["O"]), "labels that are not entities"),
        Parameter(
            "stride",
            0,
            "tokens that the windows of a long text share; 0: the text is cut off",
            minimum=0,
            maximum=UNLIMITED,
        ),
    )

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Values) -> None:
        super().__init__(model, tokenizer, options)
        self.names = self.labels()
        self.unknown_id = tokenizer.special("unk_token", "[UNK]")[1]
        # whether a token's spelling shows that it continues a word, such as ##ing
        self.knows_words = bool(
            getattr(tokenizer.tokenizer.model, "continuing_subword_prefix", None)
        )

    def rows(self, instance: str) -> int:
        # a token has about four characters
        return 1 + len(instance) // (4 * self.tokenizer.max_length)

    def tokens(self, instances: Sequence[str], parameters: Values) -> Tensors:
        """Return the inputs, and `encodings` and `owners` of their rows (TextTokenizer.windows)."""
        length = self.tokenizer.max_length
        stride = parameters["stride"]
        return self.tokenizer.windows(instances, length, stride, all_windows=stride > 0)

    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[str], parameters: Values
    ) -> Predictions:
        """Return the entities of each text, from logits [rows, sequence, labels]."""
        scores = softmax(self.first_output(outputs))
        strategy = parameters["aggregation_strategy"]
        ignored = frozenset(parameters["ignore_labels"])
        windows: list[list[list[Entity]]] = [[] for _ in instances]
        for owner, encoding, row in zip(
            inputs["owners"].tolist(), inputs["encodings"], scores, strict=True
        ):
            check_time()
            text = instances[owner]
            first = 0 if parameters["stride"] else self.tokenizer.first_character(text)
            entities = self._entities(text, first, encoding, row, strategy)
            kept = [entity for entity in entities if entity["label"] not in ignored]
            windows[owner].append(kept)
        return [{"entities": _merged(own)} for own in windows]

    def _entities(
        self, text: str, first: int, encoding: Encoding, scores: Array, strategy: str
    ) -> list[Entity]:
        """Return the entities in one window of the text. Characters before `first` were not
        read."""
        tokens = list(self._tokens(text, first, encoding, scores))
        if strategy == "none":
            return [
                _entity(token.tag, token.score, token.text, token.start, token.end)
                for token in tokens
            ]
        if strategy != "simple":
            words = _grouped(tokens, lambda _, token: token.continues)
            tokens = [self._joined_word(word, strategy) for word in words]
        return [self._joined_entity(group) for group in _grouped(tokens, _are_same_kind)]

    def _tokens(self, text: str, first: int, encoding: Encoding, scores: Array) -> Iterable[Token]:
        """Yield the tokens of one window of the text, without the tokenizer's special tokens. Which
        tokens continue a word is decided as in transformers."""
        pieces = zip(
            encoding.tokens,
            encoding.ids,
            encoding.offsets,
            encoding.special_tokens_mask,
            strict=True,
        )
        # `scores` also has rows for the padding
        for (piece, token_id, offsets, is_special), row in zip(pieces, scores, strict=False):
            if is_special:
                continue
            start, end = offsets[0] + first, offsets[1] + first
            if token_id == self.unknown_id:
                yield self._token(text[start:end], row, start, end, continues=False)
                continue
            if self.knows_words:
                continues = len(piece) != end - start
            else:
                around = text[start - 1 : start + 1]
                continues = start > 0 and " " not in around
            yield self._token(piece, row, start, end, continues)

    def _token(
        self, text: str, scores: Array, start: int, end: int, continues: bool = False
    ) -> Token:
        label_id = int(scores.argmax())
        return Token(
            text,
            scores,
            label(self.names, label_id),
            float(scores[label_id]),
            start,
            end,
            continues,
        )

    def _joined_word(self, tokens: Sequence[Token], strategy: str) -> Token:
        """Join the tokens of a word. The word's scores are those of one of the tokens, or the mean
        of all, depending on the strategy."""
        if strategy == "first":
            scores = tokens[0].scores
        elif strategy == "max":
            scores = max(tokens, key=lambda token: token.score).scores
        else:
            scores = np.mean([token.scores for token in tokens], axis=0)
        text = self.tokenizer.joined([token.text for token in tokens])
        return self._token(text, scores, tokens[0].start, tokens[-1].end)

    def _joined_entity(self, tokens: Sequence[Token]) -> Entity:
        """Join the tokens of an entity. Its score is the mean of theirs."""
        text = self.tokenizer.joined([token.text for token in tokens])
        score = float(np.mean([token.score for token in tokens]))
        label_without_prefix = tokens[0].tag.split("-", 1)[-1]
        return _entity(label_without_prefix, score, text, tokens[0].start, tokens[-1].end)


def _entity(tag: str, score: float, word: str, start: int, end: int) -> Entity:
    return {"label": tag, "score": score, "word": word, "start": start, "end": end}


def _grouped(tokens: Iterable[Token], joins: Callable[[Token, Token], bool]) -> list[list[Token]]:
    """Group neighboring tokens. A token joins the group of the token before it if `joins` returns
    true for the two."""
    groups: list[list[Token]] = []
    for token in tokens:
        if groups and joins(groups[-1][-1], token):
            groups[-1].append(token)
        else:
            groups.append([token])
    return groups


def _are_same_kind(before: Token, token: Token) -> bool:
    """Return whether `token` belongs to the entity of the token `before`: their tags are of the
    same kind, and the tag of `token` does not have the prefix B-, which starts a new entity."""
    return not token.tag.startswith("B-") and _kind(token.tag) == _kind(before.tag)


def _kind(tag: str) -> str:
    return tag[2:] if tag.startswith(("B-", "I-")) else tag


def _merged(windows: Sequence[list[Entity]]) -> list[Entity]:
    """Join the entities of all windows. If two entities overlap, keep the longer one or, if they
    are equally long, the one with the higher score."""
    if len(windows) < 2:
        return windows[0]
    merged: list[Entity] = []
    for entity in sorted(itertools.chain(*windows), key=lambda entity: int(entity["start"])):
        if not merged or entity["start"] >= merged[-1]["end"]:
            merged.append(entity)
        else:
            merged[-1] = max(merged[-1], entity, key=_length_and_score)
    return merged


def _length_and_score(entity: Entity) -> tuple[int, float]:
    return entity["end"] - entity["start"], entity["score"]
