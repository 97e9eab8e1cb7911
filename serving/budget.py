"""What one request may take, decided before work is done for it. Every figure stands here, with its reason.

What has no setting is far beyond what callers send, and bounds what a small body can make of itself. docs/errors.md has
the table. How long a request may take is its Deadline, which every loop over a caller's data looks at. What all
requests may take together is in front/admission.py.
"""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from time import monotonic
from typing import Any, TypeVar

import numpy as np
import orjson

from serving.errors import PayloadTooLarge, TooLate

Each = TypeVar("Each")

# Of lists, objects and strings in one JSON document: Python takes some 60 to 120 bytes for one, however short it is.
# 25 MB of them would be 700 MB and more; of numbers, which are not counted, 25 MB are 250 MB at most.
MOST_JSON_PARTS = 2_000_000
# In one body, JSON or form: no model answers as many within a minute; JSON lines are read one by one.
MOST_INSTANCES = 100_000
# Of strings in a tensor: each takes four bytes in a body and about 60 as a Python object, here and in Python models.
MOST_STRINGS = 1_000_000
# In one row of CSV: a cell is a Python string of about 50 bytes. Tables have at most some thousands of columns.
MOST_CELLS = 100_000
# Of inputs, of outputs, of parameters, that a tensor request names: models have at most a few hundred.
MOST_NAMED = 10_000
# numpy 1 has no more, nor has Triton's Python backend.
MOST_DIMENSIONS = 32
# That a client makes of one instance: documents with a query, windows of a long text. BERT-base needs a minute for so
# many.
MOST_ROWS = 1_000
# Characters that a client makes of a query with each of its documents, or of a template with each of its labels.
MOST_MADE = 2**22
# Of a gzip file: bgzip, which writes the most, makes one of 64 kB of data, so 400 for 25 MB.
MOST_MEMBERS = 10_000
# Of a form, files and fields: werkzeug's own default.
MOST_PARTS = 1_000
# JSON of a reply to the largest body: a list of short texts becomes embeddings of 100 times its length.
OUTPUT_FACTOR = 10
# Items between two looks at the deadline, where one takes microseconds.
LOOK_EACH = 1_000
# Bytes that are looked at together: they stay in the processor's cache.
PIECE = 64 * 1024


@dataclass(frozen=True)
class Budget:
    """The figures that settings change.

    body_bytes    of a body, and of what it unpacks to (SERVE_MAX_BODY_MB)
    image_pixels  of an image, and about of all that are decoded together
    """

    body_bytes: int = 25 * 2**20
    image_pixels: int = 89_000_000

    @property
    def output_bytes(self) -> int:
        """Of what is written as JSON in a reply in one piece. Binary outputs and streams are not written anew."""
        return OUTPUT_FACTOR * self.body_bytes

    def check_output(self, size: int) -> None:
        """Raises PayloadTooLarge."""
        if size > self.output_bytes:
            raise PayloadTooLarge(
                f"the answer is longer than {self.output_bytes} bytes of JSON: ask for binary outputs or a stream, "
                f"send less at a time, or raise SERVE_MAX_BODY_MB (the limit is {OUTPUT_FACTOR} times that)"
            )


def check_count(count: int, most: int, what: str, remedy: str = "send fewer at a time") -> None:
    """Raises PayloadTooLarge where there are more."""
    if count > most:
        raise PayloadTooLarge(f"{count} {what}, and at most {most} can be in one request: {remedy}")


def read_json(data: bytes) -> Any:
    """The value of a JSON text; raises orjson.JSONDecodeError, or PayloadTooLarge before anything is made of it."""
    check_json(data)
    return orjson.loads(data)


def check_json(data: bytes) -> None:
    """Raises PayloadTooLarge where a JSON text would become too many objects."""
    if len(data) <= MOST_JSON_PARTS:  # each takes a byte at least
        return
    objects, lists, quotes = _counts(data, b'{["')
    what = "lists, objects and strings of JSON"
    check_count(objects + lists + quotes // 2, MOST_JSON_PARTS, what, "send fewer at a time, or binary tensors")


def _counts(data: bytes, wanted: bytes) -> list[int]:
    """How often each of those bytes is there; in half of the time of bytes.count."""
    values = np.frombuffer(data, np.uint8)
    pieces = (values[start : start + PIECE] for start in range(0, len(values), PIECE))
    found = [[int(np.count_nonzero(piece == byte)) for byte in wanted] for piece in pieces]
    return [sum(counts) for counts in zip(*found, strict=True)]


@dataclass(frozen=True)
class Deadline:
    """When the caller stops waiting, on time.monotonic()'s clock. Work past that moment is dropped."""

    end: float = math.inf

    @classmethod
    def after(cls, seconds: float) -> "Deadline":
        return cls(monotonic() + seconds)

    def left(self, most: float = math.inf) -> float:
        """Return the seconds left, at most `most`. Raise TooLate when none are left."""
        seconds = min(most, self.end - monotonic())
        if seconds <= 0:
            raise TooLate
        return seconds


NEVER = Deadline()


def in_time(items: Iterable[Each], deadline: Deadline) -> Iterator[Each]:
    """The items; raises TooLate when the request's time is over."""
    for number, item in enumerate(items):
        if number % LOOK_EACH == 0:
            deadline.left()
        yield item
