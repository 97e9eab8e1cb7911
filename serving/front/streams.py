"""Sends replies piece by piece: streams, which are never buffered, and large replies. If a caller
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
CALLER_LEFT = 499  # nginx's status for a request whose caller has disconnected
PIECE = 2**20  # bytes of an event, or of a large reply, that are written at a time
KEPT = 2**21  # bytes of a reply that nginx buffers for a slow caller (nginx.conf)
# Seconds in which a caller must read each piece. Without a limit, it could hold its slot forever.
WRITE_SECONDS = 10.0
# X-Accel-Buffering tells nginx not to buffer the reply
STREAM_HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-cache"}
# Maps the media type of a stream to the formats of a response and of an error.
FORMATS = {
    EVENT_STREAM: (b"data: %b\n\n", b"event: error\ndata: %b\n\n"),
    JSON_LINES: (b"%b\n", b"%b\n"),
}


def stream_reply(source: Incoming, job: Job) -> Response:
    """Wait for the first response, and return a stream that begins with it. If the model fails
    before its first response, return the error as the only event, with the error's status. If the
    caller has disconnected, return an empty response. Raise any other ServingError, or
    BackendDied."""
    app = services()
    connection = source.environ.get("gunicorn.socket")
    report = partial(app.registry.report, job.served, began=monotonic())
    run = Run(job, app.gateway)
    results = run.results()
    has_died = app.registry.death_check(job.served)

    def end_if_process_died() -> None:
        if has_died():
            run.end_as_died()

    if connection is not None:
        app.hang_ups.watch(connection, run.cancel, end_if_process_died)
    try:
        first, source.version = _first_line(job, results)
    except BaseException as err:
        app.hang_ups.forget(connection)
        results.close()
        if run.is_cancelled:
            return Response(status=CALLER_LEFT)
        if not isinstance(err, InferenceFailed):
            raise
        return _failed_stream(err, job.request.stream)
    if connection is not None:
        connection.settimeout(WRITE_SECONDS)
    lines = chain(first, map(job.line, results))
    pieces = _stream_pieces(job, run, lines, report)
    response = SelfClosingResponse(pieces, mimetype=job.request.stream, headers=STREAM_HEADERS)
    if job.session:
        response.headers.update(job.session.headers())
    response.call_on_close(results.close)
    response.call_on_close(partial(app.hang_ups.forget, connection))
    return response


def _failed_stream(error: InferenceFailed, media_type: str) -> Response:
    """Return a reply with the error's status, whose only event is the error."""
    reply = error_reply(error)
    _, error_event = FORMATS[media_type]
    reply.data = error_event % reply.data
    reply.mimetype = media_type
    return reply


def response_of(source: Incoming, reply: Reply) -> Response:
    """Return the Flask response for a reply in one piece. If the reply is too large for nginx to
    buffer, the request keeps its slot until nginx has received all of it, and a caller that reads
    too slowly is cut off."""
    connection = source.environ.get("gunicorn.socket")
    length = len(reply.content)
    if connection is None or length <= KEPT:
        return Response(reply.content, content_type=reply.content_type, headers=dict(reply.headers))
    # Allow WRITE_SECONDS for one piece and for each that nginx has buffered, because nginx reads
    # the next piece only after it has passed on everything in its buffer.
    connection.settimeout(WRITE_SECONDS * (1 + KEPT // PIECE))
    headers = {**reply.headers, "Content-Length": str(length)}
    pieces = _reply_pieces(reply.content)
    return SelfClosingResponse(pieces, content_type=reply.content_type, headers=headers)


def _reply_pieces(content: bytes) -> Iterator[bytes]:
    """Yield the pieces of a large reply. Stop when the request has no time left."""
    try:
        yield from _pieces(content)
    except TooLate:
        log.warning("the reply is cut off, because its caller read it too slowly")


def _pieces(content: bytes) -> Iterator[bytes]:
    """Yield the content in pieces. Raise TooLate if the request has no time left."""
    for start in range(0, len(content), PIECE):
        check_time()
        yield content[start : start + PIECE]


class SelfClosingResponse(Response):
    """A response that is sent in pieces. It closes itself, once, right after its last piece, before
    gunicorn does. So the slot of a chunked stream is free before the caller sees the stream's end.
    For a reply with a Content-Length, the caller sees the end just before the slot is free."""

    is_closed = False

    def iter_encoded(self) -> Iterator[bytes]:
        yield from super().iter_encoded()
        self.close()

    def close(self) -> None:
        if not self.is_closed:
            self.is_closed = True
            super().close()


def _first_line(job: Job, results: Iterator[Any]) -> tuple[list[bytes], str]:
    """Wait for the first response. Return a list with its line, and the version of the model that
    answered. If the model ends the stream without a response, return an empty list and "". Raise a
    ServingError or BackendDied."""
    for result in results:
        return [job.line(result)], result.version
    return [], ""


def _stream_pieces(
    job: Job, run: Run, lines: Iterator[bytes], report: Callable[[BackendDied], ServingError]
) -> Iterator[bytes]:
    """Yield the pieces of an event for each line. If an error occurs, yield it as the last event,
    unless the caller has disconnected."""
    event, error_event = FORMATS[job.request.stream]
    try:
        for line in lines:
            yield from _event_pieces(event % line)
    except Exception as err:
        if not run.is_cancelled:
            yield error_event % _last_error(job.request.id, err, report)


def _event_pieces(event: bytes) -> Iterator[bytes]:
    # reserve twice the event's size, because the line that it contains is still in memory too
    with reserve(2 * len(event), "an event of the stream"):
        yield from _pieces(event)


def _last_error(
    request_id: str, error: Exception, report: Callable[[BackendDied], ServingError]
) -> bytes:
    """Log the error that ends a stream, and return its JSON for the last event. If it is
    BackendDied, also `report` it. Flask's request has already ended, so its id is added to the log
    line here."""
    about = {"request_id": request_id}
    if isinstance(error, BackendDied):
        error = report(error)
    if isinstance(error, ServingError):
        log.warning("the stream ends with the error %s", error.code, extra=about)
    else:
        log.error("the stream failed", exc_info=error, extra=about)
        error = ServingError("an internal error; the log has it under this request_id")
    return orjson.dumps(error.fields() | about)
