"""A stream as a Flask response: never buffered on its way, and cancelled when its caller leaves.

An error up to the first response is raised, for an ordinary reply; a later one is the last event.
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

import orjson
from flask import Response

from serving.errors import ServingError
from serving.front.hangups import HangUps
from serving.front.incoming import Incoming
from serving.headers import preferred
from serving.inference.service import Inference, Line
from serving.request import Request
from serving.served_model import ServedModel
from serving.sessions import session_headers
from serving.triton.gateway import Responses

log = logging.getLogger(__name__)
LEFT = 499  # as nginx has it in its log: the caller has gone, nobody reads this reply
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-cache"}  # the first is nginx's


@dataclass(frozen=True)
class Format:
    """How a response's JSON becomes a part of the stream, and how an error's does."""

    media_type: str
    event: bytes
    error: bytes


EVENTS = Format("text/event-stream; charset=utf-8", b"data: %b\n\n", b"event: error\ndata: %b\n\n")
LINES = Format("application/jsonlines", b"%b\n", b"%b\n")
FORMATS = {"text/event-stream": EVENTS, "application/jsonlines": LINES}


def wanted_format(accept: str) -> Format | None:
    """What Accept asks for; None where an answer in one piece is as good."""
    return FORMATS.get(preferred(accept, *FORMATS))


class Ending(Response):
    """A streamed response that is closed once, when its last part is made: nginx hears of the end next, and hands the
    place on."""

    has_ended = False

    def iter_encoded(self) -> Iterator[bytes]:
        yield from super().iter_encoded()
        self.close()

    def close(self) -> None:
        if not self.has_ended:
            self.has_ended = True
            super().close()


class StreamedReply:
    """A reply's body. `cancel` may come from any thread."""

    def __init__(
        self,
        inference: Inference,
        served: ServedModel,
        request: Request,
        form: Format,
        report: Callable[[Exception], None],
    ) -> None:
        self._form, self._request_id, self._report = form, request.id, report
        self._responses: Responses | None = None
        self.cancelled = False
        stream = inference.stream(served, request, self._note)
        self._lines, self.session = stream.lines, stream.session
        self._line: Line | None = None

    def open(self) -> "StreamedReply":
        """Waits for the first response; raises a ServingError."""
        self._line = next(self._lines, None)
        return self

    @property
    def version(self) -> str:
        """The version that gave the first response; "" when there was none."""
        return self._line.version if self._line else ""

    def _note(self, responses: Responses) -> None:
        self._responses = responses
        if self.cancelled:
            responses.cancel()

    def cancel(self) -> None:
        """The caller has left: what is left of it in Triton is cancelled."""
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
        """Flask has no request any more."""
        about = {"request_id": self._request_id}
        if isinstance(error, ServingError):
            log.warning("the stream ends with an error: %s", error, extra=about)
        else:
            log.error("the stream failed", exc_info=error, extra=about)
            error = ServingError("an internal error; the log has it under this request_id")
        self._report(error)
        return orjson.dumps(error.facts() | about)

    def close(self) -> None:
        """Ends it wherever it is."""
        self._lines.close()


def stream_reply(source: Incoming, reply: StreamedReply, form: Format, hang_ups: HangUps) -> Response:
    """Waits for the first response, whose error is raised."""
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
