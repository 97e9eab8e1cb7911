"""A request's items become instances: as many as fit into memory together, decoded side by side."""

import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from clients.base import ModelClient
from serving.budget import Deadline
from serving.codecs import Codec, Limits
from serving.codecs.image import most_memory
from serving.errors import DecodingError

Result = TypeVar("Result")
LONGEST_WAIT = 60.0  # seconds; then it looks at the deadline again


@dataclass(frozen=True)
class Item:
    """One instance as it came: raw bytes or a JSON value, and the field that held it."""

    field: str
    raw: bytes | None = None
    value: Any = None

    def open(self, client: ModelClient, limits: Limits, index: int) -> Any:
        """What `load` makes the instance of; raises DecodingError with its place."""
        with self._placed(index):
            if self.raw is not None:
                return client.codec.open(self.raw, limits)
            client.check_keys(self.value)
            return client.codec.open_json(self.value, limits)

    def load(self, codec: Codec, opened: Any, index: int) -> Any:
        """The instance; raises DecodingError with its place."""
        with self._placed(index, codec.part if self.raw is None else ""):
            return codec.load(opened)

    @contextmanager
    def _placed(self, index: int, part: str = "") -> Iterator[None]:
        try:
            yield
        except DecodingError as err:
            path = [name for name in (self.field, err.field or part) if name]
            raise err.at(index, ".".join(path)) from err


class Decoder:
    """`turns` requests decode and preprocess at a time, of each kind of instance, their images in `threads`.

    The bound keeps memory and the interpreter's lock free of a crowd: the rest waits for its turn. A text does not
    wait behind images.
    """

    def __init__(self, limits: Limits, turns: int = 1, threads: int = 1) -> None:
        self.limits = limits
        self._turns: dict[str, threading.BoundedSemaphore] = defaultdict(lambda: threading.BoundedSemaphore(turns))
        self._threads = ThreadPoolExecutor(threads, "decode")  # starts them at first use, that is after gunicorn's fork

    @contextmanager
    def turn(self, kind: str, deadline: Deadline) -> Iterator[None]:
        """Raises TooLate when the request's time is over before its turn."""
        turns = self._turns[kind]
        while not turns.acquire(timeout=deadline.left(LONGEST_WAIT)):
            pass
        try:
            yield
        finally:
            turns.release()

    def decode(self, client: ModelClient, first: int, items: Sequence[Item]) -> list[Any]:
        """As many of the items as `_open` takes; of several mistakes that of the first instance is told."""
        opened, mistake = self._open(client, first, items)
        loads = [
            partial(item.load, client.codec, each, first + at)
            for at, (item, each) in enumerate(zip(items, opened, strict=False))
        ]
        images = sum(client.codec.memory(each) > 0 for each in opened)
        instances = self._at_once(loads) if images > 1 else [load() for load in loads]
        if mistake:
            raise mistake
        return instances

    def _open(self, client: ModelClient, first: int, items: Sequence[Item]) -> tuple[list[Any], DecodingError | None]:
        """As many of the items, at least one, as take together no more memory than the largest image may: a small
        body can hold many large images. With the mistake that ended it, if one did."""
        opened: list[Any] = []
        left = most_memory(self.limits.max_image_pixels)
        limits = replace(self.limits, side=client.side)
        for at, item in enumerate(items):
            try:
                one = item.open(client, limits, first + at)
            except DecodingError as err:
                return opened, err
            left -= client.codec.memory(one)
            if opened and left < 0:
                break
            opened.append(one)
        return opened, None

    def _at_once(self, loads: Sequence[Callable[[], Result]]) -> list[Result]:
        """The results in their order, or the first error, once all have ended: what goes on would take memory."""
        futures = [self._threads.submit(load) for load in loads]
        wait(futures)
        return [future.result() for future in futures]
