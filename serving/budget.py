"""The limits on what one request may use, checked before the work is done, and the request's
Deadline.

Limits without a setting are far above what callers send. docs/security.md has a table of all
limits.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, replace
from itertools import islice
from threading import get_ident
from time import monotonic, thread_time
from typing import Any, TypeVar

import msgspec

from serving.errors import PayloadTooLarge, TooLate
from serving.named_value import MOST_NAMES as MOST_NAMES
from serving.request_memory import (
    SHORT,
    SMALL_JSON,
    WRITTEN,
    Parts,
    Reservation,
    json_objects,
    json_parts,
    reserve,
)

Item = TypeVar("Item")

# lists, objects and strings in a JSON text: each takes 60 to 120 bytes as a Python object
MOST_JSON_PARTS = 2_000_000
# instances in a body other than JSON lines: no model answers that many within a minute
MOST_INSTANCES = 100_000
# strings in a tensor: each takes at least 4 bytes in the body and about 60 as a Python object
MOST_STRINGS = 1_000_000
MOST_CELLS = 100_000  # cells in a row of CSV: each becomes a Python string of about 50 bytes
# keys, inputs, outputs or parameters in a tensor request: models have at most a few hundred
MOST_NAMED = 2_048
# detections in an image: end-to-end networks return 300, and COCO's metric counts 100
MOST_DETECTIONS = 1_000
MOST_DIMENSIONS = 32  # dimensions of a tensor: NumPy 1 and Triton's Python backend support no more
# rows that a client makes from one instance: BERT-base needs a minute for that many
MOST_ROWS = 1_000
# Characters that a client makes from one instance: the documents of a query, the query repeated for
# each document, or the template repeated for each label. The slowest text, hash signs, is tokenized
# at 200,000 characters a second.
MOST_MADE = 2**22
MOST_MEMBERS = 10_000  # members of a gzip file: bgzip, which writes the most, makes 400 for 25 MB
MOST_PARTS = 1_000  # files and fields in a form: werkzeug's default
MOST_FIELD = 2**22  # bytes of one form field, which is decoded to text; a file may be larger
# bytes of headers in one part of a form: as many as nginx allows for two headers
MOST_HEADERS = 16 * 1024
# The maximum JSON of a reply, as a multiple of the maximum body. It is more than 1, because short
# texts become embeddings that are 100 times as long.
OUTPUT_FACTOR = 10
LOOK_EACH = 1_000  # items between checks of the deadline
AT_ONCE = 2**15  # numbers that one call reads or writes, in about a millisecond
# A request may use 1 / PROCESSOR_PART of the time limit for Triton (6.75 s by default) as processor
# time in the front, plus one second for each PROCESSOR_BYTES of its body as sent. 200,000 short
# JSON lines (5 MB) take 8 s.
PROCESSOR_PART = 8
PROCESSOR_BYTES = 1_000_000


@dataclass(frozen=True)
class Budget:
    """The limit that SERVE_MAX_BODY_MB sets: the size of a body in bytes, both as sent and
    unpacked."""

    body_bytes: int = 25 * 2**20

    def check_output(self, size: int) -> None:
        """Raise PayloadTooLarge if a reply in one piece has more than OUTPUT_FACTOR * `body_bytes`
        bytes of JSON."""
        most = OUTPUT_FACTOR * self.body_bytes
        if size > most:
            raise PayloadTooLarge(
                f"the answer is longer than {most} bytes of JSON: ask for binary outputs or "
                "a stream, send less at a time, or raise SERVE_MAX_BODY_MB (the limit is "
                f"{OUTPUT_FACTOR} times that)"
            )

    def grow(self, answer: Reservation, size: int) -> None:
        """Reserve memory for an answer that is written piece by piece and now has `size` bytes.
        Raise PayloadTooLarge or Overloaded."""
        self.check_output(size)
        answer.grow(WRITTEN * size, "the answer")


def check_count(count: int, most: int, unit: str, remedy: str = "send fewer at a time") -> None:
    """Raise PayloadTooLarge if `count` is greater than `most`."""
    if count > most:
        raise PayloadTooLarge(f"{count} {unit}, and at most {most} can be in one request: {remedy}")


def read_json(data: bytes) -> Any:
    """Parse a JSON text. Raise ValueError if it is invalid. Raise PayloadTooLarge or Overloaded
    before parsing it."""
    try:
        with json_turn(data):
            return msgspec.json.decode(data)
    except RecursionError as err:
        raise ValueError(str(err)) from err


def admit_json(data: bytes, takes: Callable[[Parts], int] = json_objects) -> Reservation:
    """Reserve, until the request ends, the memory that a JSON text takes once it is parsed. Raise
    PayloadTooLarge if it has too many parts or exceeds one request's share, and Overloaded if other
    requests hold the memory."""
    if len(data) <= SMALL_JSON:
        return reserve(SHORT * len(data), "the JSON of the body")
    parts = json_parts(data)
    check_count(
        parts.objects + parts.lists + parts.strings,
        MOST_JSON_PARTS,
        "lists, objects and strings of JSON",
        "send fewer at a time, or binary tensors",
    )
    return reserve(takes(parts), "the JSON of the body")


LONG_JSON = 2**18  # bytes of a text whose parsing takes a millisecond or more
# Held while a thread parses a text that long, parses a line, or writes many numbers, so that only
# one thread of a worker does so at a time. Such a thread holds the GIL. If several did so at once,
# all other threads would wait for all of them: 0.1 s for twenty requests with long lines.
TURN = threading.RLock()


def turn(length: int) -> AbstractContextManager[Any]:
    """Return the lock to hold while parsing `length` bytes of text, or writing `length` numbers.
    For a small `length`, return one that never blocks."""
    return TURN if length > LONG_JSON else nullcontext()


def json_turn(data: bytes) -> AbstractContextManager[Any]:
    """Reserve memory for a JSON text, and return the lock to hold while parsing it."""
    admit_json(data)
    return turn(len(data))


@dataclass(frozen=True)
class Deadline:
    """When the caller stops waiting, on time.monotonic()'s clock. Work past that moment is
    dropped."""

    end: float = math.inf

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(monotonic() + seconds)

    def left(self, most: float = math.inf) -> float:
        """Return the seconds left, at most `most`. Raise TooLate when none are left."""
        seconds = min(most, self.end - monotonic())
        if seconds <= 0:
            raise TooLate(
                "the request waited for its turn until its time was over: send fewer "
                "requests at once, serve on more or larger machines, or raise SERVE_REQUEST_TIMEOUT"
            )
        return seconds


NEVER = Deadline()


@dataclass(frozen=True)
class Allowance:
    """The time limits of a request: its deadline, and a limit on its processor time.

    `processor` is when the processor time is used up, on the time.thread_time() clock of the
    request's own `thread`. Reading that clock is a system call, so it is not read before `earliest`
    (time.monotonic()): processor time cannot pass faster than real time.
    """

    deadline: Deadline = NEVER
    processor: float = math.inf
    earliest: float = math.inf
    thread: int = 0

    def check(self) -> None:
        """Raise TooLate when the deadline has passed or the processor time is used up."""
        self.deadline.left()
        if monotonic() < self.earliest or get_ident() != self.thread:
            return
        if thread_time() > self.processor:
            raise TooLate(
                "the request took its share of the processor's time: send less at a time, or "
                f"raise SERVE_REQUEST_TIMEOUT (the share is a {PROCESSOR_PART}th of it, and a "
                "second for each MB that was sent)"
            )


UNLIMITED = Allowance()
# the time limits of the request that this thread works for; copied into the threads that decode its
# images
_ALLOWANCE: ContextVar[Allowance] = ContextVar("allowance", default=UNLIMITED)


def allow_time(deadline: Deadline, seconds: float = math.inf, sent: int = 0) -> None:
    """Set the limits of this thread's request: its deadline, and its processor time, which is a
    share of `seconds` plus an amount for the bytes that were `sent`."""
    share = seconds / PROCESSOR_PART + sent / PROCESSOR_BYTES
    _ALLOWANCE.set(Allowance(deadline, thread_time() + share, monotonic() + share, get_ident()))


def allow_any_time() -> None:
    """Remove the time limits of this thread, which no longer works for a request."""
    _ALLOWANCE.set(UNLIMITED)


def check_time() -> None:
    """Raise TooLate when this thread's request has no time left. Every loop over a caller's data
    calls this at least once a second."""
    _ALLOWANCE.get().check()


def seconds_left(most: float) -> float:
    """Return the seconds that this thread's request has left, at most `most`. Raise TooLate when
    none are left."""
    return _ALLOWANCE.get().deadline.left(most)


def count_time(seconds: float) -> None:
    """Charge this thread's request for processor time that other threads have spent on it."""
    own = _ALLOWANCE.get()
    earliest = own.earliest - seconds
    _ALLOWANCE.set(replace(own, processor=own.processor - seconds, earliest=earliest))


def in_time(items: Iterable[Item], each: int = LOOK_EACH) -> Iterator[Item]:
    """Yield the items. Check the request's time before every `each` items, and raise TooLate when
    none is left."""
    for number, item in enumerate(items):
        if number % each == 0:
            check_time()
        yield item


def portions(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items in lists of AT_ONCE, because a call that reads all of them would hold the GIL
    for too long. Check the request's time before each list, and raise TooLate when none is left."""
    rest = iter(items)
    while portion := list(islice(rest, AT_ONCE)):
        check_time()
        yield portion
