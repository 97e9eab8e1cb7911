"""The table of what a step takes is never less than what it takes."""

import tracemalloc
from collections.abc import Callable
from urllib.parse import parse_qsl

import msgspec
import pytest

from serving.room import PIECE, form, json_objects, json_parts, reserve

pytestmark = pytest.mark.unit

LENGTH = 400_000


def filled(piece: str) -> bytes:
    return f"[{piece * (LENGTH // len(piece))}0]".encode()


TEXTS = {
    "numbers that Python has": filled("0,"),
    "short floats": filled("0.5,"),
    "whole numbers": filled("300,"),
    "floats": filled("0.123456,"),
    "strings": filled('"a few words",'),
    "objects": filled('{"a":1},'),
    "rows of a table": filled('{"ab":1.5,"cd":"x","ef":0.25},'),
    "lists": filled("[],"),
    "pairs": filled("[0.5,0.5],"),
    "a long string": f'["{"a" * LENGTH}"]'.encode(),
    "a string of wide characters": f'["{"a" * LENGTH}😀"]'.encode(),
    "a string with an escaped wide character": rb'["%b\ud83d\ude00"]' % (b"a" * LENGTH),
}


def peak(read: Callable[[], object]) -> int:
    """Return the bytes of Python's objects that `read` takes at most."""
    tracemalloc.start()
    try:
        read()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", TEXTS)
def test_reserve_what_json_takes(name: str) -> None:
    text = TEXTS[name]
    taken = peak(lambda: msgspec.json.decode(text))
    assert taken <= json_objects(json_parts(text)) <= 5 * taken


@pytest.mark.parametrize("value", ["%41", "%d0%b0", "a+", "a"])
def test_reserve_what_a_form_takes(value: str) -> None:
    text = f"text={value * 50_000}%f0%9f%98%80".encode()
    assert peak(lambda: parse_qsl(text.decode(), keep_blank_values=True)) <= form(text)


def test_count_the_parts_of_json_in_pieces() -> None:
    text = b'{"a": [[1, 2], "b"]}' + b" " * (PIECE - 30) + b'{"c": [3, 4], "d": ""}'
    assert json_parts(text) == (len(text), 2, 3, 5, 3, 4, True)
    assert not json_parts('{"é": 1}'.encode()).is_ascii


def test_reserve_nothing_without_an_account() -> None:
    assert not reserve(2**40, "a step").is_held
