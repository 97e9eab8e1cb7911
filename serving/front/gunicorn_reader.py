"""Receives request bodies faster than gunicorn's own reader does.

It uses `take_buffered` and `unread` of gunicorn's Unreader, which are not documented. If they
change, every test in tests/endpoint that posts a body fails.
"""

import io
from typing import Any

from gunicorn.http.body import LengthReader


def pre_request(_worker: Any, request: Any) -> None:
    """Replace the reader of a body of known length with a faster one. gunicorn calls this hook
    before the app (gunicorn_config.py)."""
    if isinstance(request.body.reader, LengthReader):
        request.body = io.BufferedReader(BodyReader(request.unreader, request.body.reader.length))


class BodyReader(io.RawIOBase):
    """Receives a body of known length into the caller's buffer. gunicorn's own reader (27.0) copies
    each piece several times, and takes 1.9 ms of processor time instead of 0.5 ms for 3 MB, and 25
    ms instead of 4.5 ms for 25 MB."""

    def __init__(self, unreader: Any, length: int) -> None:
        super().__init__()
        self._unreader = unreader
        self._remaining = length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        # empty at the end of the body, so that recv_into returns 0
        buffer = buffer[: self._remaining]
        if received := self._unreader.take_buffered():  # received together with the headers
            size = min(len(received), len(buffer))
            buffer[:size] = received[:size]
            self._unreader.unread(received[size:])
        else:
            size = self._unreader.sock.recv_into(buffer)
        self._remaining -= size
        return size
