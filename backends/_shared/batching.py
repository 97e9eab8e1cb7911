"""Runs the requests that the dynamic batcher has merged, and creates one response for each.

    requests --read--> calls --Merge.key, Merge.groups--> groups --run--> arrays of each call
        --> responses

Each backend passes its own `read` and `run`. If a run of several requests fails, each gets a new
run of its own, so that one bad request does not fail the others. `backends.install` copies this
file into every backend's folder.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from instance import Config, parameter_texts  # beside this file
from numpy.typing import NDArray

Array = NDArray[Any]
Arrays = dict[str, Array]
Read = tuple[Arrays, tuple[str, ...]]  # a request's inputs, and the names of its outputs
# runs the model once on these inputs, and returns the outputs with these names
RunModel = Callable[[Arrays, Sequence[str]], Mapping[str, Array]]
# the names that transformers gives the inputs of a text model
IDS, MASK, TYPES = "input_ids", "attention_mask", "token_type_ids"
RAGGED = "ragged_batches"  # parameter in config.pbtxt: the maximum length of a text, in tokens
# A run of texts that are padded to the longest has at most MOST_PADDED times their tokens, plus
# RUN_TOKENS, because starting another run takes about as long as RUN_TOKENS tokens. (Padding to
# Ragged's `multiple` is not counted.) Measured with all-MiniLM-L6-v2 on two processors, 16 texts at
# a time: BEIR's texts take 10.0 ms each (10.5 ms if MOST_PADDED is 1.25, 10.4 ms if each text has a
# run of its own); BEIR's short queries take 1.6 ms each (2.2 ms if each has a run of its own).
MOST_PADDED = 1.1
RUN_TOKENS = 16


class InvalidInput(ValueError):
    """Raised if a request turns out to be invalid, before or during its run."""


@dataclass(frozen=True)
class Call:
    """A request: its index among the merged requests, its input arrays, and the names of the
    outputs that it requests."""

    index: int
    feed: Arrays
    outputs: tuple[str, ...]


Calls = Sequence[Call]


@dataclass(frozen=True)
class Batcher:
    """Runs merged requests and creates their responses.

    `read` returns a request's input arrays and output names. `merge` decides which calls are passed
    together to `run`, which returns the outputs of each call, in the order of the calls. The
    exceptions in `invalid` mean that a request is invalid.
    """

    read: Callable[[Any], Read]
    run: Callable[[Calls], Sequence[Arrays]]
    merge: "Merge"
    invalid: tuple[type[Exception], ...] = (InvalidInput,)

    def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Return one response for each request, in the same order."""
        responses: dict[int, Any] = {}
        by_key: dict[Hashable, list[Call]] = {}
        for index, request in enumerate(requests):
            try:
                call = Call(index, *self.read(request))
                key = self.merge.key(call)
            except Exception as err:
                responses[index] = self._failure(err)
            else:
                by_key.setdefault(key, []).append(call)
        for calls in by_key.values():
            for group in self.merge.groups(calls):
                responses |= self._answer(group)
        return [responses[index] for index in range(len(requests))]

    def _answer(self, calls: Calls) -> dict[int, Any]:
        """Run all calls together or, if that fails, each call alone. Return {index of a call: its
        response}."""
        try:
            pairs = zip(calls, self.run(calls), strict=True)
            return {call.index: respond(outputs) for call, outputs in pairs}
        except Exception as err:  # the libraries' exceptions have no common base class
            if len(calls) == 1:
                return {calls[0].index: self._failure(err)}
            pb_utils.Logger.log_verbose(
                f"a run of {len(calls)} requests failed, so each runs alone: {err}"
            )
        responses: dict[int, Any] = {}
        for call in calls:
            responses |= self._answer([call])
        return responses

    def _failure(self, error: Exception) -> Any:
        """Return Triton's error response: INVALID_ARG if the request is invalid, and otherwise
        INTERNAL."""
        invalid = isinstance(error, self.invalid)
        code = pb_utils.TritonError.INVALID_ARG if invalid else pb_utils.TritonError.INTERNAL
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


class Merge:
    """Decides which calls share a run, joins their inputs and splits the run's outputs. Calls share
    a run if their inputs can be concatenated along the first dimension. If `batches` is false,
    every call gets a run of its own."""

    def __init__(self, batches: bool = True) -> None:
        self.batches = batches

    def key(self, call: Call) -> Hashable:
        """Return the call's key: only calls with the same key may share a run. Raise InvalidInput
        if the call is invalid."""
        if not self.batches:
            return call.index
        key = []
        for name in sorted(call.feed):
            array = call.feed[name]
            key.append((name, array.dtype.str, array.shape[1:]))
        return tuple(key)

    def groups(self, calls: Calls) -> Iterable[Calls]:
        """Divide calls with the same key into groups, each of which shares a run."""
        return [calls]

    def join(self, calls: Calls) -> Arrays:
        """Return the input arrays for a run of these calls."""
        first = calls[0].feed
        if len(calls) == 1:
            return first
        return {name: np.concatenate([call.feed[name] for call in calls]) for name in first}

    def split(self, outputs: Arrays, calls: Calls) -> list[Arrays]:
        """Return the outputs of each call. Raise ValueError if they cannot be split."""
        if len(calls) == 1:
            return [outputs]
        row_counts = [len(next(iter(call.feed.values()))) for call in calls]
        for array in outputs.values():
            if array.shape[:1] != (sum(row_counts),):
                raise ValueError("the first dimension of an output is not the batch dimension")
        results = []
        start = 0
        for call, count in zip(calls, row_counts, strict=True):
            rows = slice(start, start + count)
            results.append({name: outputs[name][rows] for name in call.outputs})
            start += count
        return results


class Ragged(Merge):
    """Merges texts of different lengths: pads them on the right, and removes the padding from
    outputs that have a value for each token. A call may omit the mask if none of its tokens is
    padding, and the types if all of them are 0. `inputs` contains those of IDS, MASK and TYPES that
    the model takes, with their dtypes. `by_token` names the outputs whose second dimension is
    variable. If such an output is as long as the padded texts, `split` cuts it to the length of the
    call's own text. Texts are padded to a length that is a multiple of `multiple` tokens, but not
    beyond `most` tokens, unless one of them is longer; `most` 0 pads them only to the longest."""

    def __init__(
        self,
        inputs: Mapping[str, np.dtype[Any]],
        by_token: frozenset[str],
        multiple: int = 1,
        most: int = 0,
    ) -> None:
        super().__init__()
        self.inputs = inputs
        self.by_token = by_token
        self.multiple = multiple
        self.most = most

    def key(self, call: Call) -> Hashable:
        """Return the call's key, which does not depend on the length of its texts. Raise
        InvalidInput if the shapes of its texts' tensors differ."""
        shape = call.feed[IDS].shape
        for name in self.inputs.keys() & call.feed.keys():
            other = call.feed[name].shape
            if other != shape:
                raise InvalidInput(
                    f"input '{name}' has the shape {list(other)}, and '{IDS}' has {list(shape)}; "
                    "they must be the same"
                )
        key = super().key(self._without_text(call))
        # If another input is at least as long as the text, the length of an output does not show
        # which of the two it depends on, so the call gets a run of its own.
        needs_own_run = max(self._other_sizes(call), default=0) >= shape[1]
        return (key, call.index) if needs_own_run else key

    def groups(self, calls: Calls) -> Iterator[Calls]:
        """Yield groups of calls whose texts have about the same length, shortest first. A text
        starts a new group if padding for it would take longer than another run."""
        group: list[Call] = []
        rows = tokens = 0
        for call in sorted(calls, key=_length):
            ids = call.feed[IDS]
            rows += len(ids)
            tokens += ids.size
            padded = rows * _length(call)  # this text is the longest one so far
            if group and padded > MOST_PADDED * tokens + RUN_TOKENS:
                yield group
                group = []
                rows = len(ids)
                tokens = ids.size
            group.append(call)
        yield group

    def join(self, calls: Calls) -> Arrays:
        """Return the input arrays for a run of these calls, with all texts padded to one length."""
        width = self._width(calls)
        return super().join([self._padded(call, width) for call in calls])

    def _padded(self, call: Call, width: int) -> Call:
        """Return the call with its texts padded to `width` tokens, and with the mask and the types
        if the model takes them and the call omits them."""
        feed = dict(call.feed)
        for name, dtype in self.inputs.items():
            # without a mask, all tokens count; without types, all types are 0
            default = 1 if name == MASK else 0
            feed[name] = np.zeros((len(call.feed[IDS]), width), dtype)
            feed[name][:, : _length(call)] = call.feed.get(name, default)
        return replace(call, feed=feed)

    def split(self, outputs: Arrays, calls: Calls) -> list[Arrays]:
        """Return the outputs of each call, without the padding that `join` added."""
        width = self._width(calls)
        results = super().split(outputs, calls)
        for call, result in zip(calls, results, strict=True):
            for name in self.by_token & result.keys():
                if result[name].shape[1] == width:
                    result[name] = result[name][:, : _length(call)]
        return results

    def _width(self, calls: Calls) -> int:
        """Return the length, in tokens, to which a run pads its texts."""
        longest = max(map(_length, calls))
        rounded = math.ceil(longest / self.multiple) * self.multiple
        width = max(longest, min(rounded, self.most))
        # Do not pad to the size of another input, because split would then also cut the outputs
        # that depend on that input. Only a call in a run of its own has such an input (see key).
        return longest if width in self._other_sizes(calls[0]) else width

    def _other_sizes(self, call: Call) -> list[int]:
        """Return the sizes of the inputs other than the text, in all dimensions but the first."""
        arrays = self._without_text(call).feed.values()
        return list(chain.from_iterable(array.shape[1:] for array in arrays))

    def _without_text(self, call: Call) -> Call:
        """Return the call without IDS, MASK and TYPES."""
        others = {name: array for name, array in call.feed.items() if name not in self.inputs}
        return replace(call, feed=others)


def _length(call: Call) -> int:
    """Return the length of the call's texts, in tokens."""
    return int(call.feed[IDS].shape[1])


def merge_of(config: Config, multiple: int = 1) -> Merge:
    """Return the Merge that suits a model's configuration. Texts are padded to a multiple of
    `multiple` tokens, but not beyond the longest text that the model takes."""
    ragged = [entry for entry in config["input"] if entry.get("allow_ragged_batch")]
    names = {entry["name"] for entry in ragged}
    batches = config["max_batch_size"] > 0
    takes_texts = {IDS, MASK} <= names <= {IDS, MASK, TYPES}
    if not (batches and takes_texts):
        return Merge(batches)
    dtypes = {
        entry["name"]: np.dtype(pb_utils.triton_string_to_numpy(entry["data_type"]))
        for entry in ragged
    }
    # dims leaves out the batch dimension, so its first size is that of the second dimension
    second_sizes = {entry["name"]: int(entry["dims"][0]) for entry in config["output"]}
    variable = [name for name, size in second_sizes.items() if size == -1]
    most = int(parameter_texts(config).get(RAGGED, "0"))
    return Ragged(dtypes, frozenset(variable), multiple, most)


def run_merged(run_model: RunModel, merge: Merge, calls: Calls) -> list[Arrays]:
    """Run the model once for all calls. Return the outputs of each call, in the order of the calls.
    Raise ValueError if the outputs cannot be split by call."""
    requested = chain.from_iterable(call.outputs for call in calls)
    names = tuple(dict.fromkeys(requested))  # each once
    outputs = dict(run_model(merge.join(calls), names))
    return merge.split(outputs, calls)


def respond(arrays: Arrays) -> Any:
    """Create Triton's response from arrays. A scalar gets the shape [1], because config.pbtxt does
    not allow empty dims."""
    tensors = [
        pb_utils.Tensor(name, array if array.ndim else array.reshape(1))
        for name, array in arrays.items()
    ]
    return pb_utils.InferenceResponse(output_tensors=tensors)


def read_request(
    request: Any,
    outputs: Iterable[str],
    strings: Collection[str] = (),
    scalars: Collection[str] = (),
) -> Read:
    """Return a request's input arrays, and the names of those `outputs` that it requests. Decode
    the inputs in `strings`, and turn the inputs in `scalars`, which callers send with the shape
    [1], into scalars. Raise InvalidInput for strings that are not UTF-8."""
    feed: Arrays = {}
    for tensor in request.inputs():
        name, array = tensor.name(), tensor.as_numpy()
        if name in strings:
            array = _decoded(name, array)
        if name in scalars and array.size == 1:
            array = array.reshape(())
        feed[name] = array
    wanted = set(request.requested_output_names())
    return feed, tuple(name for name in outputs if name in wanted)


def _decoded(name: str, array: Array) -> Array:
    """Return an array of bytes as an array of str. Raise InvalidInput if one is not UTF-8."""
    try:
        texts = [text.decode() for text in array.ravel()]
    except UnicodeDecodeError as err:
        raise InvalidInput(f"input '{name}' is not UTF-8 ({err})") from err
    return np.array(texts, dtype=np.object_).reshape(array.shape)
