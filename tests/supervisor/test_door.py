"""door.lua in the real nginx: whom it hands a request to, and with which bytes. Triton and Flask are stand-ins that say
what they got; tests/test_door.py has the real ones."""

import base64
import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import psutil
import pytest
import requests

from serving.repository.facts import ModelFacts
from tests.supervisor.test_nginx_conf import Edge, Upstream, Upstreams, check_error
from tests.support.harness import PATIENCE, wait_until

BINARY = "application/vnd.sagemaker-triton.binary+json"
FLOATS = np.array([[0.1, -2.5, 1e-30, 16777216.0]], dtype=np.float32)
SMALL = {"name": "x", "shape": [1, 4], "datatype": "FP32", "data": [0.1, -2.5, 1e-30, 16777216.0]}
SIZED = {"name": "x", "shape": [1, 4], "datatype": "FP32", "parameters": {"binary_data_size": 16}}


NO_NUMBERS = rb'{"a":[NaN,-Infinity,Infinity,-1.5,true],"N,NaN,\"":["[NaN,\\","Infinity","\\\"NaN"],"z":NaN}'


class StandIn(BaseHTTPRequestHandler):
    """Answers with what it got; a path of version 404 with that status, one of version 2 after a while, one of version
    5 with numbers that are none, byte by byte."""

    protocol_version = "HTTP/1.1"
    program: ClassVar[str]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if "/versions/2/" in self.path:
            Upstream.at_work.add(threading.get_ident())
            Triton.go_on.wait(PATIENCE)
            Upstream.at_work.discard(threading.get_ident())
        if "/versions/5/" in self.path:
            self._dribble(NO_NUMBERS)
            return
        seen = {"program": self.program, "path": self.path, "headers": dict(self.headers)}
        reply = json.dumps(seen | {"body": base64.b64encode(body).decode()}).encode()
        self.send_response(404 if "/versions/404/" in self.path and self.program == "Triton" else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(reply)))
        if "binary_data_output" in body.decode("latin-1"):
            self.send_header("Inference-Header-Content-Length", "77")
        self.end_headers()
        self.wfile.write(reply)

    def _dribble(self, reply: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        for byte in reply:
            self.wfile.write(bytes([byte]))

    do_GET = do_PUT = do_POST

    def address_string(self) -> str:
        return ""

    def log_message(self, *_: object) -> None:
        pass


class Triton(StandIn):
    program = "Triton"
    go_on = threading.Event()


class Flask(StandIn):
    program = "Flask"


MODELS = {"scale": ModelFacts(version="3"), "own": ModelFacts(version="1", client=True), "chosen": ModelFacts()}


@contextmanager
def running_edge(folder: Path, **variables: str) -> Iterator[Edge]:
    (folder / "triton").mkdir()
    sockets = [str(folder / name) for name in ("gunicorn.sock", "triton/http.sock")]
    with Upstreams(sockets[0], Flask) as flask, Upstreams(sockets[1], Triton) as triton:
        for server in (flask, triton):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        limits = {"SERVE_KSERVE": "true", "SERVE_MAX_CONCURRENCY": "2"}
        running = Edge(folder, MODELS, **limits, **variables)
        yield running
        assert running.stop() == 0
        for server in (flask, triton):
            server.shutdown()


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    """Of one model."""
    folder = tmp_path_factory.mktemp("edge")
    with running_edge(folder, SAGEMAKER_TRITON_DEFAULT_MODEL_NAME="scale") as running:
        yield running


class Got:
    """What one of the two got."""

    def __init__(self, reply: requests.Response) -> None:
        seen = reply.json()
        self.reply, self.program, self.path, self.headers = reply, seen["program"], seen["path"], seen["headers"]
        self.body = base64.b64decode(seen["body"])

    def tensors(self) -> tuple[dict[str, Any], bytes]:
        """The JSON and the data of what Triton got."""
        assert self.program == "Triton"
        size = int(self.headers["Inference-Header-Content-Length"])
        return json.loads(self.body[:size]), self.body[size:]


def send(edge: Edge, data: Any, path: str = "/invocations", method: str = "POST", **headers: str) -> Got:
    body = data if isinstance(data, bytes) else json.dumps(data).encode()
    named = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    return Got(requests.request(method, edge.url + path, data=body, headers=named, timeout=PATIENCE))


def send_binary(edge: Edge, head: Any, data: bytes, **headers: str) -> Got:
    text = head if isinstance(head, bytes) else json.dumps(head).encode()
    return send(edge, text + data, **({"Content_Type": f"{BINARY};json-header-size={len(text)}"} | headers))


def body(*inputs: Any, **more: Any) -> dict[str, Any]:
    return {"inputs": list(inputs) or [SMALL], **more}


NUMBERS = {
    "INT8": [-128, 127, 0],
    "INT16": [-32768, 32767, 0],
    "INT32": [-(2**31), 2**31 - 1, 0],
    "INT64": [-(2**53) + 1, 2**53 - 1, 0],
    "UINT8": [0, 255, 1],
    "UINT16": [0, 65535, 1],
    "UINT32": [0, 2**32 - 1, 2**31],
    "UINT64": [0, 2**53 - 1, 1],
    "FP32": [0.1, -3.4028234663852886e38, 1e-45],
    "FP64": [0.1, 1.7976931348623157e308, 5e-324],
}
DTYPES = {"FP32": "f4", "FP64": "f8"} | {
    f"{sign}INT{8 * size}": f"{kind}{size}" for sign, kind in (("", "i"), ("U", "u")) for size in (1, 2, 4, 8)
}


@pytest.mark.parametrize("datatype", NUMBERS)
def test_numbers_become_numpys_bytes(edge: Edge, datatype: str) -> None:
    values = NUMBERS[datatype]
    expected = np.array(values, dtype=DTYPES[datatype]).tobytes()
    head, data = send(edge, body({**SMALL, "datatype": datatype, "shape": [3], "data": values})).tensors()
    assert data == expected
    size = {"binary_data_size": len(expected)}
    assert head["inputs"] == [{"name": "x", "datatype": datatype, "shape": [3], "parameters": size}]


OUT_OF_RANGE: dict[str, list[Any]] = {
    "BOOL": [True, False, 0, 1, "true", None],
    "INT8": [-129, 128, 1.5, True, "1"],
    "INT16": [-32769, 32768],
    "INT32": [-(2**31) - 1, 2**31, 1e300],
    "INT64": [2**53, -(2**53), 2**63, 0.5],
    "UINT8": [-1, 256],
    "UINT16": [-1, 65536],
    "UINT32": [-1, 2**32],
    "UINT64": [-1, 2**53, 2**64],
    "FP32": [3.5e38, -1e308, True, "1", None, {}, [], {"a": 1}],
    "FP64": [True, "1"],
    "FP16": [1],
    "BF16": [1],
    "BYTES": ["a"],
    "fp32": [1],
}
WRONG_VALUES = [(datatype, value) for datatype, values in OUT_OF_RANGE.items() for value in values]


@pytest.mark.parametrize(("datatype", "value"), WRONG_VALUES, ids=map(str, WRONG_VALUES))
def test_what_a_datatype_does_not_hold_for_certain_is_flasks(edge: Edge, datatype: str, value: Any) -> None:
    sent = body({**SMALL, "datatype": datatype, "shape": [2], "data": [value, value]})
    assert send(edge, sent).program == "Flask"


@pytest.mark.parametrize("number", [b"NaN", b"Infinity", b"-Infinity", b"0x10", b"01", b"+1", b"1e999", b"nan", b"-"])
def test_what_is_no_number_in_json_is_flasks(edge: Edge, number: bytes) -> None:
    for datatype in ("FP64", "FP32", "UINT8"):
        sent = json.dumps(body({**SMALL, "datatype": datatype, "shape": [1], "data": [7.25]}))
        assert send(edge, sent.encode().replace(b"7.25", number)).program == "Flask"


def test_several_inputs_nested_data_outputs_and_an_id_are_written_anew(edge: Edge) -> None:
    nested = {"name": "b:0", "datatype": "INT64", "shape": [2, 2], "data": [[1, 2], [3, 4]]}
    outputs = [{"name": "y"}, {"name": "a b/c.d-e_f", "parameters": {"binary_data": False}}]
    more = {"id": "mine-1", "outputs": outputs, "parameters": {"binary_data_output": True}}
    head, data = send(edge, body(SMALL, nested, **more)).tensors()
    assert data == FLOATS.tobytes() + np.array([1, 2, 3, 4]).tobytes()
    assert [each["parameters"] for each in head.pop("inputs")] == [{"binary_data_size": 16}, {"binary_data_size": 32}]
    assert head.pop("outputs") == [{"name": "y", "parameters": {}}, outputs[1]]
    assert head == {"id": "mine-1", "parameters": {"binary_data_output": True}}


def test_binary_data_passes_as_it_is_and_its_json_is_written_anew(edge: Edge) -> None:
    second = {**SIZED, "name": "b", "datatype": "BOOL", "shape": [3], "parameters": {"binary_data_size": 3}}
    data = FLOATS.tobytes() + b'\0"\xff'
    got = send_binary(edge, b"  " + json.dumps(body(SIZED, SMALL | {"name": "c"}, second)).encode(), data)
    head, sent = got.tensors()
    assert sent == FLOATS.tobytes() + FLOATS.tobytes() + b'\0"\xff'
    assert [each["name"] for each in head["inputs"]] == ["x", "c", "b"]
    assert got.headers["Content-Type"] == "application/octet-stream"
    assert int(got.headers["Content-Length"]) == len(got.body)


def test_the_last_of_two_equal_keys_counts_as_in_flask(edge: Edge) -> None:
    text = json.dumps(body()).encode()
    for one, two in ((b'"shape": ', b'"shape": [1, 1099511627776], "shape": '), (b'"shape"', b'"sh\\u0061pe"')):
        head, data = send(edge, text.replace(one, two)).tensors()
        assert (head["inputs"][0]["shape"], data) == ([1, 4], FLOATS.tobytes())
    twice = text.replace(b'{"inputs"', b'{"inputs": [{"shape": [9999999999]}], "inputs"')
    assert send(edge, twice).tensors()[1] == FLOATS.tobytes()


UNKNOWN: dict[str, Any] = {
    "a model's name": body(model_name="other"),
    "a model's short name": body(modelname="other"),
    "a version": body(model_version=1),
    "a priority": body(parameters={"priority": 1}),
    "a sequence": body(parameters={"sequence_id": 1, "sequence_start": True}),
    "a time limit": body(parameters={"timeout": 1}),
    "shared memory in": body({**SIZED, "parameters": {"shared_memory_region": "a", "shared_memory_byte_size": 16}}),
    "shared memory out": body(outputs=[{"name": "y", "parameters": {"shared_memory_region": "a"}}]),
    "classes": body(outputs=[{"name": "y", "parameters": {"classification": 2}}]),
    "another key of an input": body({**SMALL, "extra": 1}),
    "another key of an output": body(outputs=[{"name": "y", "datatype": "FP32"}]),
    "parameters beside data": body({**SMALL, "parameters": {}}),
    "data and a size": body({**SIZED, "data": []}),
    "no data": body({"name": "x", "shape": [1], "datatype": "FP32"}),
    "a size in JSON": body(SIZED),
    "no inputs": {"inputs": []},
    "no document": [],
    "inputs by name": {"inputs": {"x": SMALL}},
    "no outputs": body(outputs=[]),
    "null": body(outputs=None),
    "null parameters": body(parameters=None),
    "false parameters": body(parameters=False),
    "false data": body({**SIZED, "data": False}),
    "a null input": {"inputs": [None]},
    "an id that is a number": body(id=7),
    "an id that is false": body(id=False),
    "an id with a quote": body(id='a"b'),
    "a name in another script": body({**SMALL, "name": "größe"}),
    "an empty name": body({**SMALL, "name": ""}),
    "no name": body({key: value for key, value in SMALL.items() if key != "name"}),
    "a name with a zero": body({**SMALL, "name": "x\0"}),
    "a flag that is a number": body(parameters={"binary_data_output": 1}),
    "an output's flag that is text": body(outputs=[{"name": "y", "parameters": {"binary_data": "true"}}]),
    "instances": {"instances": [1]},
    "deep data": body({**SMALL, "shape": [1], "data": [[[[[[[[[[1]]]]]]]]]]}),
}


@pytest.mark.parametrize("sent", UNKNOWN.values(), ids=UNKNOWN)
def test_what_the_door_does_not_know_is_flasks_with_the_callers_bytes(edge: Edge, sent: Any) -> None:
    got = send(edge, sent)
    assert (got.program, got.path, json.loads(got.body)) == ("Flask", "/invocations", sent)


SHAPES: list[Any] = [
    [1, 2**40],
    [2**40],
    [99999, 99999],
    [2**63],
    [2**64, 2**64],
    [-1, -4],
    [-4],
    [0],
    [4, 0],
    [1.5],
    [4.5, 1],
    [1e308, 1e308],
    ["4"],
    [None],
    [True],
    [[4]],
    [],
    {},
    {"0": 4},
    4,
    "4",
    None,
    [2],
    [5],
    [1, 4, 2],
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_a_shape_that_the_data_does_not_fill_is_flasks(edge: Edge, shape: Any) -> None:
    assert send(edge, body({**SMALL, "shape": shape})).program == "Flask"
    assert send_binary(edge, body({**SIZED, "shape": shape}), FLOATS.tobytes()).program == "Flask"


@pytest.mark.parametrize("size", [0, -16, 15, 17, 16.5, 2**40, "16", None, True, [16]], ids=str)
def test_a_size_that_is_not_the_datas_is_flasks(edge: Edge, size: Any) -> None:
    sent = body({**SIZED, "parameters": {"binary_data_size": size}})
    assert send_binary(edge, sent, FLOATS.tobytes()).program == "Flask"


@pytest.mark.parametrize("data", [b"", bytes(15), bytes(17), bytes(32)], ids=len)
def test_data_of_another_length_is_flasks(edge: Edge, data: bytes) -> None:
    assert send_binary(edge, body(SIZED), data).program == "Flask"


@pytest.mark.parametrize("size", ["0", "-1", "9" * 5000, "1e2", "0x10", "", " 5", "99999", "5;x=1", "1.5"], ids=len)
def test_a_header_size_that_is_not_the_jsons_is_flasks(edge: Edge, size: str) -> None:
    sent = json.dumps(body(SIZED)).encode() + FLOATS.tobytes()
    assert send(edge, sent, Content_Type=f"{BINARY};json-header-size={size}").program == "Flask"


@pytest.mark.parametrize("text", [b"", b"{", b"\0", b"\xff\xfe{\0}\0", b'{"inputs":', b"[" * 8000, b'{"a":' * 2000])
def test_what_is_no_json_is_flasks(edge: Edge, text: bytes) -> None:
    assert send(edge, text).program == "Flask"


def test_a_zero_byte_hides_nothing(edge: Edge) -> None:
    got = send(edge, json.dumps(body()).encode() + b"\0, more")
    assert (got.program, got.body[-7:]) == ("Flask", b"\0, more")


NAMED = {"X_Amzn_SageMaker_Target_Model": "scale"}
ATTRIBUTES = "X_Amzn_SageMaker_Custom_Attributes"
HEADERS = {
    "nothing": ({}, "", "/v2/models/scale/versions/3/infer"),
    "a target": (NAMED, "", "/v2/models/scale/versions/3/infer"),
    "attributes": ({ATTRIBUTES: "model_name=scale"}, "", "/v2/models/scale/versions/3/infer"),
    "a version in attributes": (
        {ATTRIBUTES: "model_name=chosen;model_version=1"},
        "",
        "/v2/models/chosen/versions/1/infer",
    ),
    "a query": ({}, "?model_name=scale", "/v2/models/scale/versions/3/infer"),
    "a version in the query": ({}, "?model_name=scale&model_version=1", "/v2/models/scale/versions/1/infer"),
    "a charset": ({"Content_Type": "application/json; charset=utf-8"}, "", "/v2/models/scale/versions/3/infer"),
    "two places": (NAMED, "?model_name=scale", None),
    "an unknown model": ({"X_Amzn_SageMaker_Target_Model": "nobody"}, "", None),
    "a model that is a path": ({"X_Amzn_SageMaker_Target_Model": "../x"}, "", None),
    "a model with a client": ({"X_Amzn_SageMaker_Target_Model": "own"}, "", None),
    "a model that says which versions": ({"X_Amzn_SageMaker_Target_Model": "chosen"}, "", None),
    "other attributes": ({ATTRIBUTES: "threshold=0.5"}, "", None),
    "another query": ({}, "?x=1", None),
    "a version alone": ({}, "?model_version=1", None),
    "a session": ({"X_Amzn_SageMaker_Session_Id": "NEW_SESSION"}, "", None),
    "an encoding": ({"Content_Encoding": "identity"}, "", None),
    "another type": ({"Content_Type": "application/jsonlines"}, "", None),
    "no type": ({"Content_Type": ""}, "", None),
    "events": ({"Accept": "application/json, text/event-stream;q=0.1"}, "", None),
    "lines": ({"Accept": "application/jsonlines"}, "", None),
}


@pytest.mark.parametrize(("headers", "query", "path"), HEADERS.values(), ids=HEADERS)
def test_the_headers_decide_first(edge: Edge, headers: dict[str, str], query: str, path: str | None) -> None:
    got = send(edge, body(), f"/invocations{query}", **headers)
    assert (got.program, got.path) == (("Triton", path) if path else ("Flask", f"/invocations{query}"))


def test_of_a_model_with_a_client_only_the_binary_type_is_tensors(edge: Edge) -> None:
    own = {"X_Amzn_SageMaker_Target_Model": "own"}
    assert send_binary(edge, body(SIZED), FLOATS.tobytes(), **own).path == "/v2/models/own/versions/1/infer"


def test_another_method_is_flasks(edge: Edge) -> None:
    assert send(edge, body(), method="PUT").program == "Flask"


@pytest.mark.parametrize(("length", "program"), [(16384, "Triton"), (16385, "Flask"), (40_000, "Flask")])
def test_a_large_body_is_flasks(edge: Edge, length: int, program: str) -> None:
    assert send(edge, json.dumps(body()).encode().ljust(length)).program == program


@pytest.mark.parametrize(("length", "program"), [(16 * 1024, "Triton"), (16 * 1024 + 1, "Flask")])
def test_a_body_in_chunks_has_come_whole_before_its_length_decides(edge: Edge, length: int, program: str) -> None:
    chunks = iter([json.dumps(body()).encode(), b"".ljust(length - len(json.dumps(body())))])
    reply = requests.post(
        f"{edge.url}/invocations", data=chunks, headers={"Content-Type": "application/json"}, timeout=PATIENCE
    )
    assert Got(reply).program == program


def test_what_triton_refuses_goes_to_flask_as_it_came(edge: Edge) -> None:
    sent = json.dumps(body()).encode() + b"   "
    for path in ("/invocations?model_name=scale&model_version=404", "/v2/models/scale/versions/404/infer"):
        got = send(edge, sent, path, X_Amzn_SageMaker_Inference_Id="refused")
        assert (got.program, got.path, got.body) == ("Flask", path, sent)
        assert (got.reply.status_code, got.headers["X-Request-Id"]) == (200, "refused")
        assert "Inference-Header-Content-Length" not in got.headers


def test_a_reply_of_invocations_is_sagemakers(edge: Edge) -> None:
    sent = body(parameters={"binary_data_output": True})
    got = send(edge, sent, **{ATTRIBUTES: "model_name=scale;model_version=1"}, X_Amzn_SageMaker_Inference_Id="mine")
    headers = got.reply.headers
    assert headers["Content-Type"] == f"{BINARY};json-header-size=77"
    assert (headers["X-Model-Name"], headers["X-Model-Version"], headers["X-Request-Id"]) == ("scale", "1", "mine")
    assert headers["X-Amzn-SageMaker-Custom-Attributes"] == "model_name=scale;model_version=1"
    assert headers["Server-Timing"].startswith("triton;dur=")
    assert "Inference-Header-Content-Length" not in headers


def test_numbers_that_json_has_not_are_null_wherever_the_reply_is_parted_and_strings_stay(edge: Edge) -> None:
    reply = requests.post(f"{edge.url}/v2/models/scale/versions/5/infer", json=body(), timeout=PATIENCE)
    assert reply.content == (rb'{"a":[null,null,null,-1.5,true],"N,NaN,\"":["[NaN,\\","Infinity","\\\"NaN"],"z":null}')
    assert json.loads(NO_NUMBERS)['N,NaN,"'] == reply.json()['N,NaN,"']


def test_a_reply_of_kserve_is_tritons(edge: Edge) -> None:
    headers = send(edge, body(parameters={"binary_data_output": True}), "/v2/models/scale/infer").reply.headers
    assert (headers["Content-Type"], headers["Inference-Header-Content-Length"]) == ("application/json", "77")


@pytest.mark.parametrize("kind", ["application/json", "application/octet-stream", "text/plain"])
def test_kserve_says_by_a_header_whether_its_tensors_are_binary(edge: Edge, kind: str) -> None:
    head = json.dumps(body(SIZED)).encode()
    size = {"Inference_Header_Content_Length": str(len(head)), "Content_Type": kind}
    for path in ("/v2/models/scale/infer", "/v2/models/scale/versions/3/infer", "/v2/models/own/versions/3/infer"):
        got = send(edge, head + FLOATS.tobytes(), path, **size)
        assert got.tensors()[1] == FLOATS.tobytes()
        assert got.path.endswith("/versions/3/infer")
    assert send(edge, body(), "/v2/models/own/infer", Content_Type=kind).tensors()[1] == FLOATS.tobytes()


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/v2/models/nobody/infer", {}),
        ("/v2/models/chosen/infer", {}),
        ("/v2/models/scale/infer", {"Content_Encoding": "gzip"}),
        ("/v2/models/scale/infer", {"Inference_Header_Content_Length": "x"}),
        ("/v2/models/scale/infer", {"Inference_Header_Content_Length": "5"}),
        ("/v2/models/scale/generate", {}),
        ("/v2/models/scale/generate_stream", {}),
        ("/v2/models/scale%2Finfer", {}),
        ("/v2/repository/index", {}),
    ],
)
def test_the_rest_of_kserve_is_flasks(edge: Edge, path: str, headers: dict[str, str]) -> None:
    got = send(edge, body(), path, **headers)
    assert (got.program, got.path) == ("Flask", path)


def test_a_question_reaches_triton_without_its_body(edge: Edge) -> None:
    for sent in (b'{"shape": []}', iter([b"chunk"])):
        reply = requests.get(f"{edge.url}/v2/models/scale/config", data=sent, timeout=PATIENCE)
        got = Got(reply)
        assert (got.program, got.path, got.body) == ("Triton", "/v2/models/scale/config", b"")
        assert not {"Content-Length", "Transfer-Encoding"} & set(got.headers)


QUICK = "/invocations?model_name=scale"
SLOW = f"{QUICK}&model_version=2"


FLASKS = body(parameters={"own": 1})  # what the door leaves to Flask
REFLECTED = "X-Amzn-SageMaker-Custom-Attributes"
LARGE = 16_000_000  # bytes of a body, more than sockets hold of its reply
SLOW_AT_FLASK = "/v2/models/scale/versions/2/infer"


def passed(edge: Edge, path: str, sent: Any = None) -> Got | None:
    """None where there is no place. That of a request is free a moment after its reply."""
    reply = requests.post(f"{edge.url}{path}", json=sent or body(), timeout=PATIENCE)
    return Got(reply) if reply.status_code == 200 else None


@contextmanager
def callers(edge: Edge, number: int, path: str = SLOW, sent: Any = None) -> Iterator[list[Got]]:
    """So many at Triton, or at Flask; their replies, after the context."""
    replies = list[Got]()

    def ask() -> None:
        replies.append(wait_until(lambda: passed(edge, path, sent), "a place is free"))

    threads = [threading.Thread(target=ask) for _ in range(number)]
    wait_until(lambda: not Upstream.at_work, "what came before has ended")
    Triton.go_on.clear()
    for thread in threads:
        thread.start()
    try:
        wait_until(lambda: len(Upstream.at_work) == number, "they are in work")
        yield replies
    finally:
        Triton.go_on.set()
        for thread in threads:
            thread.join()


def test_one_more_than_the_concurrency_is_503_while_flask_answers(edge: Edge) -> None:
    with callers(edge, 2) as replies:
        begun = time.monotonic()
        response = requests.post(f"{edge.url}{SLOW}", json=body(), timeout=PATIENCE)
        assert "2 requests are in work, or of this model as many" in check_error(response, 503, "overloaded")
        assert response.headers["Retry-After"] == "1"
        assert time.monotonic() - begun > 0.5  # its end comes later, so that callers do not ask again at once
        assert send(edge, b"large".ljust(20_000)).program == "Flask"
    assert [got.program for got in replies] == ["Triton"] * 2


AT_FLASK: tuple[tuple[str, dict[str, str]], ...] = (
    ("/invocations", {}),
    ("/v2/models/scale/infer", {}),
    ("/models/scale/invoke", {}),
    ("/invocations", {"Accept": "text/event-stream"}),
    ("/v2/models/scale/generate_stream", {}),
)


def ask_flask(edge: Edge, path: str, headers: dict[str, str]) -> requests.Response:
    headers = {REFLECTED: "a=b"} | headers
    return requests.post(f"{edge.url}{path}", json=FLASKS, headers=headers, timeout=PATIENCE)


def test_one_more_than_flask_may_have_is_503_before_flask_while_all_else_is_answered(edge: Edge) -> None:
    with callers(edge, 2, SLOW_AT_FLASK, FLASKS) as replies:
        with ThreadPoolExecutor() as pool:
            responses = [*pool.map(lambda way: ask_flask(edge, *way), AT_FLASK)]
        for response in responses:
            check_error(response, 503, "overloaded")
            assert (response.headers["Retry-After"], response.headers[REFLECTED]) == ("1", "a=b")
        assert passed(edge, QUICK).program == "Triton"  # type: ignore[union-attr]
        for path in ("/ping", "/models", "/metrics", "/v2/models/scale"):
            assert requests.get(f"{edge.url}{path}", timeout=PATIENCE).status_code == 200
    assert [got.program for got in replies] == ["Flask"] * 2
    assert wait_until(lambda: passed(edge, QUICK, FLASKS), "a place is free").program == "Flask"


NAMING: tuple[tuple[str, dict[str, str]], ...] = (
    ("/v2/models/{}/infer", {}),
    ("/v2/models/{}/versions/7/generate_stream", {}),
    ("/models/{}/invoke", {}),
    ("/invocations", {"X-Amzn-SageMaker-Target-Model": "{}"}),
    ("/invocations", {REFLECTED: "a=b; model_name={},c=d"}),
    ("/invocations?top_k=1&modelname={}&a=b", {"Accept": "text/event-stream"}),
)


def ask_for(edge: Edge, model: str, way: tuple[str, dict[str, str]]) -> requests.Response:
    path, headers = way
    return ask_flask(edge, path.format(model), {name: value.format(model) for name, value in headers.items()})


def test_of_several_models_nginx_refuses_what_is_too_much_of_one_that_is_named_outside_the_body(tmp_path: Path) -> None:
    several = running_edge(tmp_path, SERVE_LOAD_MODELS="scale,own")
    with several as several_edge, callers(several_edge, 1, SLOW_AT_FLASK, FLASKS) as replies:
        for way in NAMING:
            check_error(ask_for(several_edge, "scale", way), 503, "overloaded")
            # The place of the request before is free a moment after its reply.
            wait_until(partial(has_a_place, several_edge, "own", way), "another model has a place")
        unnamed = [way for way in AT_FLASK if way[0] == "/invocations"]
        assert {ask_flask(several_edge, *way).json()["program"] for way in unnamed * 3} == {"Flask"}
    assert [got.program for got in replies] == ["Flask"]


def has_a_place(edge: Edge, model: str, way: tuple[str, dict[str, str]]) -> bool:
    return ask_for(edge, model, way).status_code == 200


def test_callers_who_do_not_read_their_replies_hold_no_place_of_flask(edge: Edge) -> None:
    head = f"POST /invocations HTTP/1.1\r\nHost: x\r\nContent-Length: {LARGE}\r\n\r\n".encode()
    with ExitStack() as stack:
        for _ in range(3):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", edge.settings.port)))
            connection.sendall(head + bytes(LARGE))
            assert connection.recv(12) == b"HTTP/1.1 200"


def leave_two(edge: Edge) -> None:
    """Two requests are at Triton whose callers do not wait for its answer."""
    sent = json.dumps(body()).encode()
    head = f"POST {SLOW} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: {len(sent)}\r\n\r\n"
    wait_until(lambda: not Upstream.at_work, "what came before has ended")
    Triton.go_on.clear()

    def are_there() -> bool:
        with socket.create_connection(("127.0.0.1", edge.settings.port)) as connection:
            connection.sendall(head.encode() + sent)
        return len(Upstream.at_work) == 2

    wait_until(are_there, "they are at Triton")
    assert not passed(edge, QUICK)


def test_the_places_of_callers_who_left_are_free_when_triton_has_answered(edge: Edge) -> None:
    leave_two(edge)
    Triton.go_on.set()
    assert wait_until(lambda: passed(edge, QUICK), "the places are free").program == "Triton"


def test_the_places_of_a_worker_of_nginx_that_died_are_free(edge: Edge) -> None:
    leave_two(edge)
    for worker in psutil.Process(edge.process.pid).children():
        worker.kill()
        worker.wait()  # until then it may take a connection
    wait_until(lambda: passed(edge, QUICK), "the places are free, though Triton has not answered")
    Triton.go_on.set()
