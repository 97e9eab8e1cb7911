"""Receives request bodies faster than gunicorn's own reader does.

It uses `take_buffered` and `unread` of gunicorn's Unreader, which are not documented. Every test of
tests/endpoint that posts a body would fail without them.
"""

import io
from typing import Any

from gunicorn.http.body import LengthReader


def pre_request(_worker: Any, request: Any) -> None:
    """Receive a body of known length faster: gunicorn calls this hook before the app
    (gunicorn_config.py)."""
    if isinstance(request.body.reader, LengthReader):
        request.body = io.BufferedReader(BodyReader(request.unreader, request.body.reader.length))


class BodyReader(io.RawIOBase):
    """Receives a body of known length into the caller's buffer. gunicorn's own reader (27.0) copies
    each part several times: it takes 1.9 instead of 0.5 ms of processor time for 3 MB, 25 instead
    of 4.5 for 25 MB."""

    def __init__(self, unreader: Any, length: int) -> None:
        super().__init__()
        self._unreader = unreader
        self._remaining = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        # empty at the end of the body: recv_into then returns 0
        buffer = buffer[: self._remaining]
        if received := self._unreader.take_buffered():  # came with the headers
            size = min(len(received), len(buffer))
            buffer[:size] = received[:size]
            self._unreader.unread(received[size:])
        else:
            size = self._unreader.sock.recv_into(buffer)
        self._remaining -= size
        return size
