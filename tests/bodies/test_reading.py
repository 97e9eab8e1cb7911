"""Tests how bodies are recognized by their first bytes, whatever their Content-Type says, how they
are decompressed, and how Accept is read."""

import gzip
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from clients.base import Model, TensorSpec
from clients.table import Client
from serving.bodies.csv_body import CsvBody
from serving.bodies.documents import FlatBody, read_object
from serving.bodies.forms import TextOrForm
from serving.bodies.hugging_face import Similarity
from serving.bodies.instances import Instances
from serving.bodies.kserve import TensorBody
from serving.bodies.npy import NpyBody
from serving.bodies.packed import INFLATED, unpacked
from serving.bodies.reading import read_attributes, read_body
from serving.codecs import JSON, Limits
from serving.errors import DecodingError, InvalidRequest, PayloadTooLarge, TooLate
from serving.headers import JSON_TYPE, streamed_type
from serving.request import Request
from tests.bodies.test_instances import Length, client_of
from tests.bodies.test_limits import looks
from tests.support.deadlines import within
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

TYPES = [
    "application/json",
    "application/octet-stream",
    "application/x-www-form-urlencoded",
    "text/plain",
    "",
]
BINARY = "application/vnd.sagemaker-triton.binary+json"


@pytest.mark.parametrize("content_type", TYPES)
def test_recognize_json_under_any_content_type(content_type: str) -> None:
    body = read_body(
        content_type, b' {"model_name": "m", "model_version": 2, "instances": ["a", "b"]}'
    )
    assert isinstance(body, Instances)
    assert [item.value for item in body.items] == ["a", "b"]
    assert (body.named.name, body.named.version) == ("m", "2")
    assert isinstance(read_body(content_type, b'{"inputs": []}'), TensorBody)


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity"])
def test_explain_numbers_that_json_does_not_have(number: str) -> None:
    for text in ('{"instances": [[1, NaN]]}', '{"inputs": [{"name": "x", "data": [NaN]}]}'):
        with pytest.raises(InvalidRequest, match="send null"):
            read_body("", text.replace("NaN", number).encode())
    with pytest.raises(DecodingError, match="send null"):
        JSON.from_bytes(number.encode(), Limits())
    with pytest.raises(InvalidRequest, match=r"\(byte \d+\); send JSON"):
        read_body("", b'{"instances": [nan]}')


def test_recognize_npy_files() -> None:
    assert read_body("application/octet-stream", b"\x93NUMPY") == NpyBody.of(b"\x93NUMPY")


class Flower(Length):
    """A client that names the keys of an instance."""

    codec = JSON
    keys = ("petal", "sepal")


class Anything(Length):
    codec = JSON


def test_check_the_keys_of_an_instance_if_the_client_names_them() -> None:
    body = read_body("", b'{"instances": [{"petal": 1, "sepals": 2}]}')
    assert body.bind(client_of(1, Anything), Request("id")).prepare().is_last
    with pytest.raises(DecodingError, match="'sepals'") as raised:
        body.bind(client_of(1, Flower), Request("id")).prepare()
    assert (raised.value.instance, raised.value.field) == (0, "instances")
    with pytest.raises(InvalidRequest, match="'petals'; did you mean 'petal'"):
        read_body("", b'{"petals": 1}').bind(client_of(1, Flower), Request("id"))


def test_list_the_known_keys_of_the_object_with_an_unknown_key() -> None:
    compared = b'{"inputs": {"source_sentence": "a", "sentences": ["b"], "limit": 1}}'
    with pytest.raises(InvalidRequest, match="'limit'; known: sentences, source_sentence"):
        Similarity.of(compared)
    with pytest.raises(InvalidRequest, match="'limit'; known: columns, data, index"):
        read_object(b'{"dataframe_split": {"columns": [], "data": [], "limit": 1}}')
    with pytest.raises(InvalidRequest, match="'limit'; known: data, datatype, name, parameters"):
        read_object(b'{"inputs": [{"name": "x", "shape": [], "datatype": "BOOL", "limit": 1}]}')


def test_do_not_call_the_name_of_an_input_an_unknown_key() -> None:
    client = client_of(1, Flower)
    name = client.model.inputs[0].name
    with pytest.raises(InvalidRequest, match=f"keys may name inputs, as '{name}' does") as raised:
        FlatBody({name: 5}).bind(client, Request("id"))
    assert "unknown" not in str(raised.value)


def test_refuse_an_empty_list_of_instances_in_generate() -> None:
    """Other routes read an empty list as an empty list of tensors."""
    body = FlatBody({"inputs": []}, generates=True)
    with pytest.raises(InvalidRequest, match="'inputs' is an empty list"):
        body.bind(client_of(1, Anything), Request("id"))


@pytest.mark.parametrize("size", ["", "-1", "1.5", "x", "3", "9" * 5000, "\u0663"])
def test_refuse_a_header_size_outside_the_body(size: str) -> None:
    with pytest.raises(InvalidRequest):
        read_body(f"{BINARY};json-header-size={size}", b"{}")


@pytest.mark.parametrize(
    ("header", "pairs"),
    [
        ("model_name=resnet;model_version=1", {"model_name": "resnet", "model_version": "1"}),
        ("model_name=resnet, model_version=1", {"model_name": "resnet", "model_version": "1"}),
        ("c000b4f9-df62-4c85-a0bf-7c525f9104a4", {}),
        ("a=b=c; =x;;top_k=3", {"a": "b=c", "top_k": "3"}),
        (
            "model_name=yolov5;classes=0,1,top_k=2",
            {"model_name": "yolov5", "classes": "0,1", "top_k": "2"},
        ),
        ("", {}),
    ],
)
def test_read_pairs_from_custom_attributes_and_ignore_the_rest(
    header: str, pairs: dict[str, str]
) -> None:
    assert read_attributes(header) == pairs


def test_read_a_quoted_cell_over_several_lines() -> None:
    client = Client(Model("m", Path("/nonexistent"), (TensorSpec("X", "FP32", (2,)),), (), 8))
    items = CsvBody(b'1,"2\n3"\n\r\n4,5\r\n6,"', header=False).items(client)
    assert [item.raw for item in items] == [b'1,"2\n3"\n', b"4,5\r\n", b'6,"']
    for wrong in (b'"a"b,1\n1,2\n', b'5" pipe,1\n1,2\n'):  # a wrong row does not affect other rows
        assert len(list(CsvBody(wrong).items(client))) == 2
    for slow in (b"\n" * 10_000, b'"' + b"\n" * 10_000):
        with within(looks(5)), pytest.raises(TooLate):
            list(CsvBody(b"1,2\n" + slow, header=False).items(client))


def test_refuse_a_truncated_form_or_one_without_boundary() -> None:
    whole = (
        b'--b\r\nContent-Disposition: form-data; name="image"; '
        b'filename="a.png"\r\n\r\nxy\r\n--b--\r\n'
    )
    form = read_body('multipart/form-data; boundary="b"', whole)
    assert isinstance(form, TextOrForm)
    assert [(item.field, item.raw) for item in form.items] == [("image", b"xy")]
    for kind in (
        "boundary=b",
        "boundary=c",
        "",
        "boundary=\xe4",
        "boundary*=utf-8''c",
        "a*0=x; a*=y",
    ):
        with pytest.raises(InvalidRequest):
            read_body(
                f"multipart/form-data; {kind}", whole[:-10] if kind == "boundary=b" else whole
            )


BODY = b'{"inputs": []}' * 100
LIMIT = len(BODY)


def packed(data: bytes) -> bytes:
    """Compress the data without a time, which would become a part of the test's name."""
    return gzip.compress(data, mtime=0)


@pytest.mark.parametrize(
    ("encoding", "data"),
    [
        ("GZIP", packed(BODY)),
        ("x-gzip", packed(BODY)),
        ("deflate", zlib.compress(BODY)),
        ("gzip", packed(BODY[:500]) + packed(BODY[500:])),
        (" Identity ", BODY),
    ],
)
def test_unpack_a_compressed_body_up_to_the_limit(encoding: str, data: bytes) -> None:
    assert unpacked(data, encoding, LIMIT) == BODY


@pytest.mark.parametrize("compress", [packed, zlib.compress])
def test_unpack_members_that_take_several_calls_each(compress: Callable[[bytes], bytes]) -> None:
    member = b"0123456789" * (INFLATED // 4)
    data = compress(member) * 3
    assert unpacked(data, "gzip", 3 * len(member)) == member * 3
    with pytest.raises(InvalidRequest, match="too early"):
        unpacked(data[:-1], "gzip", 3 * len(member))


def test_unpack_an_empty_body() -> None:
    assert unpacked(packed(b""), "gzip", LIMIT) == b""
    assert unpacked(b"", "gzip", LIMIT) == b""


@pytest.mark.parametrize(
    "data", [packed(BODY), packed(BODY[:700]) * 2 + packed(b"1"), packed(bytes(10**8))]
)
def test_refuse_a_byte_more_than_the_limit(data: bytes) -> None:
    with pytest.raises(PayloadTooLarge):
        unpacked(data, "gzip", LIMIT - 1)


@pytest.mark.parametrize("data", [b"hello", packed(BODY)[:-9], packed(BODY) + b"rest", BODY])
def test_refuse_a_body_that_cannot_be_unpacked(data: bytes) -> None:
    with pytest.raises(InvalidRequest):
        unpacked(data, "gzip", LIMIT * 10)


LINES, EVENTS = "application/jsonlines", "text/event-stream"


@pytest.mark.parametrize(
    ("accept", "wanted"),
    [
        ("", JSON_TYPE),
        (f"{EVENTS}, */*", EVENTS),
        (f"{JSON_TYPE}, {EVENTS};q=0.1", JSON_TYPE),
        (f"{JSON_TYPE};q=0.1, {EVENTS}", EVENTS),
        (f"{LINES};q=0.5, {EVENTS};q=0.6", EVENTS),
        (f"text/csv, {LINES};q=0.5", JSON_TYPE),
        ("text/*", JSON_TYPE),
        (f"{EVENTS}; charset=utf-8", EVENTS),
        ("nonsense;;q=x,,", JSON_TYPE),
    ],
)
def test_read_accept_by_quality_and_fall_back_to_json(accept: str, wanted: str) -> None:
    assert (streamed_type(accept) or JSON_TYPE) == wanted


AT_ONCE = """
import sys
import threading

import msgspec

from serving.bodies.schemas import read

sys.setswitchinterval(1e-6)
for number in range(300):
    fields = [(f"a{index}", "list[int] | None", None) for index in range(20)]
    inner = msgspec.defstruct(f"Inner{number}", fields)
    lists = [(f"b{index}", list[inner] | None, None) for index in range(5)]
    outer = msgspec.defstruct(f"Outer{number}", lists)
    begin = threading.Barrier(4)

    def call():
        begin.wait()
        read(outer, b'{"b0": [{"a0": [1]}]}')

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
"""


def test_read_a_new_shape_in_several_threads_at_once() -> None:
    """With msgspec alone, the process would crash (SIGSEGV) if a thread used a shape while another
    thread was still preparing it."""
    done = subprocess.run([sys.executable, "-c", AT_ONCE], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
