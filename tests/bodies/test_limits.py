"""Tests that a small body cannot take much memory or time: what would become large is refused
before it is created, and loops stop at the deadline."""

import gzip
import json
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import orjson
import pytest

from serving.bodies.instances import json_items
from serving.bodies.kserve import write_reply
from serving.bodies.packed import unpacked
from serving.bodies.reading import Body, read_body
from serving.bodies.values import flat_array
from serving.bodies.writing import tensor_reply, write_npy
from serving.budget import AT_ONCE, MOST_MEMBERS, MOST_STRINGS, Budget, Deadline
from serving.errors import DecodingError, InvalidRequest, PayloadTooLarge, TooLate, TritonTimeout
from serving.headers import CSV
from serving.job import Reply, Run
from serving.model_status.served_model import ServedModel
from serving.request import Request
from serving.sessions import Sequencing
from serving.triton.tensors import InferReply, Tensor
from tests.bodies.echo import (
    CLIENT,
    JSON_TYPE,
    LARGEST,
    LINES,
    NPY,
    NUMBERS,
    ONE,
    TEXTS,
    Echo,
    Sent,
    many,
    npy_file,
    strings,
    tensor,
)
from tests.support.deadlines import within

pytestmark = pytest.mark.unit

DEEP = [b"[" * deep + b"]" * deep for deep in (800, 1015)]
DEEP += [b'{"a":' * deep + b"1" + b"}" * deep for deep in (800, 1015)]
TEMPLATES = (
    b'{"inputs":[%b],"parameters":{"sequence_end":%%b}}' % ONE,
    b'{"inputs":[%b],"parameters":{"other":%%b}}' % ONE,
    b'{"inputs":[%b],"parameters":%%b}' % ONE,
    b'{"inputs":[%b],"id":%%b}' % ONE,
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":%b,"data":[1]}]}',
    b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,%b],"data":[1]}]}',
    b'{"x":[1],"id":%b}',
    b'{"x":[1],"sequence_end":%b}',
    b'{"x":[1],"other":%b}',
)


def answer(served: ServedModel, body: Body, request: Request = Request("id")) -> Reply:  # noqa: B008
    return body.bind(served, request).answer(Echo())


@pytest.mark.parametrize("deep", DEEP, ids=["lists", "deeper lists", "objects", "deeper objects"])
def test_refuse_values_nested_1000_deep(deep: bytes) -> None:
    for template in TEMPLATES:
        with pytest.raises(InvalidRequest):
            answer(sequences(), read_body(JSON_TYPE, template % deep, generates=True))
    for parameter in CLIENT.require_client().parameters:
        text = b'{"instances":[1],"parameters":{"%b":%b}}' % (parameter.name.encode(), deep)
        with pytest.raises(
            InvalidRequest, match=parameter.name if text.count(deep[:1]) < 900 else "nested"
        ):
            answer(CLIENT, read_body(JSON_TYPE, text))


def test_accept_a_string_or_integer_as_id_of_generate() -> None:
    for own_id, expected in ((b'"7"', "7"), (b"7", "7"), (b"0", None), (b"null", None)):
        reply = answer(NUMBERS, read_body(JSON_TYPE, b'{"x":[1],"id":%b}' % own_id, True))
        assert orjson.loads(reply.content).get("id") == expected
    for own_id in (b"[1]", b"1.5", b"true", b'{"a":1}'):
        with pytest.raises(InvalidRequest, match="id"):
            answer(NUMBERS, read_body(JSON_TYPE, b'{"x":[1],"id":%b}' % own_id, True))


@pytest.mark.parametrize("data", [b"\x00\xd8\x00\x00", b"\xff\xff\xff\xff"])
def test_refuse_npy_strings_that_are_not_unicode(data: bytes) -> None:
    with pytest.raises(DecodingError):
        Sent(NPY, npy_file("<U1", (1, 1), data), TEXTS).ask()


def sequences(*id_types: str) -> ServedModel:
    return replace(NUMBERS, sequencing=Sequencing(frozenset(id_types), 1.0))


def sent(model: ServedModel, parameters: object) -> dict[str, object]:
    """Return the parameters that would be sent to Triton."""
    data = b'{"inputs":[%b],"parameters":%b}' % (ONE, json.dumps(parameters).encode())
    step = read_body(JSON_TYPE, data).bind(model, Request("id")).prepare()
    assert step.is_last
    return dict(step.parameters)


ID_TYPES: tuple[tuple[tuple[str, ...], list[int | str], list[object]], ...] = (
    (("UINT64",), [0, 1, 2**63 - 1], [-1, 2**63, 2**64 - 1, "x", "7", "", 1.0, True, None, [1]]),
    (("INT64",), [-(2**63), 2**63 - 1], [2**63, "x" * 128, "7", 1.5, False, {"a": 1}]),
    (("UINT32",), [0, 2**32 - 1], [-1, 2**32, 2**32 + 5, "x", True]),
    (("INT32",), [-(2**31), 2**31 - 1], [2**31, -(2**31) - 1, "x", 0.0]),
    (("BYTES",), ["x" * 128, "ä" * 64], [7, 1.5, True, "", "7", "x" * 127, "x" * 129, "\0" * 128]),
    ((), [7, -7, "7", "x" * 128], [2**63, 1.5, True, "x" * 129, "a\0b", []]),
    # the datatypes of several parts of an ensemble
    (("INT32", "UINT64"), [0, 2**31 - 1], [-1, 2**31, "x"]),
    (("INT32", "BYTES"), [], [7, "x"]),
)


@pytest.mark.parametrize(("id_types", "right", "wrong"), ID_TYPES)
def test_give_a_sequence_id_the_datatype_of_the_model(
    id_types: tuple[str, ...], right: list[int | str], wrong: list[object]
) -> None:
    model = sequences(*id_types)
    for own_id in right:
        assert sent(model, {"sequence_id": own_id, "a": 1}) == {"sequence_id": own_id, "a": 1}
    for refused in wrong:
        with pytest.raises(InvalidRequest, match=r"sequence_id|session's id"):
            sent(model, {"sequence_id": refused})


def test_send_no_sequence_parameters_to_a_model_without_sequences() -> None:
    for own_id in (7, "x" * 200, None, [1]):
        flags = {"sequence_start": "maybe", "sequence_end": [1]}
        assert sent(NUMBERS, {"sequence_id": own_id, "a": 1, **flags}) == {"a": 1}


def test_accept_only_booleans_as_flags_of_a_sequence() -> None:
    for flag in ("sequence_start", "sequence_end"):
        for word in (True, 1, "1", "true", "TRUE"):
            assert sent(sequences(), {flag: word}) == {flag: True}
        for word in (False, 0, "0", "False"):
            assert sent(sequences(), {flag: word}) == {flag: False}
        for wrong in (None, 2, 1.0, "", "yes", [True], {"a": 1}):
            with pytest.raises(InvalidRequest, match=flag):
                sent(sequences(), {flag: wrong})


@pytest.mark.parametrize("digits", [4, 16, 4500, 10_000])
def test_refuse_an_npy_dimension_of_any_number_of_digits(digits: int) -> None:
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (0x%b,), }" % (b"f" * digits)
    data = b"\x93NUMPY\1\0" + len(header).to_bytes(2, "little") + header
    with pytest.raises(DecodingError, match="npy"):
        Sent(NPY, data, NUMBERS).ask()


def test_bound_an_id_in_a_header() -> None:
    one = read_body(JSON_TYPE, b'{"inputs":[%b]}' % ONE)
    with pytest.raises(InvalidRequest, match="130"):
        answer(sequences("BYTES"), one, Request("id", session="\xe4" * 65))


PARAMETERS: tuple[tuple[str, list[object], list[object]], ...] = (
    ("timeout", [0, 10**15], [-1, 10**15 + 1, 2**63, 1.5, "1", True, None]),
    ("priority", [0, 2**63 - 1], [-1, 2**63, 1.5, "1", True, []]),
    ("triton_enable_empty_final_response", [True, False], [1, "true", None]),
    ("triton_", [], [1, True]),
    ("triton_other", [], [1, "a"]),
    ("own", [1, -1, 1.5, "a", "", "a\nb", True], ["a\0b", None, [], {}, 2**63, -(2**63) - 1]),
    ("sequence_id\0", [], [1, "a"]),
)


@pytest.mark.parametrize(("name", "right", "wrong"), PARAMETERS)
def test_forward_only_parameters_that_triton_accepts(
    name: str, right: list[object], wrong: list[object]
) -> None:
    for value in right:
        assert sent(NUMBERS, {name: value}) == {name: value}
    for value in wrong:
        with pytest.raises(InvalidRequest, match="parameter"):
            sent(NUMBERS, {name: value})


def test_refuse_a_parameter_that_is_not_finite() -> None:
    for number in (b"1e999", b"-1e999"):
        data = b'{"inputs":[%b],"parameters":{"a":%b}}' % (ONE, number)
        with pytest.raises(InvalidRequest):
            answer(NUMBERS, read_body(JSON_TYPE, data))


@dataclass(frozen=True)
class Looks(Deadline):
    """A deadline that passes after a given number of checks."""

    # a list with one number: how many checks are left
    looks: list[int] = field(default_factory=list)

    def left(self, most: float = math.inf) -> float:
        self.looks[0] -= 1
        if self.looks[0] < 0:
            raise TooLate("")
        return min(most, 1.0)


def looks(count: int) -> Looks:
    return Looks(math.inf, [count])


@pytest.mark.parametrize(
    ("data", "model", "count"),
    [
        (b"\n" * 10_000, CLIENT, 5),  # empty lines
        # every line is invalid, so the group is halved again and again
        (b"{}\n" * 64, NUMBERS, 20),
        (b"1\n" * 10_000, CLIENT, 50),
    ],
)
def test_check_the_deadline_while_reading_json_lines(
    data: bytes, model: ServedModel, count: int
) -> None:
    with pytest.raises(TritonTimeout):
        Sent(LINES, data, model).ask(looks(count))


@pytest.mark.parametrize(
    ("data", "count"),
    [
        (
            b'{"inputs":[%b]}'
            % many(b'{"name":"x","datatype":"FP32","shape":[0],"data":[]}', 2000),
            1,
        ),
        (tensor("FP32", b"[" * 20 + b"1" + b"]" * 20, b"1"), 10),
    ],
)
def test_check_the_deadline_while_reading_tensors(data: bytes, count: int) -> None:
    with pytest.raises(TooLate):
        Sent(JSON_TYPE, data, NUMBERS).ask(looks(count))


@pytest.mark.parametrize("deep", [1, 7, 30])
def test_read_lists_and_numbers_side_by_side_in_their_order(deep: int) -> None:
    """There was once a pass over all numbers for each level of nesting: 27 s for 31 levels and 12
    million zeros."""
    nested = b"[" * deep + b"2" + b"]" * deep
    body = read_body(JSON_TYPE, b'{"x":[1,%b,[3,[4]],5]}' % nested, generates=True)
    assert orjson.loads(answer(NUMBERS, body).content)["x"] == [1, 2, 3, 4, 5]
    with pytest.raises(InvalidRequest, match="nested more than 32"):
        body = read_body(JSON_TYPE, b'{"x":[1,%b]}' % (b"[" * 32 + b"2" + b"]" * 32), True)
        answer(NUMBERS, body)


def test_process_lines_of_many_instances_in_portions() -> None:
    """A batch has eight instances and a group has four batches, so each of these lines is a group
    of its own."""
    line = orjson.dumps({"instances": [1] * 100}) + b"\n"
    with pytest.raises(TritonTimeout, match=r"^[1-9] "):
        Sent(LINES, line * 1000, CLIENT).ask(looks(1000))


def test_answer_bodies_within_the_limits() -> None:
    content_type, data = strings(MOST_STRINGS)
    assert Sent(content_type, data, TEXTS).ask().content.count(b'""') == MOST_STRINGS
    assert orjson.loads(
        Sent(JSON_TYPE, b'{"instances":[%b]}' % many(b"0", 50_000), CLIENT).ask().content
    ) == {"model_name": "m", "model_version": "1", "predictions": [1.0] * 50_000}
    big_endian = npy_file(">f4", (1, 2), np.array([1, 2], ">f4").tobytes())
    assert b'"data":[1.0,2.0]' in Sent(NPY, big_endian, NUMBERS).ask().content
    assert (
        unpacked(gzip.compress(b"a", mtime=0) * MOST_MEMBERS, "gzip", LARGEST)
        == b"a" * MOST_MEMBERS
    )


@pytest.mark.parametrize(
    ("content_type", "data", "model"),
    [
        (LINES, b"1\n" * 1000, CLIENT),
        (JSON_TYPE, b'{"instances":[%b]}' % many(b"0", 1000), CLIENT),
        (JSON_TYPE, tensor("FP32", many(b"1", 1000), b"1,1000"), NUMBERS),
    ],
)
def test_answer_413_naming_the_setting_for_an_answer_over_the_limit(
    content_type: str, data: bytes, model: ServedModel
) -> None:
    sent_body = Sent(content_type, data, model)
    assert sent_body.ask().content
    with pytest.raises(PayloadTooLarge, match="SERVE_MAX_BODY_MB"):
        sent_body.ask(budget=Budget(body_bytes=100))


def test_answer_an_error_in_the_place_of_a_line_over_the_limit() -> None:
    record = tensor("FP32", many(b"1", 200), b"1,200")
    records = record + b"\n" + record.replace(b"1,200]", b"1,1]")
    reply = Sent(LINES, records, NUMBERS).ask(budget=Budget(body_bytes=200))
    first, second = map(orjson.loads, reply.content.splitlines())
    assert (first["code"], second["code"]) == ("payload_too_large", "invalid_request")


@pytest.mark.parametrize("accept", [JSON_TYPE, CSV])
def test_write_many_numbers_in_pieces(accept: str) -> None:
    """orjson holds the GIL while it writes a piece. The deadline is checked before each piece."""
    numbers = np.arange(3 * AT_ONCE + 1, dtype=np.float32)
    tensors = (Tensor("y", "FP32", (1, len(numbers)), numbers.tobytes()),) * 2
    reply = InferReply("1", tensors)

    def write() -> bytes:
        if accept == CSV:
            return tensor_reply(NUMBERS, reply, CSV, Budget()).content
        return write_reply(NUMBERS, reply, Budget())

    text = b",".join(b"%d.0" % number for number in range(len(numbers)))
    assert write().count(text) == 2
    with within(looks(6)), pytest.raises(TooLate):
        write()


ZEROS = bytes(4_000_000)
PACKED_ZEROS = gzip.compress(ZEROS * 5, 1)


def whole_reply() -> bytes:
    reply = InferReply("1", (Tensor("y", "FP16", (2_000_000,), ZEROS),))
    return write_reply(NUMBERS, reply, Budget())


def whole_body() -> bytes:
    return unpacked(PACKED_ZEROS, "gzip", LARGEST)


@pytest.mark.parametrize("write", [whole_reply, whole_body])
def test_keep_no_second_copy_of_the_reply_while_writing_it(write: Callable[[], bytes]) -> None:
    """Copying 150 MB would hold the GIL for longer than a small request takes."""
    tracemalloc.start()
    try:
        size = len(write())
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert size < peak < 1.5 * size


def test_write_one_prediction_at_a_time() -> None:
    """orjson holds the GIL while it writes."""
    predictions = [np.zeros(2), {"a": [1]}, "b"]
    assert json_items(predictions) == b'[0.0,0.0],{"a":[1]},"b"'
    with within(looks(2)), pytest.raises(TooLate):
        json_items(predictions)


@pytest.mark.parametrize("datatype", ["FP16", "FP64", "BF16", "UINT8", "INT64", "BOOL"])
def test_read_many_values_in_pieces(datatype: str) -> None:
    """Reading all values in one call would hold the GIL. There is a separate loop for their types,
    their nesting and the values themselves."""
    values: list[Any] = [number % 2 == 1 for number in range(2 * AT_ONCE + 1)]
    if datatype != "BOOL":
        values = list(map(int, values))
    lists = [values[:5], values[5:]]
    assert flat_array(datatype, lists).tolist() == values
    for count in range(1 + 3 * 3):
        with within(looks(count)), pytest.raises(TooLate):
            flat_array(datatype, lists)


@pytest.mark.parametrize(("datatype", "value"), [("INT8", 128), ("FP16", 1e5), ("FP64", 10**400)])
def test_refuse_a_number_out_of_range_behind_many(datatype: str, value: float) -> None:
    with pytest.raises(InvalidRequest, match=f"do not fit {datatype}"):
        flat_array(datatype, [0] * 2 * AT_ONCE + [value])


def test_bound_an_output_s_json_before_writing_it() -> None:
    reply = InferReply("1", (Tensor("y", "FP32", (10**12,), b""),))
    with pytest.raises(PayloadTooLarge):
        write_reply(NUMBERS, reply, Budget())
    assert b'"binary_data_size":0' in write_reply(NUMBERS, reply, Budget(), binary={"y"})


def test_refuse_npy_for_strings_of_very_different_lengths() -> None:
    """In npy each string takes as many bytes as the longest."""
    array = np.array([b"x" * 10**6, *[b""] * 1000], dtype=np.object_)
    with pytest.raises(PayloadTooLarge):
        write_npy(array, Budget())


def test_free_the_instances_of_earlier_batches() -> None:
    """If all images of a body were decoded at once, they would take a thousand times the body's
    length."""
    body = read_body(JSON_TYPE, b'{"instances":[%b]}' % many(b"0", 100))
    results = list(Run(body.bind(CLIENT, Request("id")), Echo()).results())
    assert [list(result.batch.instances) for result in results] == [[]] * 13


@pytest.mark.parametrize("datatype", [np.float16, np.float32, np.float64])
def test_write_nan_and_infinity_as_null_in_every_json(datatype: Any) -> None:
    array = np.array([np.nan, np.inf, -np.inf, 1], datatype)
    reply = InferReply("1", (Tensor.of("y", array),))
    assert orjson.loads(write_reply(NUMBERS, reply, Budget()))["outputs"][0]["data"] == [
        None,
        None,
        None,
        1.0,
    ]
