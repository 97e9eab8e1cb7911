"""Limits the memory that requests use. A request's thread reserves the memory for each step of its
work before the step begins. The constants below say how much each step takes.

    with reserve(size, "the drawing"):          given back at the end of the block
        …
    reserve(form_memory(data), "the form")      given back when the request leaves its slot

The memory is reserved in the request's account, which is its slot (front/admission.py). Other
threads that decode parts of a request reserve nothing, because the account is not thread-safe.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import numpy as np

PIECE = 64 * 1024  # bytes to search at a time; they fit into the processor's cache
SMALL_JSON = 1024  # JSON up to this many bytes is charged by length, without counting its parts

# How many bytes of memory each step takes
SHORT = 80  # per byte of a small JSON text
OBJECT = 200  # per JSON object that msgspec parses
LIST = 90  # per JSON list
STRING = 60  # per JSON string, besides its characters
WIDEST = 7  # per byte of non-ASCII text: 4 bytes, and a copy of the text without its escapes
KEY = 60  # per key of a JSON object, with its value
# The numbers in a JSON text take NUMBER each or, if that is less, CACHED each plus DIGIT per byte
# of the text, because Python caches small integers. Most values in large bodies are numbers.
NUMBER = 40
CACHED = 9
DIGIT = 8
ELEMENT = 32  # per number that simdjson parses: simdjson's copy, one of 8 bytes, and the tensor
ITEM = 400  # per instance, besides its value: its Item, and the dict made of a string or a pair
PARSED = 3  # per byte of a text that simdjson parses
ESCAPE = 250  # per character that a form escapes, such as %41, which becomes a temporary string
FORM = 12  # per byte of a form with escaped characters
FIELDS = 4  # per byte of a form as text: the text, and the pieces into which it is split
FILES = 5  # per byte of a form with files: the parser's pieces, and texts at 4 bytes a character
UNPACKED = 2  # per decompressed byte of a body, while the body is decompressed
DEFLATED = 1032  # decompressed bytes per byte of a compressed body: deflate's maximum ratio
INPUT = 3  # per byte of an input: the client's array, a temporary copy, and Triton's message
# per byte of an output: gRPC's, protobuf's and numpy's copies, and what the client computes
OUTPUT = 4
# per string of a tensor: two Python objects, of which one is made later, and the array's pointer
TENSOR_STRING = 300
TENSOR_BYTE = 14  # per byte of a tensor's strings: each may become six bytes of JSON
# per byte of an output's strings, when their JSON is joined with that of the other outputs
ESCAPED = 6
SORTED = 40  # per number of an output that is sorted to find the classes with the highest scores
WRITTEN = 2  # per byte of a reply being written, which is copied when its buffer grows or is joined
BASE64 = 4  # per character of base64: copies without line breaks, padded, as bytes, and decoded
CELLS = 16  # per byte of a row of CSV: its text, the csv module's copy, and the cells
TOKEN = 200  # per token in a window of a text, for the objects that record its position
# decoded images take 1 / KEPT of the memory that decoding them takes
KEPT = 2


class Parts(NamedTuple):
    """How many objects, lists and so on a JSON text has, estimated from its punctuation. The counts
    may be too high, because punctuation inside strings is counted too. `is_plain` is true if the
    text is ASCII without escapes."""

    length: int
    objects: int
    lists: int
    strings: int
    keys: int
    commas: int
    is_plain: bool


def json_parts(data: bytes) -> Parts:
    """Count the parts of a JSON text without parsing it."""
    counts = dict.fromkeys((b"{", b"[", b'"', b":", b","), 0)
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        values = np.frombuffer(piece, np.uint8)  # NumPy counts in half the time of bytes.count
        for character in counts:
            # Searching is several times faster than counting, and most pieces of base64 contain
            # none of these characters.
            if character in piece:
                counts[character] += int(np.count_nonzero(values == ord(character)))
    objects, lists, quotes, keys, commas = counts.values()
    is_plain = data.isascii() and b"\\" not in data
    return Parts(len(data), objects, lists, quotes // 2, keys, commas, is_plain)


def msgspec_memory(parts: Parts) -> int:
    """Return how many bytes of memory a JSON text takes when msgspec parses it."""
    short_numbers = CACHED * parts.commas + DIGIT * parts.length
    numbers = min(NUMBER * parts.commas, short_numbers)
    values = OBJECT * parts.objects + LIST * parts.lists + STRING * parts.strings
    characters = parts.length if parts.is_plain else WIDEST * parts.length
    return values + KEY * parts.keys + numbers + characters


def simdjson_memory(parts: Parts) -> int:
    """Return how many bytes of memory a JSON text takes when simdjson parses it and it is converted
    to tensors."""
    values = LIST * parts.lists + STRING * parts.strings + ELEMENT * parts.commas
    return PARSED * parts.length + values


def form_memory(data: bytes) -> int:
    """Return how many bytes of memory parsing a URL-encoded form takes."""
    fields = FIELDS * text_memory(data)
    escapes = data.count(b"%")
    if not escapes:
        return fields
    return fields + FORM * len(data) + ESCAPE * escapes


def text_memory(data: bytes) -> int:
    """Return how many bytes of memory a text takes when it is decoded from UTF-8."""
    return len(data) if data.isascii() else WIDEST * len(data)


def strings_memory(count: int, length: int) -> int:
    """Return how many bytes of memory the strings of a tensor take, given their `count` and their
    total `length` in bytes."""
    return TENSOR_STRING * count + TENSOR_BYTE * length


class Account(Protocol):
    """The account of a request: its slot (front/admission.py)."""

    size: int  # bytes reserved so far

    def take(self, size: int, step: str) -> None: ...

    def give_back(self, size: int) -> None: ...


# the account of the request that this thread works for
_ACCOUNT: ContextVar[Account | None] = ContextVar("account", default=None)


class Reservation:
    """Memory that is reserved until it is given back, the `with` block ends, or the request leaves
    its slot."""

    def __init__(self, account: Account | None = None, size: int = 0) -> None:
        self._account = account
        self.size = size

    def grow(self, size: int, step: str) -> None:
        """Increase the reservation to `size` bytes. Raise PayloadTooLarge or Overloaded."""
        missing = size - self.size
        if self._account and missing > 0:
            self._account.take(missing, step)
            self.size = size

    def shrink(self, size: int = 0) -> None:
        """Give back all but `size` bytes. By default, give back all."""
        surplus = self.size - size
        if self._account and surplus > 0:
            self._account.give_back(surplus)
            self.size = size

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, *error: object) -> None:
        self.shrink()


def open_account(account: Account | None) -> None:
    """Set the account of the request that this thread works for. Without an account, this thread
    reserves nothing."""
    _ACCOUNT.set(account)


def reserve(size: int, step: str) -> Reservation:
    """Reserve `size` bytes for a step, which `step` describes in errors. Raise PayloadTooLarge if
    the request would hold more than one request may, and Overloaded if other requests hold the
    memory."""
    account = _ACCOUNT.get()
    if account is None:
        return Reservation()
    account.take(size, step)
    return Reservation(account, size)


@contextmanager
def collected() -> Iterator[Reservation]:
    """Yield a reservation that, after the `with` block, holds all memory that the block reserved
    and did not give back. If the block raises an exception, give this memory back."""
    account = _ACCOUNT.get()
    reserved = Reservation(account)
    before = account.size if account else 0

    def taken() -> int:
        return account.size - before if account else 0

    try:
        yield reserved
    except BaseException:
        Reservation(account, taken()).shrink()
        raise
    reserved.size = taken()
