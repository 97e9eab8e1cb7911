"""Decodes instances, and limits how many requests do so at a time."""

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
from serving.budget import Deadline, charge_time
from serving.codecs import Codec, Limits
from serving.codecs.image import most_memory
from serving.errors import DecodingError

# Maximum number of seconds between two checks of the deadline while a request waits for its turn.
# The deadline may be infinitely far away, and `acquire` does not accept an infinite timeout.
LONGEST_WAIT = 60.0
# Images count as large if decoding a batch of them takes more than this many bytes of memory, which
# is enough for 2 megapixels.
LARGE = 2**24
# Texts count as long if a batch of them has more characters than this. The tokenizer takes 40 ms
# for 8,192 hash signs.
LONG = 2**13


@dataclass(frozen=True)
class Item:
    """An instance as the caller sent it, and the field that contained it. It is `raw` bytes or, if
    that is None, the JSON value `value`."""

    field: str
    raw: bytes | None = None
    value: Any = None

    def open(self, client: ModelClient, limits: Limits) -> Any:
        """Check the instance, and return the object that `load` decodes. Raise DecodingError if it
        is invalid, and PayloadTooLarge or Overloaded if it takes too much memory."""
        if self.raw is not None:
            return client.codec.open(self.raw, limits)
        client.check_keys(self.value)
        return client.codec.open_json(self.value, limits)

    def load(self, codec: Codec, opened: Any, index: int) -> Any:
        """Decode the opened instance. If it is invalid, raise a DecodingError that contains
        `index`, the position of the instance in the request."""
        try:
            return codec.load(opened)
        except DecodingError as err:
            part = codec.part if self.raw is None else ""
            raise self.placed(err, index, part) from err

    def placed(self, error: DecodingError, index: int, part: str = "") -> DecodingError:
        """Return a copy of `error` that says at which position of the request the instance is, and
        in which field. `part` is the field within the instance, unless `error` names another."""
        names = (self.field, error.field or part)
        return error.at(index, ".".join(filter(None, names)))


@dataclass(frozen=True)
class Opened:
    """The result of opening `items`, to decode them together. `index` is the position of the first
    item in the request. `values` are the opened items, which may be fewer than `items`. If the item
    after them could not be opened, `mistake` is its error. `memory` is how many bytes of memory
    decoding `values` takes."""

    index: int
    items: Sequence[Item]
    values: list[Any]
    mistake: DecodingError | None
    memory: int


class Decoder:
    """Decodes instances. If there are several images, a pool of `threads` threads decodes them.

    At most `turns` of a worker's requests decode and preprocess instances at a time. The others
    wait, because they would only contend for the GIL. This limit applies separately to each kind of
    instance and, within a kind, to large images or long texts. So texts do not wait for images,
    small images do not wait for large ones, and short texts do not wait for long ones.
    """

    def __init__(self, limits: Limits, turns: int = 1, threads: int = 1) -> None:
        self.limits = limits
        self._turns: dict[tuple[str, bool], threading.BoundedSemaphore] = defaultdict(
            lambda: threading.BoundedSemaphore(turns)
        )
        # the pool starts its threads at the first use, which is after gunicorn's fork
        self._threads = ThreadPoolExecutor(threads, "decode")

    @contextmanager
    def turn(self, kind: str, is_large: bool, deadline: Deadline) -> Iterator[None]:
        """Wait until this request may decode instances of this `kind` and size. It may do so until
        the `with` block ends. Raise TooLate if the deadline passes first."""
        turns = self._turns[kind, is_large]
        while not turns.acquire(timeout=deadline.left(LONGEST_WAIT)):
            pass
        try:
            yield
        finally:
            turns.release()

    def decode(self, client: ModelClient, opened: Opened) -> list[Any]:
        """Decode the opened items. Raise the error of the first item that is wrong."""
        codec = client.codec
        pairs = zip(opened.items, opened.values, strict=False)
        loads = [
            partial(item.load, codec, value, index)
            for index, (item, value) in enumerate(pairs, opened.index)
        ]
        # a codec's `memory` returns more than 0 only for images
        images = [value for value in opened.values if codec.memory(value) > 0]
        if len(images) > 1:
            # copy the context, because it contains the request's time limits (budget.check_time)
            futures = [self._threads.submit(copy_context().run, _timed, load) for load in loads]
            # wait even after an error, because the other threads hold memory until they end
            wait(futures)
            try:
                decoded = list(map(Future.result, futures))
            finally:
                # An error's traceback refers to this frame, whose futures refer to the error. Break
                # this reference cycle.
                futures.clear()
            instances = [instance for instance, _ in decoded]
            charge_time(sum(seconds for _, seconds in decoded))
        else:
            instances = [load() for load in loads]
        if opened.mistake:
            # Raise a copy. The traceback of the original would refer to this frame, which refers to
            # the original: a reference cycle.
            raise copy(opened.mistake)
        return instances

    def open(
        self, client: ModelClient, index: int, items: Sequence[Item], *, full_size: bool = False
    ) -> Opened:
        """Open items until one is invalid, or until decoding them together would take more memory
        than the largest allowed image. The limit is necessary because a small body can contain
        many large images. `index` is the position of the first item in the request. If
        `full_size` is true, JPEGs are not reduced."""
        values: list[Any] = []
        memory = 0
        most = most_memory(self.limits.max_image_pixels)
        limits = self.limits if full_size else replace(self.limits, side=client.side)
        for position, item in enumerate(items, index):
            try:
                value = item.open(client, limits)
            except DecodingError as err:
                mistake = item.placed(err, position)
                return Opened(index, items, values, mistake, memory)
            more = client.codec.memory(value)
            if values and memory + more > most:
                break
            values.append(value)
            memory += more
        return Opened(index, items, values, None, memory)


def _timed(load: Callable[[], Any]) -> tuple[Any, float]:
    """Call `load`, which decodes an instance. Return the instance, and the seconds of processor
    time that decoding it took."""
    began = thread_time()
    return load(), thread_time() - began
