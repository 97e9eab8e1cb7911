"""BERT and its relatives: text -> embedding, filled-in masks, or classes.

The model's folder holds the setting `task` and the tokenizer's files as transformers saves them. The answers equal
those of transformers' own pipelines with the same weights.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer

from clients._schemas import BOOLEAN, CLASSES, INTEGER, NUMBER, STRING, listed, record
from clients.base import Model, ModelClient, Parameter, Tensors, read_labels
from serving.codecs import TEXT
from serving.errors import DecodingError, InvalidRequest

Array = NDArray[Any]
POSITIONS = "masked_lm_positions"  # an input of models that return logits only for the masks
UNLIMITED = 10**6  # transformers writes 1e30 for a tokenizer without a limit
# Characters of a text that are read, for each token that the model takes: WordPiece makes one [UNK] of a longer word
# (max_input_chars_per_word), so only a text of such words, or of nothing but spaces, loses tokens by it.
LONGEST_TOKEN = 100
LONGEST_TEXT = 10**6  # the same for a model whose tokenizer names no limit
PORTION = 2**18  # characters that are tokenized together: they take some 300 bytes each until they are truncated
MOST_MASKS = 32  # in a text: each is a row of scores for the whole vocabulary, 120 kB of FP32
MOST_FILLED = 2_000  # masks · top_k of a text: each is written as a whole sequence
ROBERTA_LIKE = {"roberta", "xlm-roberta", "camembert"}


@dataclass(frozen=True)
class Row:
    """A text's tokens, truncated, and how many there were."""

    ids: list[int]
    attention_mask: list[int]
    type_ids: list[int]
    count: int


class TextTokenizer:
    """The tokenizer of a folder, read once. Worker threads share it, so it never changes afterwards."""

    def __init__(self, folder: Path, max_length: int) -> None:
        """`max_length` 0 means the model's own limit; raises InvalidRequest when the folder holds no tokenizer."""
        self.config = _read_json(folder / "config.json")
        self.settings = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
        self.tokenizer = _load(folder, self.settings)
        self.max_length = min(max_length or UNLIMITED, self._limit())
        self.max_characters = min(self.max_length * LONGEST_TOKEN, LONGEST_TEXT)
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_length)
        self.pad_id = self._special("pad_token", "[PAD]")[1] or 0
        self.mask, self.mask_id = self._special("mask_token", "[MASK]")

    def _limit(self) -> int:
        """The smaller limit of tokenizer and position table; RoBERTa's positions start after its pad id."""
        positions = int(self.config.get("max_position_embeddings", UNLIMITED))
        if self.config.get("model_type") in ROBERTA_LIKE:
            positions -= int(self.config.get("pad_token_id", 1)) + 1
        stated = int(self.settings.get("model_max_length", UNLIMITED))
        return min(positions, stated, UNLIMITED)

    def _special(self, key: str, default: str) -> tuple[str, int | None]:
        token = self.settings.get(key) or default
        text = token["content"] if isinstance(token, dict) else token
        return text, self.tokenizer.token_to_id(text)

    def encode(self, texts: Sequence[str], multiple: int) -> Tensors:
        """n texts -> INT64 [n, longest text rounded up to `multiple`], padded on the right.

        `num_tokens` [n] counts the tokens before truncation, including [CLS] and [SEP]; of a text that was cut to
        LONGEST_TOKEN characters per token before, those that were read, and more than max_length.
        """
        rows = [row for part in self._portions(texts) for row in self._rows(part)]
        longest = max(len(row.ids) for row in rows)
        width = min(-(-longest // multiple) * multiple, self.max_length)
        return {
            "input_ids": _pad([row.ids for row in rows], width, self.pad_id),
            "attention_mask": _pad([row.attention_mask for row in rows], width, 0),
            "token_type_ids": _pad([row.type_ids for row in rows], width, 0),
            "num_tokens": np.array([row.count for row in rows], np.int64),
        }

    def _portions(self, texts: Sequence[str]) -> Iterator[list[str]]:
        """The texts, so many together as have about PORTION characters that are read."""
        portion: list[str] = []
        characters = 0
        for text in texts:
            portion.append(text[: self.max_characters + 1])
            characters += len(portion[-1])
            if characters >= PORTION:
                yield portion
                portion, characters = [], 0
        if portion:
            yield portion

    def _rows(self, texts: Sequence[str]) -> list[Row]:
        encodings = self.tokenizer.encode_batch([text[: self.max_characters] for text in texts])
        return [
            Row(e.ids, e.attention_mask, e.type_ids, self._count(e, len(text) > self.max_characters))
            for e, text in zip(encodings, texts, strict=True)
        ]

    def _count(self, encoding: Encoding, is_cut: bool) -> int:
        special = self.tokenizer.num_special_tokens_to_add(False)
        count = len(encoding) + sum(len(rest) - special for rest in encoding.overflowing)
        return max(count, self.max_length + 1) if is_cut else count

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _load(folder: Path, settings: Mapping[str, Any]) -> Tokenizer:
    """tokenizer.json, or BERT's vocab.txt with the settings beside it."""
    if (folder / "tokenizer.json").exists():
        return _load_json(folder / "tokenizer.json")
    if not (folder / "vocab.txt").exists():
        raise InvalidRequest(
            f"there is neither tokenizer.json nor vocab.txt in {folder}; "
            "transformers' AutoTokenizer.from_pretrained(…).save_pretrained(folder) writes tokenizer.json"
        )
    pieces = BertWordPieceTokenizer(
        str(folder / "vocab.txt"),
        handle_chinese_chars=settings.get("tokenize_chinese_chars", True),
        strip_accents=settings.get("strip_accents"),
        lowercase=settings.get("do_lower_case", True),
    )
    tokenizer: Tokenizer = Tokenizer.from_str(pieces.to_str())
    return tokenizer


def _load_json(path: Path) -> Tokenizer:
    try:
        return Tokenizer.from_file(str(path))
    except Exception as err:  # the library raises no narrower class
        raise InvalidRequest(f"{path} cannot be read: {err}") from err


def _pad(rows: Sequence[Sequence[int]], width: int, value: int) -> Array:
    padded = np.full((len(rows), width), value, np.int64)
    for target, row in zip(padded, rows, strict=True):
        target[: len(row)] = row
    return padded


class Client(ModelClient):
    """Embeddings, fill-mask and text classification."""

    codec = TEXT
    example = b"Paris is the [MASK] of France."
    settings = (
        Parameter(
            "task", "embedding", "what the model's output is", choices=("embedding", "fill-mask", "text-classification")
        ),
        Parameter("tokenizer", "tokenizer", "folder of the tokenizer's files, inside the model's folder"),
        Parameter("max_length", 0, "longest text in tokens; 0: the model's own limit", minimum=0),
        Parameter("pad_to_multiple_of", 1, "pads each batch to a multiple of so many tokens", minimum=1),
        Parameter("pooling", "mean", "embedding: the tokens that it is made from", choices=("mean", "cls")),
        Parameter("normalize", True, "embedding: whether to scale it to length 1"),
        Parameter("labels", "", "text-classification: file of labels; default: id2label in config.json"),
        Parameter(
            "activation",
            "auto",
            "text-classification: turns logits into scores; auto: as problem_type in config.json says",
            choices=("auto", "softmax", "sigmoid", "none"),
        ),
    )
    parameters = (
        Parameter(
            "top_k", 5, "how many tokens per mask, or classes; no effect on an embedding", minimum=1, maximum=1000
        ),
    )

    def __init__(self, model: Model) -> None:
        super().__init__(model)
        self.tokenizer = TextTokenizer(model.path / self.options["tokenizer"], self.options["max_length"])
        self.task = self.options["task"]
        if self.task == "fill-mask" and self.tokenizer.mask_id is None:
            raise InvalidRequest(f"model '{model.name}': its tokenizer has no '{self.tokenizer.mask}' to fill")
        self.labels = self._read_labels()
        self.activation = _ACTIVATIONS[self._activation()]
        self.compact = POSITIONS in {tensor.name for tensor in model.inputs}

    def _read_labels(self) -> list[str]:
        if self.options["labels"]:
            return read_labels(self.model, self.options["labels"])
        named = self.tokenizer.config.get("id2label", {})
        return [named[key] for key in sorted(named, key=int)]

    def _activation(self) -> str:
        """The rule of transformers' text-classification pipeline."""
        if self.options["activation"] != "auto":
            return str(self.options["activation"])
        problem = self.tokenizer.config.get("problem_type")
        if problem == "regression":
            return "none"
        single = 1 in (len(self.labels), self.model.outputs[0].shape[-1])
        return "sigmoid" if single or problem == "multi_label_classification" else "softmax"

    def preprocess(self, instances: Sequence[str]) -> Tensors:
        """input_ids, attention_mask, token_type_ids INT64 [n, longest]; masked_lm_positions [n, most masks].

        Also `num_tokens` [n], which tells postprocess whether a text was truncated. Raises DecodingError for a text
        without a mask when the task is fill-mask.
        """
        tensors = self.tokenizer.encode(instances, self.options["pad_to_multiple_of"])
        if self.task == "fill-mask":
            tensors[POSITIONS] = self._positions(tensors["input_ids"], instances)
        return tensors

    def _positions(self, ids: Array, instances: Sequence[str]) -> Array:
        found = [np.flatnonzero(row == self.tokenizer.mask_id).tolist() for row in ids]
        for index, (positions, text) in enumerate(zip(found, instances, strict=True)):
            if not positions:
                raise DecodingError(self._missing_mask(text), instance=index)
            if len(positions) > MOST_MASKS:
                reason = f"it has {len(positions)} {self.tokenizer.mask}, at most {MOST_MASKS} are filled in at a time"
                raise DecodingError(reason, instance=index)
        return _pad(found, max(map(len, found)), 0)

    def _missing_mask(self, text: str) -> str:
        mask = self.tokenizer.mask
        if mask in text:
            return f"its {mask} lies beyond the model's limit of {self.tokenizer.max_length} tokens"
        return f"there is nothing to fill in; write {mask} in place of a token"

    def prediction_schema(self) -> dict[str, Any]:
        word = record(token=STRING, token_id=INTEGER, score=NUMBER, sequence=STRING)
        results = {
            "embedding": {"embedding": listed(NUMBER)},
            "fill-mask": {"masks": listed(listed(word))},
            "text-classification": {"classes": CLASSES},
        }
        return record(**results[self.options["task"]], tokens=INTEGER, truncated=BOOLEAN)

    def postprocess(
        self, outputs: Tensors, inputs: Tensors, instances: Sequence[str], parameters: Mapping[str, Any]
    ) -> list[Any]:
        """By task, `embedding` [floats], `masks` [masks][top_k] or `classes` [top_k]; also `tokens` and `truncated`."""
        values = outputs[self.model.outputs[0].name].astype(np.float32, copy=False)
        predictions = _TASKS[self.task](self, values, inputs, parameters["top_k"])
        counts = inputs["num_tokens"].tolist()
        return [
            prediction | {"tokens": count, "truncated": count > self.tokenizer.max_length}
            for prediction, count in zip(predictions, counts, strict=True)
        ]

    def embed(self, values: Array, inputs: Tensors, top_k: int) -> list[dict[str, Any]]:
        """[n, sequence, hidden] -> vectors; a model that pools itself gives [n, hidden]."""
        if values.ndim == 3:
            values = self._pool(values, inputs["attention_mask"])
        if self.options["normalize"]:
            values = values / np.maximum(np.linalg.norm(values, axis=1, keepdims=True), 1e-12)
        return [{"embedding": vector} for vector in values.tolist()]

    def _pool(self, values: Array, attention_mask: Array) -> Array:
        if self.options["pooling"] == "cls":
            return values[:, 0]
        mask = attention_mask.astype(np.float32)
        return np.asarray(np.einsum("nsh,ns->nh", values, mask) / mask.sum(axis=1, keepdims=True))

    def fill(self, values: Array, inputs: Tensors, top_k: int) -> list[dict[str, Any]]:
        """Logits [n, sequence, vocabulary] or [n, masks, vocabulary] -> the likeliest tokens for each mask."""
        predictions = []
        for ids, logits in zip(inputs["input_ids"], values, strict=True):
            positions = np.flatnonzero(ids == self.tokenizer.mask_id)
            if len(positions) * min(top_k, logits.shape[-1]) > MOST_FILLED:
                raise InvalidRequest(
                    f"parameter 'top_k': {top_k} tokens for each of {len(positions)} masks are too many; at most "
                    f"{MOST_FILLED} are given for a text"
                )
            scores = softmax(logits[: len(positions)] if self.compact else logits[positions])
            masks = [self._fill_one(ids, p, s, top_k) for p, s in zip(positions, scores, strict=True)]
            predictions.append({"masks": masks})
        return predictions

    def _fill_one(self, ids: Array, position: int, scores: Array, top_k: int) -> list[dict[str, Any]]:
        single = int((ids == self.tokenizer.mask_id).sum()) == 1
        return [
            {
                "token": self.tokenizer.decode([token], skip_special_tokens=False),
                "token_id": token,
                "score": score,
                "sequence": self._sequence(ids, position, token, single),
            }
            for token, score in _best(scores, top_k)
        ]

    def _sequence(self, ids: Array, position: int, token: int, single: bool) -> str:
        """The text with that token. If it has other masks, they stay, and so do [CLS] and [SEP], as in transformers."""
        filled = ids.copy()
        filled[position] = token
        kept = filled[filled != self.tokenizer.pad_id].tolist()
        return self.tokenizer.decode(kept, skip_special_tokens=single)

    def classify(self, values: Array, inputs: Tensors, top_k: int) -> list[dict[str, Any]]:
        """Logits [n, labels] -> the likeliest classes."""
        return [{"classes": self._classes(scores, top_k)} for scores in self.activation(values)]

    def _classes(self, scores: Array, top_k: int) -> list[dict[str, Any]]:
        return [
            {"label": self._label(index), "class_id": index, "score": score} for index, score in _best(scores, top_k)
        ]

    def _label(self, index: int) -> str:
        return self.labels[index] if index < len(self.labels) else f"LABEL_{index}"


def softmax(logits: Array) -> Array:
    """Softmax over the last axis."""
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def sigmoid(logits: Array) -> Array:
    return np.asarray(0.5 * (1.0 + np.tanh(0.5 * logits)))


def _best(scores: Array, count: int) -> list[tuple[int, float]]:
    """(index, score) of the `count` highest scores of a vector, highest first."""
    if count < len(scores):
        candidates = np.argpartition(scores, -count)[-count:]
    else:
        candidates = np.arange(len(scores))
    order = candidates[np.argsort(-scores[candidates], kind="stable")]
    return [(int(index), float(scores[index])) for index in order]


_ACTIVATIONS: dict[str, Callable[[Array], Array]] = {"softmax": softmax, "sigmoid": sigmoid, "none": np.asarray}
_TASKS = {"embedding": Client.embed, "fill-mask": Client.fill, "text-classification": Client.classify}
