"""A stream as a Flask response: never buffered on its way, and cancelled when its caller leaves."""

from collections.abc import Callable
from functools import partial

from flask import Request, Response, g

from serving.bodies.invocation import LINES_TYPES, Body, FlatBody
from serving.front.hangups import HangUps
from serving.inference.pipeline import Pipeline
from serving.inference.streaming import EVENTS, FORMATS, Format, Query, Stream, lines

LEFT = 499  # as nginx has it in its log: the caller has gone, nobody reads this reply
HEADERS = {"X-Accel-Buffering": "no", "Cache-Control": "no-cache"}  # the first is nginx's


def wanted_format(request: Request, body: Body, inference_type: str) -> Format | None:
    """What Accept asks for; a batch of JSON lines is answered in JSON lines without being a stream."""
    if request.mimetype in LINES_TYPES:
        return None
    best = request.accept_mimetypes.best_match(["application/json", *FORMATS])
    if best in FORMATS:
        return FORMATS[best]
    return EVENTS if inference_type == "generate_stream" and isinstance(body, FlatBody) else None


def stream_reply(
    pipeline: Pipeline,
    query: Query,
    form: Format,
    report: Callable[[Exception], bytes],
    hang_ups: HangUps,
    request: Request,
) -> Response:
    """Waits for the first response, whose error is raised."""
    stream = Stream(partial(lines, pipeline, query), form, report)
    forget = _watch(hang_ups, request, stream)
    try:
        stream.open()
    except BaseException:
        forget()
        stream.close()
        if stream.cancelled:
            return Response(status=LEFT)
        raise
    g.model_version = stream.version
    response = Response(stream, content_type=form.media_type, headers=HEADERS)
    response.call_on_close(forget)
    return response


def _watch(hang_ups: HangUps, request: Request, stream: Stream) -> Callable[[], None]:
    connection = request.environ.get("gunicorn.socket")
    if connection is None:
        return lambda: None
    hang_ups.watch(connection, stream.cancel)
    return partial(hang_ups.forget, connection)
