"""Which tensors nginx hands to Triton and which to Flask, by their bodies. Both are stand-ins that answer with the path
that they were asked for: bodies that would end a real Triton are sent here."""

import json
import re
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest
import requests

from serving.supervisor.nginx import direct_megabytes_of, lengths_below
from tests.supervisor.test_nginx_conf import Edge, Upstream, Upstreams

BINARY = "application/vnd.sagemaker-triton.binary+json"
FLOATS = [0.123456789] * 150_000
SPACES = " " * 5000
LARGE = [9_999_999]  # seven digits, for a body of 60 kB and more


class Triton(BaseHTTPRequestHandler):
    """Takes everything."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        reply = json.dumps({"path": self.path}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(reply)))
        self.end_headers()
        self.wfile.write(reply)

    def log_message(self, *_: object) -> None:
        pass


class Tritons(socketserver.ThreadingMixIn, socketserver.TCPServer):
    daemon_threads = True


@pytest.fixture(scope="module")
def edge(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Edge]:
    folder = tmp_path_factory.mktemp("edge")
    (folder / "models/scale/1").mkdir(parents=True)
    with Upstreams(str(folder / "gunicorn.sock"), Upstream) as flask, Tritons(("127.0.0.1", 0), Triton) as triton:
        for server in (flask, triton):
            threading.Thread(target=server.serve_forever, daemon=True).start()
        running = Edge(
            folder,
            SERVE_MODEL_REPOSITORY=str(folder / "models"),
            SERVE_LOAD_MODELS="scale",
            SERVE_TRITON_HTTP_PORT=str(triton.server_address[1]),
            SERVE_MAX_CONCURRENCY="8",
        )
        yield running
        assert running.stop() == 0
        for server in (flask, triton):
            server.shutdown()


def tensor(shape: Any, data: list[Any], name: str = "x") -> dict[str, Any]:
    return {"name": name, "shape": shape, "datatype": "FP32", "data": data}


def body(*inputs: dict[str, Any], **more: Any) -> str:
    return json.dumps({"inputs": inputs, **more})


def header(*inputs: dict[str, Any], **more: Any) -> bytes:
    """The JSON of a binary body."""
    return body(*[each | {"data": [], "parameters": {"binary_data_size": 8}} for each in inputs], **more).encode()


def who_answers(edge: Edge, data: bytes | str, kind: str = "application/json") -> str:
    headers = {"Content-Type": kind, "X-Amzn-SageMaker-Target-Model": "scale"}
    path = requests.post(f"{edge.url}/invocations", data=data, headers=headers, timeout=5).json()["path"]
    return {"/v2/models/scale/versions/1/infer": "Triton", "/invocations": "Flask"}[path]


SMALL = tensor([1, 2], [1, 2])
MANY = [tensor([1, 2], [1, 2], f"x{number}") for number in range(9)]
AFTER_SPACES = body(SMALL).replace("{", "{" + SPACES, 1)
JSON_BODIES = {
    "four floats": (body(tensor([1, 4], [1, 2, 3, 4])), "Triton"),
    "an image": (body(tensor([1, 150_000], FLOATS)), "Triton"),
    "an image by its sides": (body(tensor([1, 3, 100, 500], FLOATS)), "Triton"),
    "the shape behind the data": (body(dict(sorted(tensor([1, 150_000], FLOATS).items()))), "Triton"),
    "four large inputs": (body(*[tensor([1, 9000], FLOATS[:9000], str(n)) for n in range(4)]), "Triton"),
    "strings": (body(tensor([1, 9000], ["a model's name, a shape"] * 9000)), "Triton"),
    "a shape after spaces": (AFTER_SPACES, "Triton"),
    "many sizes of one": (body(tensor([1] * 50, [1])), "Triton"),
    "a model's name": (body(SMALL, model_name="other"), "Flask"),
    "a model's name at the end": (body(tensor([1, 150_000], FLOATS), modelversion=1), "Flask"),
    "an escaped key": (body(SMALL).replace("shape", "sh\\u0061pe"), "Flask"),
    "an escape at the end": (body(tensor([1, 150_000], FLOATS), q="\\u0061").replace("\\\\", "\\"), "Flask"),
    "a shape too large for a short body": (body(tensor([1, 9999], [1])), "Flask"),
    "a shape too large for 10 kB": (body(tensor([99_999_9], FLOATS[:700])), "Flask"),
    "a shape too large for any body": (body(tensor([2**40], FLOATS)), "Flask"),
    "sizes that multiply to one": (body(tensor([9999, 9999], FLOATS)), "Flask"),
    "a size far from its bracket": (body(SMALL).replace("[1, 2]", f"[{SPACES}1, 99999999]", 1), "Flask"),
    "a bracket far from its key": (
        body(SMALL).replace('"shape":', f'"shape"{SPACES}:{SPACES}').replace("[1, 2]", "[99999999]", 1),
        "Flask",
    ),
    "a shape too large after spaces": (AFTER_SPACES.replace("[1, 2]", "[1, 9999999]", 1), "Flask"),
    "the second of two shapes": (body(SMALL, tensor([2**40], [1], "y")), "Flask"),
    "a shape named twice": (body(SMALL).replace('"shape"', '"shape": [99999999], "shape"'), "Flask"),
    "nine shapes": (body(*MANY), "Flask"),
    "nine large shapes": (body(*[each | {"shape": LARGE} for each in MANY]) + SPACES * 20, "Flask"),
    "nine shapes after spaces": (body(*MANY).replace("{", "{" + SPACES, 1), "Flask"),
}


@pytest.mark.parametrize(("data", "answers"), JSON_BODIES.values(), ids=JSON_BODIES)
def test_a_json_body_goes_to_triton_unless_flask_would_treat_it_otherwise(edge: Edge, data: str, answers: str) -> None:
    assert who_answers(edge, data) == answers


BINARY_BODIES = {
    "an image": (header(tensor([1, 150_000], [])), bytes(600_000), "Triton"),
    "an image of 640 by 640": (header(tensor([1, 3, 640, 640], [])), bytes(4 * 3 * 640**2), "Triton"),
    "the largest of SageMaker": (header(tensor([1, 6_500_000], [])), bytes(26_000_000 - 500), "Triton"),
    "more than the largest": (header(tensor([1, 6_500_000], [])), bytes(26_000_000), "Flask"),
    "names among the data": (header(SMALL), bytes(4096) + b'"model_name" \\u0061' + b'"shape"' * 20, "Triton"),
    "a model's name": (header(SMALL, model_name="other"), bytes(8), "Flask"),
    "an escaped key": (header(SMALL).replace(b"shape", b"sh\\u0061pe"), bytes(8), "Flask"),
    "a shape too large for any body": (header(tensor([2**40], [])), bytes(600_000), "Flask"),
    "a shape at the end of the header": (header(SMALL, id=" " * 3500, q=tensor([2**40], [])), bytes(600_000), "Flask"),
    "nine shapes": (header(*MANY), bytes(600_000), "Flask"),
}


@pytest.mark.parametrize(("head", "data", "answers"), BINARY_BODIES.values(), ids=BINARY_BODIES)
def test_of_a_binary_body_the_json_counts(edge: Edge, head: bytes, data: bytes, answers: str) -> None:
    assert who_answers(edge, head + data, f"{BINARY};json-header-size={len(head)}") == answers


@pytest.mark.parametrize("part", [b'"shape":', b'"shape":[ ', b'"shape":[1,', b'"shape" ', b'"', b"\\u00", b"1,"])
def test_no_body_makes_nginx_search_for_long(edge: Edge, part: bytes) -> None:
    """A search that is not linear would take minutes of 3 MB; the five seconds of a request are enough here."""
    data = b'{"inputs":[{"shape":[1,2],' + bytes(4096) + part * (3_000_000 // len(part))
    who_answers(edge, data)
    who_answers(edge, data, f"{BINARY};json-header-size=24")


@pytest.mark.parametrize("megabytes", [1, 2, 10, 26])
def test_bodies_are_looked_at_up_to_a_length(megabytes: int) -> None:
    fits = re.compile(lengths_below(megabytes)).fullmatch
    assert all(map(fits, ("1", "10", "999999", str(megabytes * 10**6 - 1))))
    assert not any(map(fits, ("", "0", "05", str(megabytes * 10**6), str(10 * megabytes * 10**6))))


@pytest.mark.parametrize(("gigabytes", "megabytes"), [(0.25, 1), (4, 4), (8, 8), (64, 26)])
def test_they_take_a_quarter_of_the_memory_at_most(gigabytes: float, megabytes: int) -> None:
    assert direct_megabytes_of(128, int(gigabytes * 2**30)) == megabytes
