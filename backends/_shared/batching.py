"""Runs the requests that the dynamic batcher has merged, and creates one response for each.

    requests --read--> calls --key--> groups --run--> arrays of each call --> responses

If a run fails, each of its requests is run again alone, so that one bad request does not fail the
others. `backends.install` copies this file into every backend's folder.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import triton_python_backend_utils as pb_utils
from numpy.typing import NDArray

Arrays = dict[str, NDArray[Any]]
Run = Callable[[Arrays, Sequence[str]], Mapping[str, NDArray[Any]]]


class InvalidInput(ValueError):
    """Raised before or during a run if the request is invalid."""


@dataclass(frozen=True)
class Call:
    """One request: its index among the merged requests, its input arrays, and the names of the
    outputs that it requests."""

    index: int
    feed: Arrays
    outputs: tuple[str, ...]


class Batcher:
    """Runs merged requests and creates their responses.

    `read` returns a request's input arrays and output names. Calls with the same `key` may share a
    `run`, which returns the outputs of each call, in order. `invalid` lists the exceptions, besides
    InvalidInput, that mean that the request is invalid.
    """

    def __init__(
        self,
        read: Callable[[Any], tuple[Arrays, tuple[str, ...]]],
        run: Callable[[Sequence[Call]], Sequence[Arrays]],
        key: Callable[[Call], Hashable],
        invalid: tuple[type[Exception], ...] = (),
    ) -> None:
        self.read, self.run, self.key = read, run, key
        self.invalid: tuple[type[Exception], ...] = (InvalidInput, *invalid)

    def answer(self, requests: Sequence[Any]) -> list[Any]:
        """Return one response for each request, in the same order."""
        responses: dict[int, Any] = {}
        groups: dict[Hashable, list[Call]] = {}
        for index, request in enumerate(requests):
            try:
                call = Call(index, *self.read(request))
            except Exception as err:
                responses[index] = self._failure(err)
            else:
                groups.setdefault(self.key(call), []).append(call)
        for calls in groups.values():
            responses.update(self._answer(calls))
        return [responses[index] for index in range(len(requests))]

    def _answer(self, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
        """Yield (index, response) for each call. Run all calls at once or, if that fails, each call
        alone."""
        if len(calls) > 1:
            try:
                results = self.run(calls)
            except Exception as err:  # the libraries' exceptions have no common base class
                pb_utils.Logger.log_verbose(
                    f"a run of {len(calls)} requests failed, so each runs alone: {err}"
                )
            else:
                yield from (
                    (call.index, respond(outputs))
                    for call, outputs in zip(calls, results, strict=True)
                )
                return
        for call in calls:
            try:
                yield call.index, respond(self.run([call])[0])
            except Exception as err:
                yield call.index, self._failure(err)

    def _failure(self, error: Exception) -> Any:
        """Return Triton's error response: INVALID_ARG if the request is invalid, else INTERNAL."""
        invalid = isinstance(error, self.invalid)
        code = pb_utils.TritonError.INVALID_ARG if invalid else pb_utils.TritonError.INTERNAL
        return pb_utils.InferenceResponse(error=pb_utils.TritonError(str(error), code))


def same_shapes(call: Call) -> Hashable:
    """Return a key that is the same for calls that can be concatenated along the first
    dimension."""
    arrays = [(name, call.feed[name]) for name in sorted(call.feed)]
    return tuple((name, array.dtype.str, array.shape[1:]) for name, array in arrays)


def alone(call: Call) -> Hashable:
    """Return a key that differs for every call, for models without a batch dimension."""
    return call.index


def run_concatenated(run: Run, calls: Sequence[Call]) -> list[Arrays]:
    """Call `run(arrays, output names)` once with the rows of all calls. Raise ValueError if its
    outputs cannot be split by call."""
    first = calls[0].feed
    if len(calls) == 1:
        return [dict(run(first, calls[0].outputs))]
    feed = {name: np.concatenate([call.feed[name] for call in calls]) for name in first}
    names = chain.from_iterable(call.outputs for call in calls)
    results = run(feed, tuple(dict.fromkeys(names)))
    sizes = [len(next(iter(call.feed.values()))) for call in calls]
    ends = np.cumsum(sizes)
    for result in results.values():
        if result.shape[:1] != (ends[-1],):
            raise ValueError("the first dimension of an output is not the batch dimension")
    return [
        {name: results[name][end - size : end] for name in call.outputs}
        for call, size, end in zip(calls, sizes, ends, strict=True)
    ]


def run_at_once(run: Run, pool: Executor, calls: Sequence[Call]) -> list[Arrays]:
    """Call `run(arrays, output names)` for each call, in the threads of `pool`."""
    answers = pool.map(lambda call: run(call.feed, call.outputs), calls)
    return [dict(arrays) for arrays in answers]


def respond(arrays: Arrays) -> Any:
    """Create Triton's response from arrays. A scalar gets the shape [1], because config.pbtxt does
    not allow empty dims."""
    tensors = [
        pb_utils.Tensor(name, array if array.ndim else array.reshape(1))
        for name, array in arrays.items()
    ]
    return pb_utils.InferenceResponse(output_tensors=tensors)


def decode(name: str, array: NDArray[Any]) -> NDArray[Any]:
    """Decode Triton's BYTES to str. Raise InvalidInput if they are not UTF-8."""
    try:
        texts = [text.decode() for text in array.ravel()]
    except UnicodeDecodeError as err:
        raise InvalidInput(f"input '{name}' is not UTF-8 ({err})") from err
    return np.array(texts, dtype=np.object_).reshape(array.shape)
