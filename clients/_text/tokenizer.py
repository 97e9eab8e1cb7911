"""Converts texts and pairs of texts to rows of tokens. Each becomes one row, or several rows if it
is cut into windows.

A tokenizer's folder contains its files and config.json as transformers saves them. tokenizer.json
is read directly. If it is missing, transformers' AutoTokenizer reads the vocabulary, which costs
each worker another 35 MB and another second.
"""

import importlib.util
import json
import math
import os
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Encoding, Tokenizer

from clients.base import Tensors, TooManyRows, Values, check_time
from serving.budget import MOST_ROWS
from serving.errors import ConfigError, DecodingError

Text = str | tuple[str, str]  # a pair is one row: both texts, with special tokens between them

UNLIMITED = 10**6  # means no limit; transformers writes 1e30 instead
# A text is cut to this many characters for each token that the model accepts. WordPiece turns a
# longer word into one [UNK] (max_input_chars_per_word), so only texts that consist of such words,
# or of spaces, lose tokens.
LONGEST_TOKEN = 100
# The number of characters that are tokenized at a time. Each takes about 300 bytes until
# truncation. A portion of hash signs, the slowest input, takes 1.3 s.
PORTION = 2**18
# maps a text of a pair to its number of tokens and the part of the text that is read
Measured = dict[str, tuple[int, str]]
# maximum number of characters of a text that are read, even if the model accepts more tokens
LONGEST_TEXT = PORTION
# If a text of a pair has more than SHORT · max_length characters, it is cut before the pair is
# tokenized.
SHORT = 4
# Model types whose positions start after the id of the padding token.
POSITIONS_FROM_PADDING = {
    "camembert",
    "data2vec-text",
    "esm",
    "ibert",
    "luke",
    "mpnet",
    "roberta",
    "roberta-prelayernorm",
    "xlm-roberta",
    "xlm-roberta-xl",
    "xmod",
}
# Tokenizer classes that give token types to the network, in version 5 of the transformers library.
WITH_TYPES = {
    "BertTokenizer",
    "ConvBertTokenizer",
    "DebertaTokenizer",
    "DebertaV2Tokenizer",
    "ElectraTokenizer",
    "FNetTokenizer",
    "LayoutLMTokenizer",
    "LxmertTokenizer",
    "MobileBertTokenizer",
    "SqueezeBertTokenizer",
}
# Model types whose usual tokenizer is in WITH_TYPES. "" stands for a missing type.
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
    "lxmert",
    "megatron-bert",
    "mobilebert",
    "nomic_bert",
    "squeezebert",
}
# Packages that transformers needs for some vocabulary files. The container images do not have them.
PACKAGES = {
    "tiktoken.model": "tiktoken",
    "tekken.json": "mistral_common",
    "*.model": "sentencepiece",
}
REMEDY = (
    "save tokenizer.json there, with transformers' "
    "AutoTokenizer.from_pretrained(…).save_pretrained(folder)"
)


class TextTokenizer:
    """Tokenizes with the files of a folder. Worker threads share one TextTokenizer. `windows`
    changes the truncation settings, so a client uses either `windows` or `encode`."""

    def __init__(
        self, folder: Path, max_length: int, strategy: str = "longest_first", multiple: int = 1
    ) -> None:
        """Read the folder. If `max_length` is 0, the model's own limit applies. `strategy` says how
        a pair is truncated, in the terms of the tokenizers library. Rows are padded to a multiple
        of `multiple` tokens, but not beyond the limit. Raise ConfigError if the folder has no
        tokenizer that can be read."""
        self.multiple = multiple
        self.config = _read_json(folder / "config.json")
        # an embedding's prompts, or the function that a CrossEncoder applies to its scores
        self.sentence_transformers = _read_json(folder / "config_sentence_transformers.json")
        self.settings = _read_json(folder / "special_tokens_map.json") | _read_json(
            folder / "tokenizer_config.json"
        )
        if (folder / "tokenizer.json").exists():
            self.tokenizer = _load_json(folder / "tokenizer.json")
        else:
            loaded = load_with_transformers(folder)
            self.tokenizer = loaded.backend_tokenizer
            self.settings |= {
                **loaded.special_tokens_map,
                "model_input_names": loaded.model_input_names,
                "model_max_length": loaded.model_max_length,
                "truncation_side": loaded.truncation_side,
            }
        self.max_length = min(max_length or UNLIMITED, self._limit())
        self.max_characters = min(self.max_length * LONGEST_TOKEN, LONGEST_TEXT)
        self.direction = str(self.settings.get("truncation_side", "right"))
        self.tokenizer.no_padding()
        self.tokenizer.enable_truncation(
            self.max_length, strategy=strategy, direction=self.direction
        )
        self.pad_id = self.special("pad_token", "[PAD]")[1] or 0
        self.mask, self.mask_id = self.special("mask_token", "[MASK]")
        self.has_types = _gives_types(self.settings, self.config)
        self._truncation_lock = threading.Lock()

    def _limit(self) -> int:
        """Return the maximum number of tokens in a text: the lower of the tokenizer's limit and the
        size of the position table. In some models, positions start after the id of the padding
        token."""
        positions = int(self.config.get("max_position_embeddings", UNLIMITED))
        # ESM-2 has no position table
        is_rotary = self.config.get("position_embedding_type") == "rotary"
        if self.config.get("model_type") in POSITIONS_FROM_PADDING and not is_rotary:
            positions -= int(self.config.get("pad_token_id", 1)) + 1
        stated = int(self.settings.get("model_max_length", UNLIMITED))
        return min(positions, stated, UNLIMITED)

    def special(self, key: str, default: str) -> tuple[str, int | None]:
        """Return the special token that the tokenizer's files name as `key`, or else `default`, and
        its id. The id is None if the vocabulary does not have the token."""
        token = self.settings.get(key) or default
        text = token["content"] if isinstance(token, dict) else token
        return text, self.tokenizer.token_to_id(text)

    def encode(self, texts: Sequence[Text], owners: Sequence[int] | None = None) -> Tensors:
        """Return the inputs for n texts or pairs: INT64 [n, longest rounded up to `multiple`],
        padded on the right. `owners` [n] contains the index of the instance to which each text
        belongs, if an instance may have several texts.

        `num_tokens` [n] counts the tokens before truncation, with special tokens. If a text was cut
        to `max_characters`, only the tokens that were read are counted, but the number is always
        higher than max_length. Raise DecodingError for a text without tokens, because the model's
        answer would mean nothing.
        """
        if owners is None:
            owners = range(len(texts))
        rows = []
        counts = []
        measured: Measured = {}
        for portion in self._portions(texts):
            check_time()
            parts = [self._parts(text, self.max_characters) for text in portion]
            shortened = [self._shortened(part, measured) for part in parts]
            encodings = self.tokenizer.encode_batch_fast(shortened)
            for encoding, part, text in zip(encodings, parts, portion, strict=True):
                count = len(encoding)
                if encoding.overflowing:
                    count = self._count(encoding, part, measured)
                if part != text:  # the text was cut to max_characters
                    count = max(count, self.max_length + 1)
                counts.append(count)
                rows.append((encoding.ids, encoding.type_ids))
        tensors = self._padded(rows, owners, self.max_length)
        return tensors | {"num_tokens": np.array(counts, np.int64)}

    def part(self, text: str, length: int) -> str:
        """Return the first `length` characters of a text, or the last ones if the tokenizer
        truncates texts on the left."""
        return text[-length:] if self.direction == "left" else text[:length]

    def _parts(self, text: Text, length: int) -> Text:
        """Apply `part` to a text, or to each text of a pair."""
        if isinstance(text, str):
            return self.part(text, length)
        first, second = text
        return self.part(first, length), self.part(second, length)

    def first_character(self, text: str) -> int:
        """Return the index of the first character of a text that `encode` reads."""
        if self.direction != "left":
            return 0
        return max(len(text) - self.max_characters, 0)

    def _portions(self, texts: Sequence[Text]) -> Iterator[Sequence[Text]]:
        """Yield the texts in portions, each with about PORTION characters to read. A text with more
        than `max_characters` characters is cut to `max_characters` + 1, so that `encode` can see
        that it was too long."""
        portion: list[Text] = []
        characters = 0
        for text in texts:
            part = self._parts(text, self.max_characters + 1)
            portion.append(part)
            characters += _characters(part)
            if characters >= PORTION:
                yield portion
                portion = []
                characters = 0
        if portion:
            yield portion

    def _shortened(self, text: Text, measured: Measured) -> Text:
        """Return a single text unchanged, and a pair with its long texts cut to at most twice as
        many tokens as the model takes. Without the cut, the library would combine every overflowing
        part of one text with every part of the other, which takes 10 s for two texts of 20,000 hash
        signs."""
        if isinstance(text, str):
            return text
        halves = []
        for half in text:
            is_short = len(half) <= SHORT * self.max_length
            halves.append(half if is_short else self._measure(half, measured)[1])
        return halves[0], halves[1]

    def _measure(self, text: str, measured: Measured) -> tuple[int, str]:
        """Return how many tokens a text of a pair has, and a part of it with at most twice as many
        tokens as the model takes. `measured` caches both, because many pairs may share a text."""
        if text not in measured:
            check_time()
            encoding = self._encoded(text, add_special_tokens=False)
            more = encoding.overflowing  # each has as many tokens as the model takes, or fewer
            count = len(encoding) + sum(map(len, more))
            part = text
            if more and self.direction == "left":
                start = more[0].offsets[0][0]
                part = text[start:]
            elif more:
                end = more[0].offsets[-1][1]
                part = text[:end]
            measured[text] = count, part
        return measured[text]

    def _encoded(self, text: Text, add_special_tokens: bool = True) -> Encoding:
        """Return the tokens of one text or pair. The library's `encode` would hold the GIL for 0.4
        s if the text has 260,000 characters; `encode_batch` releases it."""
        (encoding,) = self.tokenizer.encode_batch([text], add_special_tokens=add_special_tokens)
        return encoding

    def _count(self, encoding: Encoding, text: Text, measured: Measured) -> int:
        """Return how many tokens a text or pair had before it was truncated to `encoding`."""
        is_pair = not isinstance(text, str)
        special_tokens = self.tokenizer.num_special_tokens_to_add(is_pair)
        if is_pair:
            # the windows of a pair overlap, so they cannot be counted
            return special_tokens + sum(self._measure(half, measured)[0] for half in text)
        more = sum(len(window) - special_tokens for window in encoding.overflowing)
        return len(encoding) + more

    def _padded(
        self, rows: Sequence[tuple[list[int], list[int]]], owners: Sequence[int], limit: int
    ) -> Tensors:
        """Return the inputs for rows of (token ids, token types), padded to at most `limit` tokens.
        Raise DecodingError for a row without tokens. `owners` has the instance of each row."""
        longest = max(len(ids) for ids, _ in rows)
        padded = math.ceil(longest / self.multiple) * self.multiple
        shape = (len(rows), min(padded, limit))
        tokens = np.full(shape, self.pad_id, np.int64)
        mask = np.zeros(shape, np.int64)
        types = np.zeros(shape, np.int64)
        for index, (ids, type_ids) in enumerate(rows):
            size = len(ids)
            if not size:
                raise DecodingError("the text has no tokens", instance=owners[index])
            tokens[index, :size] = ids
            mask[index, :size] = 1
            if self.has_types:
                types[index, :size] = type_ids
        return {"input_ids": tokens, "attention_mask": mask, "token_type_ids": types}

    def windows(
        self, texts: Sequence[Text], length: int, stride: int, all_windows: bool = True
    ) -> Tensors:
        """Cut texts into windows of `length` tokens. In a pair, only the second text is cut, and
        each window begins with the first text. Neighboring windows share `stride` tokens. Return
        the rows of all windows, or of only each text's first window if `all_windows` is false.

        Besides the inputs, return `encodings` [rows], `owners` [rows] (the index of the text to
        which each row belongs), `num_tokens` and `truncated` [n texts]. Raise DecodingError for a
        text that `_cut` rejects or that has no tokens, and TooManyRows if the texts together make
        too many rows.
        """
        encodings: list[Encoding] = []
        owners = []
        counts = []
        truncated = []
        for index, text in enumerate(texts):
            check_time()
            try:
                cut, count = self._cut(text, length, stride, all_windows)
            except ValueError as err:
                raise DecodingError(str(err), instance=index) from err
            counts.append(count)
            used = cut if all_windows else cut[:1]
            # a first text alone has at most MOST_ROWS windows (_cut)
            if index > 0 and len(encodings) + len(used) > MOST_ROWS:
                raise TooManyRows(index)
            truncated.append(len(cut) > len(used))
            encodings += used
            owners += [index] * len(used)
        array = np.empty(len(encodings), np.object_)
        array[:] = encodings
        rows = [(encoding.ids, encoding.type_ids) for encoding in encodings]
        return self._padded(rows, owners, length) | {
            "encodings": array,
            "owners": np.array(owners),
            "num_tokens": np.array(counts),
            "truncated": np.array(truncated),
        }

    def _cut(
        self, text: Text, length: int, stride: int, all_windows: bool
    ) -> tuple[list[Encoding], int]:
        """Return the windows of a text, and its number of tokens with special tokens. Raise
        ValueError if there are too many characters or windows, or if a window has too little room
        for the text."""
        if isinstance(text, str) and not all_windows:
            text = self.part(text, self.max_characters)
        characters = _characters(text)
        if all_windows and characters > PORTION:
            raise ValueError(
                f"it has {characters} characters, at most {PORTION} are read: send it in parts"
            )
        texts = [text] if isinstance(text, str) else list(text)
        is_pair = len(texts) > 1
        with self._truncation_lock:
            self.tokenizer.no_truncation()
            lengths = [len(self._encoded(each, add_special_tokens=False)) for each in texts]
            count = sum(lengths) + self.tokenizer.num_special_tokens_to_add(is_pair)
            # how many tokens of the last text fit beside the special tokens and a first text
            room = length - (count - lengths[-1])
            # no text has more than PORTION windows, so they are limited only if all are used
            most = MOST_ROWS if all_windows else PORTION
            _check_windows(lengths[-1], room, stride, most)
            strategy = "only_second" if is_pair else "longest_first"
            self.tokenizer.enable_truncation(
                length, stride=stride, strategy=strategy, direction=self.direction
            )
            first_window = self._encoded(text)
        return [first_window, *first_window.overflowing], count

    def decode(self, ids: Sequence[int], skip_special_tokens: bool) -> str:
        """Return the text of token ids."""
        return str(self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))

    def joined(self, tokens: Sequence[str]) -> str:
        """Return the text of `tokens`, which are spelled as in the vocabulary."""
        decoder = self.tokenizer.decoder
        return str(decoder.decode(list(tokens))) if decoder else " ".join(tokens)


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else sum(map(len, text))


def load_with_transformers(folder: Path) -> Any:
    """Load the folder's tokenizer with transformers' AutoTokenizer, without network access and
    without running code from the folder. Raise ConfigError if it cannot be loaded that way, or has
    no `backend_tokenizer`."""
    for file in ("tokenizer_config.json", "config.json"):
        code = _read_json(folder / file).get("auto_map") or {}
        if isinstance(code, list) or "AutoTokenizer" in code:
            reason = (
                f"has a tokenizer with code of its own (auto_map in {file}), which is never run"
            )
            raise ConfigError(folder, reason, REMEDY)
    # the import below reads these variables
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    from transformers import AutoTokenizer

    try:
        loaded = AutoTokenizer.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
    except Exception as err:  # each kind of tokenizer raises exceptions of its own
        raise ConfigError(folder, _why_not(folder, err), REMEDY) from err
    if getattr(loaded, "backend_tokenizer", None) is None:
        raise ConfigError(
            folder, f"has a {type(loaded).__name__}, which is written in Python only", REMEDY
        )
    # If the vocabulary is missing, transformers returns a tokenizer of special tokens alone.
    files = {name for key, name in loaded.vocab_files_names.items() if key != "tokenizer_file"}
    if absent := sorted(name for name in files if not (folder / name).is_file()):
        raise ConfigError(folder, f"has neither tokenizer.json nor {', '.join(absent)}", REMEDY)
    return loaded


def _why_not(folder: Path, error: Exception) -> str:
    """Return why transformers cannot read a folder. Its own error blames tiktoken even if
    sentencepiece is missing."""
    for files, package in PACKAGES.items():
        if any(folder.glob(files)) and importlib.util.find_spec(package) is None:
            return f"needs the package '{package}' for its tokenizer, which is not installed"
    text = next(iter(str(error).splitlines()), "")
    return f"has no tokenizer.json, and transformers cannot make a tokenizer of its files ({text})"


def _gives_types(settings: Values, config: Values) -> bool:
    """Return whether transformers gives the network token types; otherwise the network gets zeros.
    The answer follows from model_input_names, or else from the tokenizer's class, or else from the
    model type."""
    if names := settings.get("model_input_names"):
        return "token_type_ids" in names
    if name := settings.get("tokenizer_class") or config.get("tokenizer_class"):
        return str(name).removesuffix("Fast") in WITH_TYPES
    return config.get("model_type", "") in MODELS_WITH_TYPES


def _check_windows(tokens: int, room: int, stride: int, most: int) -> None:
    """Raise ValueError if a text that is longer than `room` would make more than `most` windows, or
    if a window has no room for tokens besides the `stride` that it shares."""
    if tokens <= room:
        return
    if room <= stride:
        raise ValueError(
            f"a window has room for {max(room, 0)} of its tokens, but neighbors share "
            f"{stride}: use a smaller stride"
        )
    count = 1 + math.ceil((tokens - room) / (room - stride))
    if count > most:
        raise ValueError(f"it makes {count} windows, at most {most} are read: send it in parts")


def _read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file, or {} if the file does not exist. Raise ConfigError if the
    file contains anything else."""
    if not path.exists():
        return {}
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as err:
        raise ConfigError(path, f"is not JSON ({err})", REMEDY) from err
    if not isinstance(value, dict):
        raise ConfigError(path, "is not a JSON object", REMEDY)
    return value


def _load_json(path: Path) -> Tokenizer:
    """Load a tokenizer.json. Raise ConfigError if it cannot be read."""
    try:
        return Tokenizer.from_file(str(path))
    except Exception as err:  # the library raises no narrower class
        raise ConfigError(path, f"cannot be read ({err})", REMEDY) from err
