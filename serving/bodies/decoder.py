"""Decodes instances of a limited number of requests at a time."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from contextvars import copy_context
from copy import copy
from dataclasses import dataclass, replace
from functools import partial
from time import thread_time
from typing import Any

from clients.base import ModelClient
from serving.budget import Deadline, count_time
from serving.codecs import Codec, Limits
from serving.codecs.image import most_memory
from serving.errors import DecodingError

LONGEST_WAIT = 60.0  # seconds between two checks of the deadline
LARGE = 2**24  # images are large if decoding a batch takes more bytes: 2 megapixels take this many
LONG = 2**13  # texts are long if a batch has more characters: 8,192 hash signs take 40 ms


@dataclass(frozen=True)
class Item:
    """One instance as received: raw bytes or a JSON value, and the field that contained it."""

    field: str
    raw: bytes | None = None
    value: Any = None

    def open(self, client: ModelClient, limits: Limits) -> Any:
        """Check the instance without decoding it. Return what `load` decodes. Raise
        DecodingError."""
        if self.raw is not None:
            return client.codec.open(self.raw, limits)
        client.check_keys(self.value)
        return client.codec.open_json(self.value, limits)

    def load(self, codec: Codec, opened: Any, index: int) -> Any:
        """Decode an opened instance. Raise DecodingError with its place in the request."""
        try:
            return codec.load(opened)
        except DecodingError as err:
            part = codec.part if self.raw is None else ""
            raise self.placed(err, index, part) from err

    def placed(self, error: DecodingError, index: int, part: str = "") -> DecodingError:
        """Return the error with the instance's place in the request."""
        names = (self.field, error.field or part)
        return error.at(index, ".".join(filter(None, names)))


@dataclass(frozen=True)
class Opened:
    """Items that have been opened and will be decoded together. `index` is the position of the
    first one in the request. `mistake` is the error in the next item, if that item could not be
    opened. `memory` is how many bytes decoding the items takes."""

    index: int
    items: Sequence[Item]
    values: list[Any]
    mistake: DecodingError | None
    memory: int


class Decoder:
    """Lets at most `turns` requests decode and preprocess at a time, for each kind of instance.
    Images are decoded in a pool of `threads` threads.

    Other requests wait for their turn, because they would only contend for the GIL. Texts do not
    wait for images, and small images and short texts do not wait for large and long ones.
    """

    def __init__(self, limits: Limits, turns: int = 1, threads: int = 1) -> None:
        self.limits = limits
        self._turns: dict[tuple[str, bool], threading.BoundedSemaphore] = defaultdict(
            lambda: threading.BoundedSemaphore(turns)
        )
        # the threads start at the first use, which is after gunicorn's fork
        self._threads = ThreadPoolExecutor(threads, "decode")

    @contextmanager
    def turn(self, kind: str, is_large: bool, deadline: Deadline) -> Iterator[None]:
        """Wait for a turn to decode instances of one `kind`. Raise TooLate if the deadline passes
        first."""
        turn = self._turns[kind, is_large]
        while not turn.acquire(timeout=deadline.left(LONGEST_WAIT)):
            pass
        try:
            yield
        finally:
            turn.release()

    def decode(self, client: ModelClient, opened: Opened) -> list[Any]:
        """Decode the opened items. Raise the error in the first item that is wrong."""
        codec = client.codec
        loading = zip(opened.items, opened.values, strict=False)
        loads = [
            partial(item.load, codec, value, index)
            for index, (item, value) in enumerate(loading, opened.index)
        ]
        # images; other kinds take hardly any memory
        large = [value for value in opened.values if codec.memory(value) > 0]
        if len(large) > 1:
            # the context contains the request's time limits (budget.check_time)
            futures = [self._threads.submit(copy_context().run, _timed, load) for load in loads]
            # wait even after an error, because the other threads hold memory until they end
            wait(futures)
            try:
                decoded = list(map(Future.result, futures))
            finally:
                # an error's traceback holds this frame, whose futures hold the error: clear them to
                # break the reference cycle
                futures.clear()
            instances = [instance for instance, _ in decoded]
            count_time(sum(seconds for _, seconds in decoded))
        else:
            instances = [load() for load in loads]
        if opened.mistake:
            # raise a copy: the original's traceback would hold this frame, which holds the original
            # (a reference cycle)
            raise copy(opened.mistake)
        return instances

    def open(self, client: ModelClient, index: int, items: Sequence[Item]) -> Opened:
        """Open the first items: at least one, and as many as together take no more memory than the
        largest allowed image, because a small body can contain many large images. `index` is the
        position of the first item in the request."""
        values: list[Any] = []
        memory = 0
        most = most_memory(self.limits.max_image_pixels)
        limits = replace(self.limits, side=client.side)
        for at, item in enumerate(items):
            try:
                value = item.open(client, limits)
            except DecodingError as err:
                mistake = item.placed(err, index + at)
                return Opened(index, items, values, mistake, memory)
            more = client.codec.memory(value)
            if values and memory + more > most:
                break
            values.append(value)
            memory += more
        return Opened(index, items, values, None, memory)


def _timed(load: Callable[[], Any]) -> tuple[Any, float]:
    """Load an instance. Return it, and the processor time in seconds that this took."""
    began = thread_time()
    return load(), thread_time() - began
