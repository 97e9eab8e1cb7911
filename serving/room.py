"""The memory of a request: one table of what each step takes, and the account in which the
request's own thread reserves it before the step begins.

    with reserve(size, "the drawing"):   given back at the end of the block
        …
    reserve(form(data), "the form")      given back when the request leaves its slot

The account is the request's slot (front/admission.py). The threads that decode for a request do not
reserve anything.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import numpy as np

PIECE = 64 * 1024  # bytes that are counted together: they stay in the processor's cache
SMALL_JSON = 1024  # bytes of a text whose parts are not counted

# The table: bytes that a step takes for each …
SHORT = 80  # byte of a small JSON text
OBJECT = 200  # object of JSON that msgspec reads
LIST = 90  # list
STRING = 60  # string, beside its characters
WIDEST = 7  # character, if one of the text is not ASCII: 4, and the text without its escapes
KEY = 60  # key and its value
NUMBER = 40  # number; most values of large bodies are numbers
CACHED = 9  # number of so few digits that Python has it already
DIGIT = 8  # and byte of the text of all numbers
ELEMENT = 32  # number that simdjson reads: as it keeps it, as 8 bytes, and as the tensor
ITEM = 120  # instance, beside its value
PARSED = 3  # byte of a text that simdjson reads
ESCAPE = 250  # character that a form writes as %41: for a moment it is a string of its own
FORM = 12  # byte of a form with such characters
FIELDS = 4  # byte of a form's text: the text, and the pieces that it is cut to
FILES = 3  # byte of a form with files: the parser's pieces, its files, and our items
UNPACKED = 2  # byte of a body while it is unpacked
DEFLATED = 1032  # byte of a packed body; deflate makes no more of one
INPUT = 3  # byte of an input: the client's array, another while it is made, and Triton's message
OUTPUT = 4  # byte of an output: gRPC's, protobuf's, the array's, and what the client computes
TENSOR_STRING = 300  # string of a tensor: in turn two Python objects, with the array's pointers
TENSOR_BYTE = 14  # and byte of these strings: each may become six of JSON
SORTED = 40  # number of an output that is asked for as classes
WRITTEN = 2  # byte of a reply while it is written: the buffer grows, or its pieces are joined
BASE64 = 4  # character of base64: in turn without line ends, padded, as bytes, and what it holds
CELLS = 16  # byte of a row of CSV: its text, the csv module's text, and the cells
TOKEN = 200  # token of a window of a text, whose place in the text is kept
KEPT = 2  # decoded images take a half of what decoding them takes; a drawing takes as much again


class Parts(NamedTuple):
    """What a JSON text consists of. Characters within strings count too."""

    length: int
    objects: int
    lists: int
    strings: int
    keys: int
    commas: int
    is_ascii: bool


def json_parts(data: bytes) -> Parts:
    """Count the parts of a JSON text, without reading it."""
    counts = dict.fromkeys((b"{", b"[", b'"', b":", b","), 0)
    for start in range(0, len(data), PIECE):
        piece = data[start : start + PIECE]
        values = np.frombuffer(piece, np.uint8)  # compared in half of the time of bytes.count
        for character in counts:
            if character in piece:  # looked for several times faster than counted; base64 has none
                counts[character] += int(np.count_nonzero(values == ord(character)))
    objects, lists, quotes, keys, commas = counts.values()
    is_ascii = data.isascii() and b"\\" not in data
    return Parts(len(data), objects, lists, quotes // 2, keys, commas, is_ascii)


def json_objects(parts: Parts) -> int:
    """Return what a JSON text takes that msgspec reads."""
    number = min(NUMBER * parts.commas, CACHED * parts.commas + DIGIT * parts.length)
    values = OBJECT * parts.objects + LIST * parts.lists + STRING * parts.strings
    characters = parts.length if parts.is_ascii else WIDEST * parts.length
    return values + KEY * parts.keys + number + characters


def json_numbers(parts: Parts) -> int:
    """Return what a JSON text takes that simdjson reads, and that becomes tensors."""
    values = LIST * parts.lists + STRING * parts.strings + ELEMENT * parts.commas
    return PARSED * parts.length + values


def form(data: bytes) -> int:
    """Return what a URL-encoded form takes."""
    escapes = data.count(b"%")
    escaped = FORM * len(data) + ESCAPE * escapes if escapes else 0
    return escaped + FIELDS * text(data)


def text(data: bytes) -> int:
    """Return what a text takes that is decoded from UTF-8."""
    return len(data) if data.isascii() else WIDEST * len(data)


def tensor_strings(count: int, length: int) -> int:
    """Return what the `count` strings of a tensor take, which have `length` bytes together."""
    return TENSOR_STRING * count + TENSOR_BYTE * length


class Account(Protocol):
    """A request's slot."""

    size: int  # bytes that it has taken

    def take(self, size: int, step: str) -> None: ...

    def give_back(self, size: int) -> None: ...


# of the request that this thread works for
_ACCOUNT: ContextVar[Account | None] = ContextVar("account", default=None)


class Room:
    """Memory that is reserved until it is given back, the context ends, or the request leaves its
    slot."""

    def __init__(self, account: Account | None = None, size: int = 0) -> None:
        self._account = account
        self._size = size

    @property
    def is_held(self) -> bool:
        return self._size > 0

    def grow(self, size: int, step: str) -> None:
        """Reserve `size` bytes in all. Raise PayloadTooLarge, Overloaded."""
        missing = size - self._size
        if self._account and missing > 0:
            self._account.take(missing, step)
            self._size = size

    def shrink(self, size: int = 0) -> None:
        """Give back all but `size` bytes."""
        surplus = self._size - size
        if self._account and surplus > 0:
            self._account.give_back(surplus)
            self._size = size

    def add(self, other: "Room") -> None:
        """Hold what another room holds, too."""
        self._account = self._account or other._account
        self._size += other._size
        other._size = 0

    def __enter__(self) -> "Room":
        return self

    def __exit__(self, *error: object) -> None:
        self.shrink()


def open_account(account: Account | None) -> None:
    """Make this the account of the request that this thread works for; None: nothing is counted."""
    _ACCOUNT.set(account)


def reserve(size: int, step: str) -> Room:
    """Reserve `size` bytes for a step. Raise PayloadTooLarge if the request would take more than
    one may, Overloaded if others have taken the memory."""
    account = _ACCOUNT.get()
    if account is None:
        return Room()
    account.take(size, step)
    return Room(account, size)


@contextmanager
def collected() -> Iterator[Room]:
    """Yield a room that, after the context, has all that its steps have reserved and not given
    back."""
    account = _ACCOUNT.get()
    room = Room(account)
    before = account.size if account else 0
    try:
        yield room
    finally:
        if account:
            room._size = account.size - before
