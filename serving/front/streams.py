"""Writes replies piece by piece: streams, which are never buffered, and large replies. If a caller
disconnects, its stream is cancelled in Triton."""

import logging
from collections.abc import Callable, Iterator
from functools import partial
from itertools import chain
from time import monotonic
from typing import Any

import orjson
from flask import Response

from serving.budget import check_time
from serving.errors import InferenceFailed, ServingError, TooLate
from serving.front.incoming import Incoming
from serving.front.replies import error_reply
from serving.front.services import services
from serving.headers import EVENT_STREAM, JSON_LINES
from serving.job import Job, Reply, Run
from serving.request_memory import reserve
from serving.triton.connection import BackendDied

log = logging.getLogger(__name__)
CALLER_LEFT = 499  # nginx's status for a caller that has disconnected: nobody reads this reply
PIECE = 2**20  # bytes of an event, or of a large reply, that are written at once
KEPT = 2**21  # bytes of a reply that nginx buffers for a slow reader (nginx.conf)
# The caller must read each piece within this time. Otherwise it could hold its slot forever.
WRITE_SECONDS = 10.0
# X-Accel-Buffering tells nginx not to buffer the reply
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-cache"}
# For each media type of a stream: the formats of a response and of an error.
FORMATS = {
    EVENT_STREAM: (b"data: %b\n\n", b"event: error\ndata: %b\n\n"),
    JSON_LINES: (b"%b\n", b"%b\n"),
}


def stream_reply(source: Incoming, job: Job) -> Response:
    """Wait for the first response, and return a stream that begins with it. If the model fails
    before that, return its error as the only event, with the error's status. Raise any other
    ServingError."""
    app = services()
    connection = source.environ.get("gunicorn.socket")
    report = partial(app.registry.report, job.served, began=monotonic())
    run = Run(job, app.gateway)
    results = run.results()
    if connection is not None:
        app.hang_ups.watch(connection, run.cancel)
    try:
        first, source.version = _first_line(job, results)
    except BaseException as err:
        app.hang_ups.forget(connection)
        results.close()
        if run.is_cancelled:
            return Response(status=CALLER_LEFT)
        if not isinstance(err, InferenceFailed):
            raise
        failure = error_reply(err)
        failure.data = FORMATS[job.request.stream][1] % failure.data
        failure.mimetype = job.request.stream
        return failure
    if connection is not None:
        connection.settimeout(WRITE_SECONDS)
    events = _events(job, run, chain(first, map(job.line, results)), report)
    response = Ending(events, mimetype=job.request.stream, headers=HEADERS)
    if job.session:
        response.headers.update(job.session.headers())
    response.call_on_close(results.close)
    response.call_on_close(partial(app.hang_ups.forget, connection))
    return response


def response_of(source: Incoming, reply: Reply) -> Response:
    """Return the response for a reply in one piece. If it is too large for nginx to buffer, a slow
    reader holds the slot, and is cut off like the reader of a stream."""
    connection = source.environ.get("gunicorn.socket")
    length = len(reply.content)
    if connection is None or length <= KEPT:
        return Response(reply.content, content_type=reply.content_type, headers=dict(reply.headers))
    # nginx reads the next piece only after it has passed on everything that it has buffered
    connection.settimeout(WRITE_SECONDS * (1 + KEPT // PIECE))
    headers = {**reply.headers, "Content-Length": str(length)}
    return Ending(_all_pieces(reply.content), content_type=reply.content_type, headers=headers)


def _all_pieces(content: bytes) -> Iterator[bytes]:
    """Yield the pieces of a reply until the request has no time left."""
    try:
        yield from _pieces(content)
    except TooLate:
        log.warning("the reply is cut off, because its caller read it too slowly")


def _pieces(content: bytes) -> Iterator[bytes]:
    for start in range(0, len(content), PIECE):
        check_time()
        yield content[start : start + PIECE]


class Ending(Response):
    """A response in pieces. It closes itself, once, after its last piece: its slot must be free
    before the caller sees that the stream has ended."""

    has_ended = False

    def iter_encoded(self) -> Iterator[bytes]:
        yield from super().iter_encoded()
        self.close()

    def close(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            super().close()


def _first_line(job: Job, results: Iterator[Any]) -> tuple[list[bytes], str]:
    """Wait for the first response. Return its line and the model version that gave it, or nothing
    if the model gives no response. Raise a ServingError."""
    for result in results:
        return [job.line(result)], result.version
    return [], ""


def _events(
    job: Job, run: Run, lines: Iterator[bytes], report: Callable[[BackendDied], ServingError]
) -> Iterator[bytes]:
    """Yield an event for each line, in pieces. An error becomes the last event."""
    event, error_event = FORMATS[job.request.stream]
    try:
        for line in lines:
            yield from _event(event % line)
    except Exception as err:
        if not run.is_cancelled:
            yield error_event % _last_error(job.request.id, err, report)


def _event(event: bytes) -> Iterator[bytes]:
    with reserve(2 * len(event), "an event of the stream"):
        yield from _pieces(event)


def _last_error(
    request_id: str, error: Exception, report: Callable[[BackendDied], ServingError]
) -> bytes:
    """Return the JSON of the last event. The Flask request has ended, so the log line gets its id
    here."""
    about = {"request_id": request_id}
    if isinstance(error, BackendDied):
        error = report(error)
    if isinstance(error, ServingError):
        log.warning("the stream ends with the error %s", error.code, extra=about)
    else:
        log.error("the stream failed", exc_info=error, extra=about)
        error = ServingError("an internal error; the log has it under this request_id")
    return orjson.dumps(error.fields() | about)
