"""Reads a tokenizer's folder once, and turns texts and pairs of texts into rows of tokens of one length.

The folder holds the tokenizer's files and config.json as transformers saves them.
"""

import json
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, Tokenizer
from tokenizers.implementations import BertWordPieceTokenizer

from clients.base import Tensors
from serving.errors import InvalidRequest

Array = NDArray[Any]
Text = str | tuple[str, str]  # a pair is one row: both texts, with special tokens between them

UNLIMITED = 10**6  # transformers writes 1e30 for a tokenizer without a limit
# A text is cut to so many characters for each token that the model takes. WordPiece turns a longer word into one [UNK]
# (max_input_chars_per_word), so only a text of such words, or of spaces, loses tokens.
LONGEST_TOKEN = 100
LONGEST_TEXT = 10**6  # for a model whose tokenizer names no limit
PORTION = 2**18  # characters that are tokenized together: each takes some 300 bytes until truncation
POSITIONS_FROM_PADDING = {"roberta", "xlm-roberta", "camembert", "mpnet", "roberta-prelayernorm", "data2vec-text"}
# Tokenizers of transformers 5 that give token types to the network, and model types whose own tokenizer is one of them.
WITH_TYPES = {f"{name}Tokenizer" for name in ("Bert", "ConvBert", "Deberta", "DebertaV2", "Electra", "FNet")}
WITH_TYPES |= {f"{name}Tokenizer" for name in ("LayoutLM", "Lxmert", "MobileBert", "SqueezeBert")}
MODELS_WITH_TYPES = {
    "",
    "bert",
    "convbert",
    "deberta",
    "deberta-v2",
    "distilbert",
    "electra",
    "ernie",
    "fnet",
    "layoutlm",
}
MODELS_WITH_TYPES |= {"layoutlm", "lxmert", "megatron-bert", "mobilebert", "nomic_bert", "squeezebert"}
WORD_PIECES = {"", "bert", "distilbert", "electra", "mobilebert"}  # whose tokenizer is just a vocab.txt


@dataclass(frozen=True)
class Row:
    """The tokens of a text or pair, truncated, and their number before that."""

    ids: list[int]
    attention_mask: list[int]
    type_ids: list[int]
    count: int


class TextTokenizer:
    """The tokenizer of a folder. Worker threads share it. `windows` changes its truncation, so a client uses either
    `windows` or `encode`."""

    def __init__(self, folder: Path, max_length: int, strategy: str = "longest_first") -> None:
        """Read the folder. `max_length` 0 means the model's own limit; `strategy` is the library's name for which text
        of a pair is truncated. Raise InvalidRequest if the folder has no tokenizer."""
        self.config = _read_json(folder / "config.json")
        self.settings = _read_json(folder / "special_tokens_map.json") | _read_json(folder / "tokenizer_config.json")
        self.tokenizer = _load(folder, self.settings, str(self.config.get("model_type", "")))
        self.max_length = min(max_length or UNLIMITED, self._limit())
        self.max_characters = min(self.max_length * LONGEST_TOKEN, LONGEST_TEXT)
        self.direction = str(self.settings.get("truncation_side", "right"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(self.max_length, strategy=strategy, direction=self.direction)
        self.pad_id = self.special("pad_token", "[PAD]")[1] or 0
        self.mask, self.mask_id = self.special("mask_token", "[MASK]")
        self.has_types = _gives_types(self.settings, self.config)
        self._windows = threading.Lock()

    def _limit(self) -> int:
        """Return the smaller limit of the tokenizer and the position table. Some tables begin after the pad id."""
        positions = int(self.config.get("max_position_embeddings", UNLIMITED))
        if self.config.get("model_type") in POSITIONS_FROM_PADDING:
            positions -= int(self.config.get("pad_token_id", 1)) + 1
        stated = int(self.settings.get("model_max_length", UNLIMITED))
        return min(positions, stated, UNLIMITED)

    def special(self, key: str, default: str) -> tuple[str, int | None]:
        """Return a special token and its id, None if the vocabulary does not have it."""
        token = self.settings.get(key) or default
        text = token["content"] if isinstance(token, dict) else token
        return text, self.tokenizer.token_to_id(text)

    def encode(self, texts: Sequence[Text], multiple: int) -> Tensors:
        """Return INT64 [n, longest rounded up to `multiple`] of n texts or pairs, padded on the right.

        `num_tokens` [n] counts the tokens before truncation, with special tokens. For a text that was cut to
        LONGEST_TOKEN characters per token it counts the tokens that were read, and is more than max_length.
        """
        rows = [row for part in self._portions(texts) for row in self._rows(part)]
        return self.padded(rows, multiple) | {"num_tokens": np.array([row.count for row in rows], np.int64)}

    def padded(self, rows: Sequence[Any], multiple: int, limit: int = 0) -> Tensors:
        """Return the inputs of rows or encodings, at most `limit` tokens long (0: the model's own limit)."""
        longest = max(len(row.ids) for row in rows)
        width = min(-(-longest // multiple) * multiple, limit or self.max_length)
        return {
            "input_ids": padded([row.ids for row in rows], width, self.pad_id),
            "attention_mask": padded([row.attention_mask for row in rows], width, 0),
            "token_type_ids": padded([row.type_ids if self.has_types else () for row in rows], width, 0),
        }

    def _portions(self, texts: Sequence[Text]) -> Iterator[list[Text]]:
        """Yield the texts in portions of about PORTION characters that are read."""
        portion: list[Text] = []
        characters = 0
        for text in texts:
            portion.append(_head(text, self.max_characters + 1))
            characters += len("".join(portion[-1]))
            if characters >= PORTION:
                yield portion
                portion, characters = [], 0
        if portion:
            yield portion

    def _rows(self, texts: Sequence[Text]) -> list[Row]:
        heads = [_head(text, self.max_characters) for text in texts]
        encodings = self.tokenizer.encode_batch(heads)
        return [
            Row(e.ids, e.attention_mask, e.type_ids, self._count(e, head, head != text))
            for e, head, text in zip(encodings, heads, texts, strict=True)
        ]

    def _count(self, encoding: Encoding, text: Text, is_cut: bool) -> int:
        is_pair = not isinstance(text, str)
        special = self.tokenizer.num_special_tokens_to_add(is_pair)
        if is_pair and encoding.overflowing:  # the parts of a pair overlap, those of its texts do not
            parts = [self.tokenizer.encode(one, add_special_tokens=False) for one in text]
            count = special + sum(len(one) + sum(map(len, one.overflowing)) for one in parts)
        else:
            count = len(encoding) + sum(len(rest) - special for rest in encoding.overflowing)
        return max(count, self.max_length + 1) if is_cut else count

    def windows(self, text: Text, max_length: int, stride: int, most: int) -> list[Encoding]:
        """Cut a text, or a pair's second text, into windows of `max_length` tokens, each with the pair's first text.
        Neighbours share `stride` tokens. Raise ValueError if a window has no room or there are more than `most`."""
        texts = [text] if isinstance(text, str) else list(text)
        is_pair = len(texts) > 1
        with self._windows:
            self.tokenizer.no_truncation()
            lengths = [len(self.tokenizer.encode(one, add_special_tokens=False)) for one in texts]
            room = max_length - self.tokenizer.num_special_tokens_to_add(is_pair) - sum(lengths[:-1])
            _check_windows(lengths[-1], room, stride, most)
            strategy = "only_second" if is_pair else "longest_first"
            self.tokenizer.enable_truncation(max_length, stride=stride, strategy=strategy, direction=self.direction)
            whole = self.tokenizer.encode(texts[0], texts[1] if is_pair else None)
        return [whole, *whole.overflowing]

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of token ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def joined(self, tokens: Sequence[str]) -> str:
        """Return the text of tokens as the vocabulary writes them."""
        decoder = self.tokenizer.decoder
        return str(decoder.decode(list(tokens))) if decoder else " ".join(tokens)


def _gives_types(settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Return whether transformers gives the network token types: by model_input_names, else by the tokenizer's class.
    If neither is named, the model type decides. The network gets zeros instead."""
    if names := settings.get("model_input_names"):
        return "token_type_ids" in names
    if name := settings.get("tokenizer_class") or config.get("tokenizer_class"):
        return str(name).removesuffix("Fast") in WITH_TYPES
    return config.get("model_type", "") in MODELS_WITH_TYPES


def _head(text: Text, length: int) -> Text:
    return text[:length] if isinstance(text, str) else (text[0][:length], text[1][:length])


def _check_windows(tokens: int, room: int, stride: int, most: int) -> None:
    """Raise ValueError if the windows have no room or are too many."""
    if tokens <= room:
        return
    if room <= stride:
        raise ValueError(
            f"a window has room for {max(room, 0)} of its tokens, but neighbours share {stride}: use a smaller stride"
        )
    if (count := 1 + -(-(tokens - room) // (room - stride))) > most:
        raise ValueError(f"it makes {count} windows, at most {most} are read: send it in parts")


def _read_json(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else {}


def _load(folder: Path, settings: Mapping[str, Any], model_type: str) -> Tokenizer:
    """Read tokenizer.json, or BERT's vocab.txt with the settings beside it."""
    if (folder / "tokenizer.json").exists():
        return _load_json(folder / "tokenizer.json")
    if not (folder / "vocab.txt").exists() or model_type not in WORD_PIECES:
        raise InvalidRequest(
            f"there is neither tokenizer.json nor vocab.txt of a BERT in {folder}; "
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


def padded(rows: Sequence[Sequence[int]], width: int, value: int) -> Array:
    """Return rows of different lengths as INT64 [n, width]."""
    filled = np.full((len(rows), width), value, np.int64)
    for target, row in zip(filled, rows, strict=True):
        target[: len(row)] = row
    return filled
