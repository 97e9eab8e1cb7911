"""Cuts long texts into windows that a model can take, each a row."""

from collections.abc import Sequence

import numpy as np
from tokenizers import Encoding

from clients._text.tokenizer import PORTION, Text, TextTokenizer
from clients.base import Tensors
from serving.budget import MOST_ROWS
from serving.errors import DecodingError


def cut_into_windows(
    tokenizer: TextTokenizer, texts: Sequence[Text], length: int, stride: int, multiple: int, every: bool = True
) -> Tensors:
    """Return the rows of all windows, or only of each text's first if not `every` window is wanted.

    Besides the inputs: `encodings` [rows], `owners` [rows], the number of each row's text, `num_tokens` and `truncated`
    [n texts]. Raises DecodingError for a text that is too long.
    """
    encodings: list[Encoding] = []
    owners, counts, cut = [], [], []
    for index, text in enumerate(texts):
        windows = _windows(tokenizer, index, text, length, stride, every)
        counts.append(_count(windows, stride, tokenizer, isinstance(text, tuple)))
        used = windows if every else windows[:1]
        cut.append(len(windows) > len(used))
        encodings += used
        owners += [index] * len(used)
    held = np.empty(len(encodings), np.object_)
    held[:] = encodings
    return tokenizer.padded(encodings, multiple, length) | {
        "encodings": held,
        "owners": np.array(owners),
        "num_tokens": np.array(counts),
        "truncated": np.array(cut),
    }


def _windows(tokenizer: TextTokenizer, index: int, text: Text, length: int, stride: int, every: bool) -> list[Encoding]:
    if not every and isinstance(text, str):
        text = text[: tokenizer.max_characters]
    characters = len("".join(text))
    if characters > PORTION and every:
        raise DecodingError(
            f"it has {characters} characters, at most {PORTION} are read: send it in parts", instance=index
        )
    try:
        return tokenizer.windows(text, length, stride, MOST_ROWS if every else PORTION)
    except ValueError as err:
        raise DecodingError(str(err), instance=index) from err


def _count(windows: Sequence[Encoding], stride: int, tokenizer: TextTokenizer, is_pair: bool) -> int:
    """Count the tokens of the whole text, each once."""
    special = tokenizer.tokenizer.num_special_tokens_to_add(is_pair)
    if is_pair:
        first = sum(each == 0 for each in windows[0].sequence_ids)
        return special + first + sum(len(each) - special - first for each in windows) - stride * (len(windows) - 1)
    return special + sum(len(each) - special for each in windows) - stride * (len(windows) - 1)
