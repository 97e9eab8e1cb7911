"""Tests behaviours that take more than one request: connections, encodings, and whether the server
survives."""

import gzip
import json
import zlib
from collections.abc import Callable

from tests.conformance import wire
from tests.conformance.behaviours import BINARY, Ask, Side, compact, shown
from tests.conformance.wire import Answer

X: dict[str, object] = {"name": "x", "shape": [1, 2], "datatype": "FP32", "data": [1, 2.5]}
ONE = {"inputs": [X]}
PATIENCE = 20.0  # seconds to wait for an answer that may never come
FLOAT = b"\0\0\x80\x3f"
HEADER = compact(
    {
        "inputs": [
            {
                "name": "x",
                "shape": [1, 1],
                "datatype": "FP32",
                "parameters": {"binary_data_size": 4},
            }
        ],
        "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
    }
)


def framing(answer: Answer) -> str:
    names = ("content-type", "content-length", "content-encoding", "transfer-encoding")
    fields = [f"{name}: {answer.headers[name]}" for name in names if name in answer.headers]
    return ", ".join([str(answer.status), *fields])


def status(answer: Answer) -> str:
    return str(answer.status)


def error_type(answer: Answer) -> str:
    return f"{answer.status} {answer.content_type}"


def error_fields(answer: Answer) -> str:
    return f"{answer.status} {{{', '.join(json.loads(answer.body))}}}"


def echo_of(name: str) -> Callable[[Answer], str]:
    """Return a function that shows whether this header is returned in an answer."""
    return lambda answer: f"{answer.status}, {name}: {answer.headers.get(name.lower(), 'none')}"


def and_then(ask: Ask) -> Ask:
    """Return the answer, and the status of an ordinary request after it."""

    def asked(side: Side) -> str:
        first = ask(side)
        after = wire.send(side.port, "POST", side.path, {}, compact(ONE)).status
        return f"{first}; the next request: {after or 'hangs up, as the server is dead'}"

    return asked


def chunked_json(side: Side) -> str:
    body = wire.chunked(compact(ONE), 7)
    return shown(wire.send(side.port, "POST", side.path, {"Transfer-Encoding": "chunked"}, body))


def chunked_binary(side: Side) -> str:
    headers = {
        "Transfer-Encoding": "chunked",
        "Content-Type": f"{BINARY};json-header-size={len(HEADER)}",
    }
    return shown(wire.send(side.port, "POST", side.path, headers, wire.chunked(HEADER + FLOAT, 50)))


def expecting(side: Side) -> str:
    return shown(wire.send(side.port, "POST", side.path, {"Expect": "100-continue"}, compact(ONE)))


def pipelined(side: Side) -> str:
    one = wire.request("POST", side.path, body=compact(ONE))
    data = one + wire.request("GET", "/ping") + one
    answers = wire.exchange(side.port, data, "POST", "GET", "POST", seconds=PATIENCE)
    replies = [f"{answer.status} with {'a' if answer.body else 'no'} body" for answer in answers]
    return ", ".join([*replies, *["nothing"] * (3 - len(replies))])


def closing(side: Side) -> str:
    one = wire.request("POST", side.path, {"Connection": "close"}, compact(ONE))
    answers = wire.exchange(side.port, one + one, "POST", "POST", seconds=PATIENCE)
    return ", ".join(str(answer.status) for answer in answers)


def http_1_0(side: Side) -> str:
    one = wire.request("POST", side.path, body=compact(ONE)).replace(b"HTTP/1.1", b"HTTP/1.0")
    return shown(wire.exchange(side.port, one, "POST")[0])


def compressed(encoding: str) -> Ask:
    plain = compact(ONE)
    data = {"gzip": gzip.compress(plain), "deflate": zlib.compress(plain)}.get(encoding, plain)
    return lambda side: shown(
        wire.send(side.port, "POST", side.path, {"Content-Encoding": encoding}, data)
    )


def compressed_binary(side: Side) -> str:
    """Send a compressed binary body. The length in the Content-Type counts the uncompressed
    JSON."""
    headers = {
        "Content-Encoding": "gzip",
        "Content-Type": f"{BINARY};json-header-size={len(HEADER)}",
    }
    return shown(wire.send(side.port, "POST", side.path, headers, gzip.compress(HEADER + FLOAT)))


def bomb(side: Side) -> str:
    data = zlib.compress(b" " * 40_000_000, 9)
    return shown(wire.send(side.port, "POST", side.path, {"Content-Encoding": "deflate"}, data))


def large(megabytes: int, as_binary: bool) -> Ask:
    """Send `megabytes` MB of numbers, as JSON or as bytes, and show the size of the answer."""
    count = megabytes * 250_000 if as_binary else megabytes * 500_000
    tensor = {"name": "x", "shape": [1, count], "datatype": "FP32"}

    def asked(side: Side) -> str:
        if not as_binary:
            body, kind = compact({"inputs": [{**tensor, "data": [1] * count}]}), "application/json"
        else:
            header = compact(
                {
                    "inputs": [{**tensor, "parameters": {"binary_data_size": 4 * count}}],
                    "outputs": [{"name": "y", "parameters": {"binary_data": True}}],
                }
            )
            body, kind = header + FLOAT * count, f"{BINARY};json-header-size={len(header)}"
        answer = wire.send(side.port, "POST", side.path, {"Content-Type": kind}, body)
        return f"{answer.status}, {len(answer.body)} bytes"

    return asked
