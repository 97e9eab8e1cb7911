"""Limits how much data, memory and time one request may use. Limits on data and memory are checked
before the work begins, and limits on time during the work.

Limits that no setting changes are far above what callers usually send. docs/security.md has a table
of all limits.
"""

import math
import re
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
from serving.named_value import MOST_NAMES as MOST_NAMES  # listed here with the other limits
from serving.request_memory import (
    SHORT,
    SMALL_JSON,
    WRITTEN,
    Parts,
    Reservation,
    json_parts,
    msgspec_memory,
    reserve,
)

Item = TypeVar("Item")
NOT_FINITE = re.compile(rb"NaN|Infinity")  # as Python's json.dumps writes them

# The maximum number of lists, objects and strings in a JSON text. Each takes about 60 to 200 bytes
# as a Python object.
MOST_JSON_PARTS = 2_000_000
# The maximum number of instances in a list, or of rows in a table. Bodies that are answered with
# lines may contain more in total.
MOST_INSTANCES = 100_000
# The maximum number of strings in a tensor. Each takes as little as 3 bytes of the body, but about
# 300 bytes of memory (request_memory.py).
MOST_STRINGS = 1_000_000
MOST_CELLS = 100_000  # cells in a row of CSV or LibSVM; each becomes a string of about 50 bytes
# The maximum number of keys, inputs, outputs or parameters in a tensor request. Models have at most
# a few hundred.
MOST_NAMED = 2_048
# The maximum number of detections to return for an image. End-to-end networks return 300, and
# COCO's metric counts 100.
MOST_DETECTIONS = 1_000
MOST_DIMENSIONS = 32  # dimensions of a tensor; NumPy 1 and Triton's Python backend support no more
# The maximum number of rows that a client makes from one instance, or from a batch of texts.
# BERT-base needs a minute for 1,000 rows.
MOST_ROWS = 1_000
# The maximum number of characters that a client makes from one instance: the documents of a query,
# the query repeated for each document, or the template repeated for each label. The slowest text to
# tokenize consists of hash signs, at 200,000 characters a second.
MOST_MADE = 2**22
MOST_MEMBERS = 10_000  # members of a gzip file; bgzip, which writes the most, makes 400 for 25 MB
MOST_PARTS = 1_000  # files and fields in a form; werkzeug has the same default
MOST_FIELD = 2**22  # bytes of one form field, which is decoded to text; a file may be larger
# The maximum size in bytes of the headers in one part of a form, as much as nginx allows for two
# headers.
MOST_HEADERS = 16 * 1024
# The maximum size of a JSON reply, as a multiple of the maximum body size. It is more than 1,
# because a short text becomes an embedding that is 100 times as long.
OUTPUT_FACTOR = 10
CHECK_EVERY = 1_000  # items between two checks of the time that the request has left
AT_ONCE = 2**15  # numbers that are converted in one call, which takes about a millisecond
# In the Flask app, a request may use 1 / PROCESSOR_PART of the time limit for Triton as processor
# time (6.75 s by default), plus one second for each PROCESSOR_BYTES of its body as sent. 200,000
# short JSON lines (5 MB) take 8 s.
PROCESSOR_PART = 8
PROCESSOR_BYTES = 1_000_000


@dataclass(frozen=True)
class Budget:
    """The limit that SERVE_MAX_BODY_MB sets: how many bytes a body may have, both as sent and
    decompressed."""

    body_bytes: int = 25 * 2**20

    def check_output(self, size: int) -> None:
        """Raise PayloadTooLarge if `size`, the bytes of a reply in one piece or of a line of a
        stream, is more than OUTPUT_FACTOR * `body_bytes`."""
        most = OUTPUT_FACTOR * self.body_bytes
        if size > most:
            raise PayloadTooLarge(
                f"the answer is longer than {most} bytes of JSON: ask for binary outputs or "
                "a stream, send less at a time, or raise SERVE_MAX_BODY_MB (the limit is "
                f"{OUTPUT_FACTOR} times that)"
            )

    def grow(self, answer: Reservation, size: int) -> None:
        """Increase `answer`, the reservation for a reply that is written piece by piece, because
        the reply now has `size` bytes. Raise PayloadTooLarge or Overloaded."""
        self.check_output(size)
        answer.grow(WRITTEN * size, "the answer")


def check_count(count: int, most: int, unit: str, remedy: str = "send fewer at a time") -> None:
    """Raise PayloadTooLarge if `count` is greater than `most`. In its message, `unit` names the
    things that are counted, and `remedy` says what to do."""
    if count > most:
        raise PayloadTooLarge(f"{count} {unit}, and at most {most} can be in one request: {remedy}")


def read_json(data: bytes) -> Any:
    """Parse a JSON text. Raise ValueError if it is invalid. Raise PayloadTooLarge or Overloaded,
    without parsing it, if it has too many parts or would take too much memory."""
    try:
        with json_turn(data):
            return msgspec.json.decode(data)
    except RecursionError as err:
        raise ValueError(str(err)) from err
    except msgspec.DecodeError as err:
        raise ValueError(json_mistake(err, data)) from err


def json_mistake(err: Exception, data: bytes, hint: str = "") -> str:
    """Return msgspec's message for an invalid JSON text, followed by `hint` or, if the mistake is
    NaN or Infinity, by what to send instead."""
    byte = re.search(r"invalid character \(byte (\d+)\)", str(err))
    if byte and NOT_FINITE.match(data, int(byte[1])):
        hint = (
            "; NaN and Infinity are not JSON: send null for a missing value in a table, or tensors "
            "as binary data"
        )
    return f"{err}{hint}"


def admit_json(data: bytes, estimate: Callable[[Parts], int] = msgspec_memory) -> Reservation:
    """Reserve the memory that a JSON text takes once it is parsed. `estimate` is called only if the
    text is longer than SMALL_JSON. Raise PayloadTooLarge if the text has too many parts or needs
    more memory than one request may use, and Overloaded if other requests hold the memory."""
    if len(data) <= SMALL_JSON:
        return reserve(SHORT * len(data), "the JSON of the body")
    parts = json_parts(data)
    check_count(
        parts.objects + parts.lists + parts.strings,
        MOST_JSON_PARTS,
        "lists, objects and strings of JSON",
        "send fewer at a time, or binary tensors",
    )
    return reserve(estimate(parts), "the JSON of the body")


LONG_JSON = 2**18  # bytes; parsing a longer text takes more than a millisecond
# Lets only one thread of a worker at a time parse a long text, parse a line, or write many numbers.
# Each of these holds the GIL. If many threads did them at once, the worker's other threads would
# have to wait for all of them: 0.1 s for twenty requests with long lines. The lock is reentrant,
# because read_json takes it again for a long line.
TURN = threading.RLock()


def turn(length: int) -> AbstractContextManager[Any]:
    """Return the lock to hold while parsing `length` bytes of text, or writing `length` numbers.
    For a small `length`, return a context that does nothing."""
    return TURN if length > LONG_JSON else nullcontext()


def json_turn(data: bytes) -> AbstractContextManager[Any]:
    """Reserve memory for a JSON text until the request leaves its slot, and return the lock to hold
    while parsing the text. Raise PayloadTooLarge or Overloaded."""
    admit_json(data)
    return turn(len(data))


@dataclass(frozen=True)
class Deadline:
    """The moment at which the caller stops waiting, on the clock of time.monotonic(). Work is
    dropped if it is not done by then."""

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

    The processor time is used up when time.thread_time(), in the request's own `thread`, reaches
    `processor`. Reading that clock is a system call, so it is not read before `earliest`
    (time.monotonic()): a thread cannot use processor time faster than real time passes.
    """

    deadline: Deadline = NEVER
    processor: float = math.inf
    earliest: float = math.inf
    thread: int = 0

    def check(self) -> None:
        """Raise TooLate when the deadline has passed or, in the request's own `thread`, when the
        processor time is used up."""
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
# The time limits of the request that this thread works for. The threads that decode the request's
# images get a copy.
_ALLOWANCE: ContextVar[Allowance] = ContextVar("allowance", default=UNLIMITED)


def allow_time(deadline: Deadline, seconds: float = math.inf, sent: int = 0) -> None:
    """Set the time limits of this thread's request: its deadline, and its processor time, which is
    a fixed part of `seconds` plus an amount for each of the `sent` bytes."""
    share = seconds / PROCESSOR_PART + sent / PROCESSOR_BYTES
    allowance = Allowance(
        deadline, processor=thread_time() + share, earliest=monotonic() + share, thread=get_ident()
    )
    _ALLOWANCE.set(allowance)


def allow_any_time() -> None:
    """Remove the time limits of this thread, because it no longer works for a request."""
    _ALLOWANCE.set(UNLIMITED)


def check_time() -> None:
    """Raise TooLate if this thread's request has no time left. Every loop over a caller's data must
    call this at least once a second."""
    _ALLOWANCE.get().check()


def seconds_left(most: float) -> float:
    """Return the seconds that this thread's request has left, at most `most`. Raise TooLate when
    none are left."""
    return _ALLOWANCE.get().deadline.left(most)


def charge_time(seconds: float) -> None:
    """Charge this thread's request for processor time that other threads have spent on it."""
    own = _ALLOWANCE.get()
    earliest = own.earliest - seconds
    _ALLOWANCE.set(replace(own, processor=own.processor - seconds, earliest=earliest))


def in_time(items: Iterable[Item], every: int = CHECK_EVERY) -> Iterator[Item]:
    """Yield the items. Before the first of every `every` items, check the time that the request has
    left, and raise TooLate if there is none."""
    for number, item in enumerate(items):
        if number % every == 0:
            check_time()
        yield item


def portions(items: Iterable[Item]) -> Iterator[list[Item]]:
    """Yield the items in lists of at most AT_ONCE, because a call that reads all of them would hold
    the GIL for too long. Before each list, check the time that the request has left, and raise
    TooLate if there is none."""
    rest = iter(items)
    while portion := list(islice(rest, AT_ONCE)):
        check_time()
        yield portion
