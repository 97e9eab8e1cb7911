"""Fills the masks of a text with the most likely tokens."""

from collections.abc import Sequence

import numpy as np

from clients._text.task import Predictions, Task
from clients._text.tokenizer import TextTokenizer
from clients.base import (
    Array,
    Instances,
    Model,
    Names,
    Parameter,
    Tensors,
    Values,
    best,
    check_time,
    softmax,
)
from serving.errors import DecodingError, InvalidRequest

POSITIONS = "masked_lm_positions"  # an input of models that return logits for the masks only
# maximum number of masks in a text; each has a score for every token of the vocabulary (120 kB)
MOST_MASKS = 32
# maximum number of results (masks · top_k) for a text, because each repeats the whole text
MOST_FILLED = 2_000


class FillMask(Task):
    """Predicts `{"masks": [[{"token", "token_id", "score", "sequence"}, …], …]}`: a list for each
    mask, most likely token first."""

    most_masks = MOST_MASKS
    parameters = (
        Parameter("top_k", 5, "how many tokens per mask", minimum=1, maximum=1000),
        Parameter("targets", Names(), "the only tokens to choose from; all when empty"),
    )

    def __init__(self, model: Model, tokenizer: TextTokenizer, options: Values) -> None:
        super().__init__(model, tokenizer, options)
        if tokenizer.mask_id is None:
            raise InvalidRequest(
                f"model '{model.name}': its tokenizer has no '{tokenizer.mask}' to fill"
            )
        self.compact = POSITIONS in {tensor.name for tensor in model.inputs}

    def tokens(self, instances: Sequence[str], parameters: Values) -> Tensors:
        """Return the inputs, including masked_lm_positions [n, most masks in a text]. Raise
        DecodingError for a text without a mask, or with too many."""
        tensors = super().tokens(instances, parameters)
        return tensors | {POSITIONS: self._positions(tensors["input_ids"], instances)}

    def _positions(self, ids: Array, instances: Sequence[str]) -> Array:
        """Return the positions of the masks, [texts, most masks in a text], padded with 0. Raise
        DecodingError for a text without a mask, or with too many."""
        masks = ids == self.tokenizer.mask_id
        most = int(masks.sum(axis=1).max())
        positions = np.zeros((len(ids), most), np.int64)
        for index, (row, text) in enumerate(zip(masks, instances, strict=True)):
            own = np.flatnonzero(row)
            count = len(own)
            if not count:
                raise DecodingError(self._missing_mask(text), instance=index)
            if count > self.most_masks:
                reason = (
                    f"it has {count} {self.tokenizer.mask}, at most {self.most_masks} are filled"
                )
                raise DecodingError(reason, instance=index)
            positions[index, :count] = own
        return positions

    def _missing_mask(self, text: str) -> str:
        mask = self.tokenizer.mask
        if mask in text:
            return f"its {mask} is beyond the model's limit of {self.tokenizer.max_length} tokens"
        return f"there is nothing to fill in; write {mask} instead of a token"

    def predict(
        self, outputs: Tensors, inputs: Tensors, instances: Instances, parameters: Values
    ) -> Predictions:
        """Return the most likely tokens for each mask, from logits [n, sequence, vocabulary] or [n,
        masks, vocabulary]. Raise InvalidRequest if a text has too many masks for this `top_k`."""
        targets = self._targets(parameters["targets"])
        top_k = parameters["top_k"]
        predictions = []
        for ids, logits in zip(inputs["input_ids"], self.first_output(outputs), strict=True):
            positions = np.flatnonzero(ids == self.tokenizer.mask_id)
            if len(positions) * min(top_k, logits.shape[-1]) > MOST_FILLED:
                raise InvalidRequest(
                    f"parameter 'top_k': {top_k} tokens for each of {len(positions)} masks "
                    f"are too many; at most {MOST_FILLED} are returned for a text"
                )
            # a compact model returns logits for the masks only
            rows = slice(len(positions)) if self.compact else positions
            scores = softmax(logits[rows])
            masks = [
                self._fill(ids, position, own, targets, top_k)
                for position, own in zip(positions, scores, strict=True)
            ]
            predictions.append({"masks": masks})
        return predictions

    def _targets(self, words: Sequence[str]) -> Array | None:
        """Return the ids of the words, or None if there are no words, which allows the whole
        vocabulary. Raise InvalidRequest for a word that is not a token."""
        ids = {word: self.tokenizer.tokenizer.token_to_id(word) for word in words}
        if strange := [word for word, token in ids.items() if token is None]:
            raise InvalidRequest(
                f"parameter 'targets': '{strange[0]}' is not a token of the vocabulary"
            )
        return np.unique(list(ids.values())) if ids else None

    def _fill(
        self, ids: Array, position: int, scores: Array, targets: Array | None, top_k: int
    ) -> Predictions:
        """Return the most likely tokens for one mask. If the text has other masks, `sequence` keeps
        them, together with [CLS] and [SEP], as in transformers."""
        check_time()
        is_single = np.count_nonzero(ids == self.tokenizer.mask_id) == 1
        token_ids = np.arange(len(scores)) if targets is None else targets
        results = []
        for index, score in best(scores[token_ids], top_k):
            token_id = int(token_ids[index])
            filled = ids.copy()
            filled[position] = token_id
            without_padding = filled[filled != self.tokenizer.pad_id].tolist()
            result = {
                "token": self.tokenizer.decode([token_id], skip_special_tokens=False),
                "token_id": token_id,
                "score": score,
                "sequence": self.tokenizer.decode(without_padding, skip_special_tokens=is_single),
            }
            results.append(result)
        return results
