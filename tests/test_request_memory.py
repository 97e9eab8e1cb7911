"""Tests that the memory that is reserved for a step is never less than the step takes."""

import tracemalloc
from base64 import b64encode
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, partial
from typing import Any
from urllib.parse import parse_qsl

import msgspec
import numpy as np
import pytest

from serving.bodies import documents
from serving.bodies.forms import read_form
from serving.bodies.hugging_face import Predict
from serving.bodies.instances import items_of
from serving.bodies.lines import MOST_GROUP
from serving.budget import LONG_JSON, MOST_INSTANCES, TURN
from serving.codecs import TEXT, Limits, decode_base64, read_cells
from serving.errors import Overloaded
from serving.headers import CSV, JSON_TYPE, NPY_TYPE
from serving.request_memory import PIECE, form_memory, json_parts, msgspec_memory, reserve
from serving.triton.tensors import SIZES, numpy_dtype
from tests.bodies.echo import BINARY, CLIENT, LINES, NUMBERS, Account, Sent, many, opened, served
from tests.bodies.echo import tensor as numbers
from tests.support.harness import npy

pytestmark = pytest.mark.unit

LENGTH = 400_000
LARGE = 3_000_000
# bytes of values each of which becomes an object, which takes far more memory
SMALL_VALUES = LARGE // 4


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
    """Return the maximum number of bytes of Python's objects while `read` runs."""
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
    assert taken <= msgspec_memory(json_parts(text)) <= 5 * taken


@pytest.mark.parametrize("end", ["", "%f0%9f%98%80", "😀"])
@pytest.mark.parametrize("value", ["%41", "%d0%b0", "a+", "a", "é"])
def test_reserve_what_a_form_takes(value: str, end: str) -> None:
    text = f"text={value * 50_000}{end}".encode()
    assert peak(lambda: parse_qsl(text.decode(), keep_blank_values=True)) <= form_memory(text)


BESIDE = 2**20  # bytes of objects whose number does not depend on the request


def tensor(datatype: str, rows: int, accept: str = JSON_TYPE, size: int = LARGE) -> Sent:
    """Return a binary tensor of random numbers, with `size` bytes in these rows."""
    width = size // rows // SIZES[datatype]
    head = (
        b'{"inputs":[{"name":"x","datatype":"%b","shape":[%d,%d],'
        b'"parameters":{"binary_data_size":%d}}]}'
        % (datatype.encode(), rows, width, rows * width * SIZES[datatype])
    )
    numbers = np.random.default_rng(0).integers(0, 2, rows * width)
    data = head + numbers.astype(numpy_dtype(datatype)).tobytes()
    return Sent(f"{BINARY};json-header-size={len(head)}", data, served(datatype), accept=accept)


def texts(string: bytes, accept: str = JSON_TYPE) -> Sent:
    """Return a tensor that contains the string often enough for SMALL_VALUES bytes."""
    one = len(string).to_bytes(4, "little") + string
    count = SMALL_VALUES // len(one)
    head = (
        b'{"inputs":[{"name":"x","datatype":"BYTES","shape":[%d,1],'
        b'"parameters":{"binary_data_size":%d}}]}' % (count, count * len(one))
    )
    kind = f"{BINARY};json-header-size={len(head)}"
    return Sent(kind, head + one * count, served("BYTES"), accept=accept)


SENT = {
    "FP32": tensor("FP32", 1),
    "FP64": tensor("FP64", 1),
    "INT32": tensor("INT32", 1),
    "FP16 as CSV": tensor("FP16", 1, CSV),
    "rows as CSV": tensor("FP32", 1000, CSV),
    "small rows as CSV": tensor("FP32", SMALL_VALUES // 8, CSV, SMALL_VALUES),
    "FP32 as npy": tensor("FP32", 1, NPY_TYPE),
    "strings": texts(b"a few words"),
    "empty strings": texts(b""),
    "strings of control characters": texts(b"\1" * 1000),
    "strings that are not text": texts(b"\xff" * 1000),
    "strings as CSV": texts(b"a few words", CSV),
    "strings as npy": texts(b"a few words", NPY_TYPE),
    "an npy file of other numbers": Sent(
        NPY_TYPE, npy(np.zeros((1, LARGE), np.uint8)), served("FP64")
    ),
    "an npy file of strings": Sent(
        NPY_TYPE, npy(np.full((1, SMALL_VALUES // 16), "äöü")), served("BYTES")
    ),
    "strings in JSON": Sent(
        JSON_TYPE,
        b'{"x":[%b]}' % b",".join([b'"a few words"'] * 100_000),
        served("BYTES"),
        generates=True,
    ),
    "predictions": Sent(JSON_TYPE, b'{"instances":[%b]}' % b",".join([b"0"] * 25_000), CLIENT),
    "lines": Sent(LINES, b"0\n" * 50_000, CLIENT),
    "lines of many objects": Sent(LINES, (b"[%b0]\n" % (b"{}," * 3_000)) * 100, CLIENT),
}


@pytest.mark.parametrize("name", SENT)
def test_reserve_what_a_request_takes(name: str) -> None:
    """The model is an echo without a Triton, so gRPC's copies are missing. For numbers of one byte,
    orjson allocates far more than it writes, so the table contains none."""
    assert peak_beyond(SENT[name].ask) <= BESIDE


@cache
def account_of_lines() -> Account:
    """Return the account of a request that has many groups of lines."""
    account = Account()
    with opened(account):
        SENT["lines of many objects"].ask()
    return account


def test_give_back_what_each_group_of_lines_took() -> None:
    account = account_of_lines()
    assert account.size < account.peak // 2


def test_hold_only_a_few_lines_of_many_values() -> None:
    account = account_of_lines()
    assert account.peak <= 1.2 * MOST_GROUP


class AsksForTheTurn(Account):
    """An account that records whether its thread has the turn to parse."""

    def __init__(self) -> None:
        super().__init__()
        self.turns: list[bool] = []

    def take(self, size: int, step: str) -> None:
        if step == "the JSON of the body":
            self.turns.append(is_turn_taken())
        super().take(size, step)


def is_turn_taken() -> bool:
    """Return whether another thread would have to wait for its turn to parse."""
    with ThreadPoolExecutor(1) as other:
        is_free = other.submit(TURN.acquire, blocking=False).result()
        if is_free:
            other.submit(TURN.release).result()
    return not is_free


def test_copy_numbers_of_a_long_text_while_no_other_request_parses(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """simdjson holds the GIL while it parses."""
    turns = []

    def parse(data: bytes) -> Any:
        turns.append(is_turn_taken())
        return parsed(data)

    parsed = documents._parse_with_simdjson
    monkeypatch.setattr(documents, "_parse_with_simdjson", parse)
    for count in (documents.LARGE, LONG_JSON):
        Sent(JSON_TYPE, numbers("FP32", many(b"1", count), b"1,%d" % count), NUMBERS).ask()
    assert turns == [False, True]


def test_parse_each_line_while_no_other_request_does() -> None:
    """Parsing holds the GIL, so other callers would have to wait for all requests that parse."""
    account = AsksForTheTurn()
    with opened(account):
        Sent(LINES, b"0\n" * 3, CLIENT).ask()
    assert account.turns == [True] * 3
    assert not is_turn_taken()


class RefusingOnce(Account):
    """An account that refuses only its fourth step."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[str] = []

    def take(self, size: int, step: str) -> None:
        self.steps.append(step)
        if len(self.steps) == 4:
            raise Overloaded("")
        super().take(size, step)


def test_end_a_body_of_lines_at_the_first_one_that_finds_no_memory() -> None:
    account = RefusingOnce()
    with opened(account), pytest.raises(Overloaded):
        SENT["lines"].ask()
    assert account.steps[1:] == ["the JSON of the body"] * 3


def peak_beyond(step: Callable[[], object]) -> int:
    """Return by how many bytes a step exceeds its reservation."""
    account = Account()
    with opened(account):
        return peak(step) - account.peak


def multipart(value: bytes, file: bytes = b"") -> bytes:
    """Return a form with six fields or, if `file` is true, with six files."""
    head = b'--x\r\nContent-Disposition: form-data; name="%d"%b\r\n\r\n%b\r\n'
    parts = [head % (number, file, value) for number in range(6)]
    return b"".join(parts) + b"--x--\r\n"


FORMS = {
    "fields": multipart(b"a" * LARGE),
    "fields with a wide character": multipart(b"a" * LARGE + "😀".encode()),
    "fields that are not text": multipart(b"\xff" * LARGE),
    "files": multipart(b"a" * LARGE, b'; filename="a"'),
}


@pytest.mark.parametrize("name", FORMS)
def test_reserve_what_a_form_of_parts_takes(name: str) -> None:
    assert peak_beyond(lambda: read_form(FORMS[name], "x")) <= BESIDE


READ: dict[str, Callable[[], object]] = {
    "base64": partial(decode_base64, b64encode(bytes(LARGE)).decode()),
    "base64 in lines": partial(decode_base64, "AAAA\n" * (LARGE // 5)),
    "a text": partial(TEXT.open, b"a" * LARGE, Limits()),
    "a text with a wide character": partial(TEXT.open, b"a" * LARGE + "😀".encode(), Limits()),
    "a row of CSV": partial(read_cells, b"0.125," * 90_000 + b"a" * LARGE),
    "a row of CSV with a wide character": partial(read_cells, b"a" * LARGE + "😀".encode()),
    "rows of a data frame": partial(
        documents.read_instances,
        {"dataframe_split": {"columns": ["a"], "data": [[1]] * MOST_INSTANCES}},
        "dataframe_split",
    ),
    "strings that become objects": partial(items_of, ["AAAA"] * MOST_INSTANCES, "body", "b64"),
    "pairs of texts": partial(
        Predict(inputs=[["a", "b"]] * MOST_INSTANCES).items, CLIENT.require_client()
    ),
}


@pytest.mark.parametrize("name", READ)
def test_reserve_what_an_instance_takes(name: str) -> None:
    assert peak_beyond(READ[name]) <= BESIDE


def test_count_the_parts_of_json_in_pieces() -> None:
    text = b'{"a": [[1, 2], "b"]}' + b" " * (PIECE - 30) + b'{"c": [3, 4], "d": ""}'
    assert json_parts(text) == (len(text), 2, 3, 5, 3, 4, True)
    assert not json_parts('{"é": 1}'.encode()).is_plain


def test_reserve_nothing_without_an_account() -> None:
    assert reserve(2**40, "a step").size == 0
