"""How the calls that the dynamic batcher merged become runs of ONNX Runtime: one run for all rows, or one per call.

For texts and small images, one run of all rows on all threads is fastest. A batch of large images does not fit into the
processors' caches, and the threads of a run wait for each other hundreds of times, longer when the machine is busy.
So with at least as many calls as threads, each call of such a model runs on one thread, several calls at the same time.
Measured with YOLOv5n at 640, 8 callers, 2 processors that also decode the images: 24.5 ms of processor time per call
instead of 32 to 37.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

from batching import Arrays, Call, run_at_once, run_concatenated  # type: ignore[import-not-found]
from onnx_session import SessionSettings, run_options  # type: ignore[import-not-found]


class Runs:
    """A session that uses all threads and, for a model with large rows, a second one whose runs use one thread.

    The second session takes the memory of the weights again, so it is created when calls are first merged.
    """

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
