"""Decodes instances, of few requests at a time."""

import threading
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from clients.base import ModelClient
from serving.budget import Deadline
from serving.codecs import Codec, Limits
from serving.codecs.image import most_memory
from serving.errors import DecodingError

LONGEST_WAIT = 60.0  # seconds; then it looks at the deadline again


@dataclass(frozen=True)
class Item:
    """One instance as it came: raw bytes or a JSON value, and the field that held it."""

    field: str
    raw: bytes | None = None
    value: Any = None

    def open(self, client: ModelClient, limits: Limits) -> Any:
        """Return the checked but not yet decoded instance, which `load` decodes. Raise
        DecodingError."""
        if self.raw is not None:
            return client.codec.open(self.raw, limits)
        client.check_keys(self.value)
        return client.codec.open_json(self.value, limits)

    def load(self, codec: Codec, opened: Any, index: int) -> Any:
        """Return the instance. Raise DecodingError with its place in the request."""
        try:
            return codec.load(opened)
        except DecodingError as err:
            part = codec.part if self.raw is None else ""
            raise self.placed(err, index, part) from err

    def placed(self, error: DecodingError, index: int, part: str = "") -> DecodingError:
        """Return the error with its place in the request."""
        names = (self.field, error.field or part)
        return error.at(index, ".".join(filter(None, names)))


class Decoder:
    """At most `turns` requests decode and preprocess at a time, for each kind of instance, their
    images in `threads`.

    The bound keeps memory and the interpreter's lock free of a crowd: the other requests wait for
    their turn. A text does not wait behind images.
    """

    def __init__(self, limits: Limits, turns: int = 1, threads: int = 1) -> None:
        self.limits = limits
        self._turns: dict[str, threading.BoundedSemaphore] = defaultdict(
            lambda: threading.BoundedSemaphore(turns)
        )
        # starts them at first use, that is after gunicorn's fork
        self._threads = ThreadPoolExecutor(threads, "decode")

    def wait_for_turn(self, kind: str, deadline: Deadline) -> threading.BoundedSemaphore:
        """Return the turn, which the caller releases. Raise TooLate if the deadline passes
        before."""
        turn = self._turns[kind]
        while not turn.acquire(timeout=deadline.left(LONGEST_WAIT)):
            pass
        return turn

    def decode(self, client: ModelClient, first: int, items: Sequence[Item]) -> list[Any]:
        """Return the instances of as many items as `_open` takes. Of several mistakes, raise that
        of the first item."""
        codec = client.codec
        opened, mistake = self._open(client, first, items)
        loads = [
            partial(item.load, codec, value, first + at)
            for at, (item, value) in enumerate(zip(items, opened, strict=False))
        ]
        # images; other kinds take no memory worth counting
        large = [value for value in opened if codec.memory(value) > 0]
        if len(large) > 1:
            # the context has the request's time (budget.check_time)
            futures = [self._threads.submit(copy_context().run, load) for load in loads]
            wait(futures)  # even after an error, because the others take memory until they end
            instances = [future.result() for future in futures]
        else:
            instances = [load() for load in loads]
        if mistake:
            raise mistake
        return instances

    def _open(
        self, client: ModelClient, first: int, items: Sequence[Item]
    ) -> tuple[list[Any], DecodingError | None]:
        """Return as many of the items, at least one, as take together no more memory than the
        largest image may: a small body can hold many large images. Return too the mistake in the
        next item, if there is one."""
        opened: list[Any] = []
        left = most_memory(self.limits.max_image_pixels)
        limits = replace(self.limits, side=client.side) if client.side else self.limits
        for at, item in enumerate(items):
            try:
                value = item.open(client, limits)
            except DecodingError as err:
                mistake = item.placed(err, first + at)
                mistake.__cause__ = err
                return opened, mistake
            left -= client.codec.memory(value)
            if opened and left < 0:
                break
            opened.append(value)
        return opened, None
