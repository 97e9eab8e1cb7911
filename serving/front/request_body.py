"""A request's body, once in memory: pieces that are joined would be there twice."""

import io
from typing import IO

from flask import Request

PIECE = 1024 * 1024  # what gunicorn's reader takes from its socket at a time


class _Pieces(io.RawIOBase):
    """A WSGI stream as raw input; asked for all at once, gunicorn's would join pieces of its own."""

    def __init__(self, stream: IO[bytes]) -> None:
        super().__init__()
        self._stream = stream

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        piece = self._stream.read(min(len(buffer), PIECE))
        buffer[: len(piece)] = piece
        return len(piece)


def read_whole(request: Request) -> bytes:
    """The body; nginx has it whole before it sends it, so its length is known."""
    if request.content_length is None:
        return request.get_data(cache=False)
    # A BufferedReader reads a known number of bytes into their final place.
    return io.BufferedReader(_Pieces(request.stream)).read(request.content_length)
