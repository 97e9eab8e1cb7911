"""How the calls that the dynamic batcher merged become runs of ONNX Runtime: one of all their rows, or one each.

One run of all rows by all threads is what texts and small images want. Rows of large images fall out of the
processors' caches in a batch, and a run's threads wait for one another hundreds of times, the longer the more else the
processors have to do: there, as many calls as threads and more run at the same time, each by one thread. YOLOv5n at 640
by 8 callers on 2 processors, which decode the images as well: 24.5 ms of processor time a call, against 32 to 37.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from batching import Arrays, Call, run_at_once, run_concatenated  # type: ignore[import-not-found]
from onnx_session import SessionSettings, run_options  # type: ignore[import-not-found]


class Runs:
    """The session of all threads and, for a model of large rows, a second one whose runs take one thread each, made
    when calls are merged for the first time: it takes the memory of the weights once more."""

    def __init__(self, load: Callable[[SessionSettings], Any], settings: SessionSettings) -> None:
        self.load, self.settings = load, settings
        self.session, self.options = load(settings), run_options()
        self.pool = ThreadPoolExecutor(settings.intra_op_threads) if settings.separate_runs else None

    @cached_property
    def single(self) -> Any:
        return self.load(replace(self.settings, intra_op_threads=1))

    def run(self, calls: Sequence[Call]) -> list[Arrays]:
        """The outputs of each call, in order."""
        if self.pool and len(calls) >= self.settings.intra_op_threads:
            found: list[Arrays] = run_at_once(partial(self._run, self.single), self.pool, calls)
        else:
            found = run_concatenated(partial(self._run, self.session), calls)
        return found

    def close(self) -> None:
        """Frees the sessions' memory."""
        if self.pool:
            self.pool.shutdown()
        self.__dict__.pop("single", None)
        del self.session

    def _run(self, session: Any, feed: Arrays, names: Sequence[str]) -> Arrays:
        return dict(zip(names, session.run(list(names), feed, self.options), strict=True))
