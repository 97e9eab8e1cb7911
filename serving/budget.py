"""What one request may take, decided before work is done for it: the limits, with their reasons,
and its Deadline.

Limits without a setting are far beyond what callers send. docs/security.md has the table of all of
them.
"""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from threading import get_ident
from time import monotonic, thread_time
from typing import Any, TypeVar

import msgspec

from serving.errors import PayloadTooLarge, TooLate
from serving.named_value import MOST_NAMES as MOST_NAMES
from serving.room import SHORT, SMALL_JSON, WRITTEN, Parts, Room, json_objects, json_parts, reserve

Item = TypeVar("Item")

# lists, objects and strings of a document: 60 to 120 bytes each as Python objects
MOST_JSON_PARTS = 2_000_000
# of a body that is not JSON lines: no model answers as many within a minute
MOST_INSTANCES = 100_000
MOST_STRINGS = 1_000_000  # of a tensor: four bytes each in a body, about 60 as a Python object
MOST_CELLS = 100_000  # of a row of CSV: a cell is a Python string of about 50 bytes
# keys, inputs, outputs or parameters of a tensor request: models have at most a few hundred
MOST_NAMED = 2_048
MOST_DETECTIONS = 1_000  # of an image: end-to-end networks give 300, COCO counts 100
MOST_DIMENSIONS = 32  # of numpy 1, and of Triton's Python backend
MOST_ROWS = 1_000  # that a client makes of one instance: BERT-base needs a minute for them
# characters of an instance: of all documents of a query, or of the query, or a template with its
# label, once for each; hash signs, which take the longest, are read at 200,000 a second
MOST_MADE = 2**22
MOST_MEMBERS = 10_000  # of a gzip file: bgzip, which writes the most, makes 400 for 25 MB
MOST_PARTS = 1_000  # files and fields of a form: werkzeug's own default
MOST_FIELD = 2**22  # bytes of a field of a form, which becomes text; a file may be larger
MOST_HEADERS = 16 * 1024  # bytes of a part of a form: as many as nginx allows of two headers
# JSON of a reply to the largest body: short texts become embeddings of 100 times their length
OUTPUT_FACTOR = 10
LOOK_EACH = 1_000  # items between two looks at the deadline
# A request may take one of so many parts of its time from the front's processor, 8 s by default,
# and another second for each so many bytes of its body as it was sent: 200,000 short JSON lines,
# which are 5 MB, take 8 s.
PROCESSOR_PART = 8
PROCESSOR_BYTES = 1_000_000


@dataclass(frozen=True)
class Budget:
    """The limit that a setting changes: the bytes of a body, and of what it unpacks to
    (SERVE_MAX_BODY_MB)."""

    body_bytes: int = 25 * 2**20

    def check_output(self, size: int) -> None:
        """Raise PayloadTooLarge if the JSON of a reply in one piece is longer than `OUTPUT_FACTOR`
        bodies."""
        most = OUTPUT_FACTOR * self.body_bytes
        if size > most:
            raise PayloadTooLarge(
                f"the answer is longer than {most} bytes of JSON: ask for binary outputs or "
                "a stream, send less at a time, or raise SERVE_MAX_BODY_MB (the limit is "
                f"{OUTPUT_FACTOR} times that)"
            )

    def grow(self, answer: Room, size: int) -> None:
        """Let an answer that is written piece by piece become `size` bytes. Raise PayloadTooLarge,
        Overloaded."""
        self.check_output(size)
        answer.grow(WRITTEN * size, "the answer")


def check_count(count: int, most: int, unit: str, remedy: str = "send fewer at a time") -> None:
    """Raise PayloadTooLarge if there are more."""
    if count > most:
        raise PayloadTooLarge(f"{count} {unit}, and at most {most} can be in one request: {remedy}")


def read_json(data: bytes) -> Any:
    """Return the value of a JSON text. Raise ValueError, or PayloadTooLarge before the text is
    read."""
    try:
        with json_turn(data):
            return msgspec.json.decode(data)
    except RecursionError as err:
        raise ValueError(str(err)) from err


def admit_json(data: bytes, takes: Callable[[Parts], int] = json_objects) -> Room:
    """Reserve what a JSON text takes until the request ends. Raise PayloadTooLarge if it would
    become too many objects, or too much for one request; Overloaded."""
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


LONG_JSON = 2**18  # bytes of a text whose reading takes a millisecond or more
# a large text is read while no other is: meanwhile no other thread of the worker runs
_READING = threading.Lock()


@contextmanager
def json_turn(data: bytes) -> Iterator[None]:
    """Admit a JSON text, and wait for its turn to be read if it is large."""
    admit_json(data)
    if len(data) <= LONG_JSON:
        yield
        return
    with _READING:
        yield


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
    """The time that a request may still take: until its deadline, and of processor time.
    `processor` is on the clock time.thread_time() of its own thread, which is not asked before
    `earliest` on time.monotonic()'s: it takes the kernel, and cannot have run faster."""

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
# the request's that this thread works for; copied into the threads that decode for it
_ALLOWANCE: ContextVar[Allowance] = ContextVar("allowance", default=UNLIMITED)


def allow_time(deadline: Deadline, seconds: float = math.inf, sent: int = 0) -> None:
    """Give this thread's request until the deadline, and processor time: a part of `seconds`, and
    more for a body of which many bytes were `sent`."""
    share = seconds / PROCESSOR_PART + sent / PROCESSOR_BYTES
    _ALLOWANCE.set(Allowance(deadline, thread_time() + share, monotonic() + share, get_ident()))


def allow_any_time() -> None:
    """Let this thread work for as long as it takes, for no request."""
    _ALLOWANCE.set(UNLIMITED)


def check_time() -> None:
    """Raise TooLate when the time of this thread's request is over. Every loop over a caller's data
    asks it, at least once a second."""
    _ALLOWANCE.get().check()


def count_time(seconds: float) -> None:
    """Count the processor time that other threads have taken for this thread's request."""
    own = _ALLOWANCE.get()
    earliest = own.earliest - seconds
    _ALLOWANCE.set(replace(own, processor=own.processor - seconds, earliest=earliest))


def in_time(items: Iterable[Item], each: int = LOOK_EACH) -> Iterator[Item]:
    """Yield the items. Raise TooLate when the request's time is over, which is looked at once for
    `each` items."""
    for number, item in enumerate(items):
        if number % each == 0:
            check_time()
        yield item
