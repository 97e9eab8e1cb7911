"""Runs a compiled model on the calls that the dynamic batcher merged: one run for all rows, or one run per stream.

Runs are started and waited for. OpenVINO 2026.4's synchronous `infer` with one thread loses the error of shapes that do
not fit: it returns the outputs of the request before, which were another caller's, and sometimes the process dies
(SIGSEGV).
"""

import math
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import numpy as np
from batching import Arrays, Call, InvalidInput, run_concatenated  # type: ignore[import-not-found]
from openvino_model import index_of, plain  # type: ignore[import-not-found]
from openvino_settings import OpenvinoSettings  # type: ignore[import-not-found]

WRONG_SHAPE = re.compile("shape_inference/|ParameterMismatch")  # in OpenVINO's errors: of the request, not of the model
WIDE = ("i8", "u8", "u4")  # NumPy's: wider than the 32 bits, with a sign, that OpenVINO computes integers with
INT32 = np.iinfo(np.int32)


class Runs:
    """Several streams run at the same time, each on its part of the threads; merged calls are shared out to them."""

    def __init__(self, compiled: Any, rows: int, settings: OpenvinoSettings) -> None:
        """`rows`: of every run, where SKIP_OV_DYNAMIC_BATCHSIZE fixed them; else 0."""
        self.compiled, self.rows, self.padding = compiled, rows, settings.padding
        self.streams = int(compiled.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))
        self.idle: SimpleQueue[Any] = SimpleQueue()
        for _ in range(self.streams):
            self.idle.put(compiled.create_infer_request())
        self.pool = ThreadPoolExecutor(self.streams) if self.streams > 1 else None

    def run(self, calls: Sequence[Call]) -> list[Arrays]:
        """The outputs of each call, in order."""
        size = math.ceil(len(calls) / self.streams)
        parts = [calls[start : start + size] for start in range(0, len(calls), size)]
        found = self.pool.map(self._part, parts) if self.pool and len(parts) > 1 else map(self._part, parts)
        return [answer for answers in found for answer in answers]

    def close(self) -> None:
        """Frees the model's memory."""
        if self.pool:
            self.pool.shutdown()
        del self.idle, self.compiled

    def _part(self, calls: Sequence[Call]) -> list[Arrays]:
        found: list[Arrays] = run_concatenated(self._run, calls)
        return found

    def _run(self, feed: Arrays, names: Sequence[str]) -> Arrays:
        count = len(next(iter(feed.values()))) if self.rows else 0
        values = {index_of(name, self.compiled.inputs): self._padded(array) for name, array in feed.items()}
        request = self.idle.get()
        try:
            request.start_async(values, share_inputs=True)
            request.wait()
            results = request.results
        except RuntimeError as err:
            error = InvalidInput if WRONG_SHAPE.search(str(err)) else RuntimeError
            raise error(f"OpenVINO: {plain(err)}") from err
        finally:
            self.idle.put(request)
        arrays = {name: results[index_of(name, self.compiled.outputs)] for name in names}
        return {name: array[:count] for name, array in arrays.items()} if self.rows else arrays

    def _padded(self, array: Any) -> Any:
        """With rows of zeros up to the model's fixed number; InvalidInput where ENABLE_BATCH_PADDING is not set."""
        if not self.rows or len(array) == self.rows:
            return array
        if not self.padding:
            raise InvalidInput(
                f"this model takes {self.rows} rows at once (SKIP_OV_DYNAMIC_BATCHSIZE) and got {len(array)}: send "
                f"{self.rows}, or set its parameter ENABLE_BATCH_PADDING to YES"
            )
        return np.concatenate([array, np.zeros((self.rows - len(array), *array.shape[1:]), array.dtype)])


def check_range(name: str, array: Any) -> None:
    """InvalidInput for integers that OpenVINO would compute with as others."""
    if array.dtype.str[1:] in WIDE and array.size and not INT32.min <= array.min() <= array.max() <= INT32.max:
        raise InvalidInput(
            f"input '{name}' has integers outside {INT32.min} to {INT32.max}: OpenVINO computes with 32 bits"
        )
