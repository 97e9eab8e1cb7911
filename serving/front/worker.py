"""gunicorn's worker: nginx answers for what gunicorn itself refuses or cannot do, and a body is copied once."""

import contextlib
import io
import time
from collections.abc import Callable
from typing import Any

from gunicorn.http.body import LengthReader
from gunicorn.http.errors import (
    InvalidResponseHeader,
    InvalidResponseHeaderName,
    LimitRequestHeaders,
    LimitRequestLine,
    ParseException,
)
from gunicorn.workers.gthread import TConn, ThreadWorker

# nginx.conf has a reply in our shape at each of these, with the request's id, and sends it instead of gunicorn's HTML.
OURS = "internal"
PAUSE = 0.1  # seconds until it tries again
REST_TIMEOUT = 30.0  # seconds, of a busy machine: nginx has all of it
LARGEST_REST = 2**31  # bytes, more than SERVE_MAX_BODY_MB allows
PAGES = {
    InvalidResponseHeader: OURS,
    InvalidResponseHeaderName: OURS,
    LimitRequestLine: "request_line",
    LimitRequestHeaders: "headers",
    ParseException: "bad_request",
    Exception: OURS,
}


class Arriving(io.RawIOBase):
    """A body of known length, read to where it will lie. gunicorn's own copies each part of it several times, which is
    a third of what a tensor of 3 MB in JSON costs in Python."""

    def __init__(self, unreader: Any, length: int) -> None:
        super().__init__()
        self.unreader, self.left = unreader, length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        buffer = buffer[: self.left]
        if came := self.unreader.take_buffered():  # with the headers
            size = min(len(came), len(buffer))
            buffer[:size] = came[:size]
            self.unreader.unread(came[size:])
        else:
            size = self.unreader.sock.recv_into(buffer)
        self.left -= size
        return size


class Worker(ThreadWorker):  # type: ignore[misc]
    """Of threads; its peer is nginx."""

    at_end: Callable[[], None] | None = None  # called after the last request

    def run(self) -> None:
        super().run()
        if self.at_end:
            self.at_end()

    def accept(self, listener: Any) -> None:
        """Where it can open no more files or start no more threads, a caller waits; gthread's own worker would end, and
        all of its callers lose their answers."""
        try:
            super().accept(listener)
        except (OSError, RuntimeError) as err:
            if isinstance(err, RuntimeError):  # no thread for what was accepted; one that is there takes it
                self.nr_conns -= 1
            self.log.error("no request can be accepted now: %s", err)
            time.sleep(PAUSE)

    def handle(self, conn: Any) -> Any:
        """Reads what the app has left of a body, which nginx has whole: a connection that is closed before is reset,
        and the reply is lost with it."""
        kept = super().handle(conn)
        if conn.parser:
            conn.parser.finish_body(deadline=time.monotonic() + REST_TIMEOUT, max_bytes=LARGEST_REST)
        return kept

    def handle_request(self, req: Any, conn: Any) -> Any:
        if isinstance(req.body.reader, LengthReader):
            req.body = io.BufferedReader(Arriving(req.unreader, req.body.reader.length))
        return super().handle_request(req, conn)

    def finish_request(self, conn: Any, fs: Any) -> None:
        """Closes a connection at once. gthread's own worker waits up to 2 s for nginx to close it first, and all other
        callers with it; `handle` has read what nginx sent."""
        conn.close = lambda graceful=False: TConn.close(conn)
        super().finish_request(conn, fs)

    def handle_error(self, req: Any, client: Any, addr: Any, exc: Exception) -> None:
        """Before the app was called, or while its reply was being sent."""
        page = next(page for error, page in PAGES.items() if isinstance(exc, error))
        if page == OURS:
            self.log.exception("gunicorn cannot answer a request")
        else:
            self.log.warning("gunicorn cannot read a request: %s", type(exc).__name__)
        with contextlib.suppress(OSError):
            client.sendall(
                b"HTTP/1.1 400 Bad Request\r\nConnection: close\r\nContent-Length: 0\r\n"
                b"X-Accel-Redirect: /.error/%s\r\n\r\n" % page.encode()
            )
