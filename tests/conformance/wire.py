"""Sends HTTP/1.1 byte for byte over a socket, for requests that well-behaved clients never send."""

import contextlib
import http.client
import socket
from dataclasses import dataclass, field
from typing import BinaryIO

SECONDS = 60.0
Headers = dict[str, str]


@dataclass(frozen=True)
class Answer:
    """A response. The names in `headers` are in lower case. `interim` is the status of a 1xx
    response before it, or 0."""

    status: int
    headers: Headers = field(default_factory=dict)
    body: bytes = b""
    interim: int = 0

    @property
    def content_type(self) -> str:
        return self.headers.get("content-type", "")


def request(method: str, path: str, headers: Headers | None = None, body: bytes = b"") -> bytes:
    """Return the bytes of a request, with a Content-Length unless the headers determine its
    length."""
    fields = {"Host": "localhost", **(headers or {})}
    if not {"Content-Length", "Transfer-Encoding"} & fields.keys() and (
        body or method in ("POST", "PUT")
    ):
        fields["Content-Length"] = str(len(body))
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def exchange(port: int, data: bytes, *methods: str, seconds: float = SECONDS) -> list[Answer]:
    """Send `data`, which contains one request for each of the methods, and read the answers. Return
    fewer answers if the others do not arrive in time."""
    answers: list[Answer] = []
    with (
        contextlib.suppress(ConnectionError, TimeoutError),
        _connected(port, seconds) as connection,
    ):
        connection.sendall(data)
        with connection.makefile("rb") as stream:
            for method in methods:
                if answer := _read(stream, method):
                    answers.append(answer)
    return answers


def _connected(port: int, seconds: float) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=seconds)


def send(
    port: int, method: str, path: str, headers: Headers | None = None, body: bytes = b""
) -> Answer:
    """Send one request on its own connection. Return the status 0 if the server closes the
    connection without an answer."""
    answers = exchange(port, request(method, path, headers, body), method)
    return answers[0] if answers else Answer(0)


def chunked(body: bytes, size: int) -> bytes:
    """Return the body in chunks of that size, as Transfer-Encoding: chunked requires."""
    parts = [body[at : at + size] for at in range(0, len(body), size)]
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in [*parts, b""])


def _read(stream: BinaryIO, method: str) -> Answer | None:
    words = stream.readline().split(None, 2)
    if len(words) < 2:
        return None
    status, message = int(words[1]), http.client.parse_headers(stream)
    if status < 200:
        final = _read(stream, method)
        return final and Answer(final.status, final.headers, final.body, interim=status)
    headers = {name.lower(): value for name, value in message.items()}
    return Answer(status, headers, b"" if method == "HEAD" else _body(stream, headers))


def _body(stream: BinaryIO, headers: Headers) -> bytes:
    if "chunked" in headers.get("transfer-encoding", ""):
        return b"".join(_chunks(stream))
    length = headers.get("content-length")
    return stream.read() if length is None else stream.read(int(length))


def _chunks(stream: BinaryIO) -> list[bytes]:
    chunks = []
    while size := int(stream.readline(), 16):
        chunks.append(stream.read(size))
        stream.readline()
    stream.readline()
    return chunks
