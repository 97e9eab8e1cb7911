"""How answers leave: in one piece, as a stream, or as an error in its one shape: {"error", "code", "request_id"}."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any

import orjson
from flask import Response, current_app
from werkzeug.exceptions import HTTPException

from serving.budget import MOST_PARTS
from serving.errors import InvalidRequest, MethodNotAllowed, NotFound, PayloadTooLarge, ServingError, TritonUnavailable
from serving.front.incoming import Incoming, incoming
from serving.front.services import HangUps, services
from serving.headers import preferred
from serving.inference.service import Inference, Line
from serving.request import Reply, Request, ServedModel
from serving.sessions import session_headers
from serving.triton.errors import BackendDied
from serving.triton.gateway import Responses

log = logging.getLogger(__name__)
LEFT = 499  # as nginx has it in its log: the caller has gone, nobody reads this reply
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-cache"}  # the first is nginx's


def json_reply(value: Any, status: int = HTTPStatus.OK) -> Response:
    """Return the value as JSON, with any status."""
    return Response(orjson.dumps(value), status=status, mimetype="application/json")


def http_reply(reply: Reply) -> Response:
    """Return an answer in one piece."""
    incoming().version = reply.version
    return Response(reply.content, content_type=reply.content_type, headers=dict(reply.headers))


def render_error(error: ServingError) -> Response:
    facts = error.facts()
    if isinstance(error, TritonUnavailable) and (state := services().health.describe_triton()):
        facts["error"] += f" [{state}]"
    if error.status == HTTPStatus.INTERNAL_SERVER_ERROR:
        log.error(facts["error"], exc_info=error)
    response = json_reply({**facts, "request_id": incoming().id}, error.status)
    response.headers["X-Error-Code"] = error.code
    if error.retry_after is not None:
        response.headers["Retry-After"] = str(error.retry_after)
    return response


def render_http_exception(error: HTTPException) -> Response:
    code = error.code or HTTPStatus.INTERNAL_SERVER_ERROR
    if code == HTTPStatus.NOT_FOUND:
        return render_error(
            NotFound(f"there is no {incoming().path}; there are POST /invocations, GET /ping, GET /models")
        )
    if code == HTTPStatus.METHOD_NOT_ALLOWED:
        allowed = ", ".join(sorted(set(getattr(error, "valid_methods", None) or []) - {"HEAD", "OPTIONS"}))
        response = render_error(MethodNotAllowed(f"{incoming().path} takes {allowed}, not {incoming().method}"))
        response.headers["Allow"] = allowed
        return response
    if code == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
        limit = current_app.config["MAX_CONTENT_LENGTH"]
        return render_error(
            PayloadTooLarge(
                f"the body is larger than {limit} bytes (SERVE_MAX_BODY_MB sets the limit), or a form of more than "
                f"{MOST_PARTS} parts: send fewer at a time"
            )
        )
    invalid = InvalidRequest(error.description or error.name)
    invalid.status = code
    return render_error(invalid)


def render_unexpected(error: Exception) -> Response:
    log.error("the request failed", exc_info=error)
    return render_error(ServingError("an internal error; the log has it under this request_id"))


@dataclass(frozen=True)
class Format:
    """How the JSON of a response, and of an error, becomes a part of the stream."""

    media_type: str
    event: bytes
    error: bytes


EVENTS = Format("text/event-stream; charset=utf-8", b"data: %b\n\n", b"event: error\ndata: %b\n\n")
LINES = Format("application/jsonlines", b"%b\n", b"%b\n")
FORMATS = {"text/event-stream": EVENTS, "application/jsonlines": LINES}


def wanted_format(accept: str) -> Format | None:
    """Return the format that Accept asks for; None when it prefers an answer in one piece, or does not care."""
    return FORMATS.get(preferred(accept, *FORMATS))


class Ending(Response):
    """A streamed response that is closed once, when its last part is made: its slot must be free before the caller
    learns that the stream has ended."""

    has_ended = False

    def iter_encoded(self) -> Iterator[bytes]:
        yield from super().iter_encoded()
        self.close()

    def close(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            super().close()


class StreamedReply:
    """The body of a streamed reply: never buffered, and cancelled when its caller leaves. `cancel` may come from any
    thread. An error up to the first response is raised, for an ordinary reply; a later one is the last event."""

    def __init__(
        self,
        inference: Inference,
        served: ServedModel,
        request: Request,
        form: Format,
        report: Callable[[BackendDied], ServingError],
    ) -> None:
        self._form, self._request_id, self._report = form, request.id, report
        self._responses: Responses | None = None
        self.cancelled = False
        stream = inference.stream(served, request, self._note)
        self._lines, self.session = stream.lines, stream.session
        self._line: Line | None = None

    def open(self) -> "StreamedReply":
        """Wait for the first response. Raise a ServingError."""
        self._line = next(self._lines, None)
        return self

    @property
    def version(self) -> str:
        """Return the version that gave the first response; "" when there was none."""
        return self._line.version if self._line else ""

    def _note(self, responses: Responses) -> None:
        self._responses = responses
        if self.cancelled:
            responses.cancel()

    def cancel(self) -> None:
        """Cancel the request in Triton: its caller has left."""
        self.cancelled = True
        if self._responses:
            self._responses.cancel()

    def __iter__(self) -> Iterator[bytes]:
        try:
            while self._line is not None:
                yield self._form.event % self._line.json
                self._line = next(self._lines, None)
        except Exception as err:
            if not self.cancelled:
                yield self._form.error % self._error(err)

    def _error(self, error: Exception) -> bytes:
        """Return the JSON of the last event. There is no Flask request any more, so name its id."""
        about = {"request_id": self._request_id}
        if isinstance(error, BackendDied):
            error = self._report(error)
        if isinstance(error, ServingError):
            log.warning("the stream ends with an error: %s", error, extra=about)
        else:
            log.error("the stream failed", exc_info=error, extra=about)
            error = ServingError("an internal error; the log has it under this request_id")
        return orjson.dumps(error.facts() | about)

    def close(self) -> None:
        """End the stream, wherever it is."""
        self._lines.close()


def stream_reply(source: Incoming, reply: StreamedReply, form: Format, hang_ups: HangUps) -> Response:
    """Wait for the first response, and return the stream that begins with it. Raise a ServingError."""
    forget = _watch(hang_ups, source, reply)
    try:
        reply.open()
    except BaseException:
        forget()
        reply.close()
        if reply.cancelled:
            return Response(status=LEFT)
        raise
    source.version = reply.version
    headers = HEADERS | session_headers(reply.session)
    response = Ending(reply, content_type=form.media_type, headers=headers)
    response.call_on_close(forget)
    return response


def _watch(hang_ups: HangUps, source: Incoming, reply: StreamedReply) -> Callable[[], None]:
    connection = source.environ.get("gunicorn.socket")
    if connection is None:
        return lambda: None
    hang_ups.watch(connection, reply.cancel)
    return partial(hang_ups.forget, connection)
