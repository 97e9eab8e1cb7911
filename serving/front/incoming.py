"""Flask's request, and the Request that is made from it once."""

import io
import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from time import monotonic, time
from typing import TYPE_CHECKING, Any

import flask
from gunicorn.http.body import LengthReader
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from serving.bodies.packed import unpacked
from serving.bodies.reading import Body, read_attributes, read_body
from serving.budget import Deadline
from serving.errors import InvalidRequest
from serving.front.admission import Slot
from serving.headers import ATTRIBUTES, EVENT_STREAM, SESSION_ID, streamed_type
from serving.request import PATH, RESERVED, Request, Target, Timings

if TYPE_CHECKING:
    from serving.front.services import Services

# W3C Trace Context, a trace that is recorded
SAMPLED = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")
# nginx's time in seconds since 1970; nginx replaces what a caller sends
FORWARDED = "X-Request-Start"
MEGABYTE = 2**20
# bytes of Custom-Attributes, as nginx allows in one line; several lines are joined
LONGEST_ATTRIBUTES = 8 * 1024


class Incoming(flask.Request):
    """Flask's request, with what the front notes of it for the reply, the log and the metrics."""

    slot: Slot | None = None  # once the request is admitted
    # the model and the version that answer; "" if none that is served is named
    model = version = ""

    def __init__(self, environ: dict[str, Any], *arguments: Any, **names: Any) -> None:
        super().__init__(environ, *arguments, **names)
        self.timings = Timings()

    def header(self, name: str) -> str:
        """Return a header, "" if it is missing; several times faster than `headers`."""
        value: str = self.environ.get(f"HTTP_{name.upper().replace('-', '_')}", "")
        return value

    @cached_property
    def id(self) -> str:
        """Return the caller's Inference-Id or the id that nginx made."""
        return self.header("X-Request-Id") or uuid.uuid4().hex

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        header = self.header(ATTRIBUTES)
        return read_attributes(header) if header else {}

    def check_attributes(self) -> None:
        """Raise InvalidRequest if Custom-Attributes are too long for the reply, which repeats
        them."""
        if (length := len(self.header(ATTRIBUTES))) > LONGEST_ATTRIBUTES:
            raise InvalidRequest(
                f"the header {ATTRIBUTES} has {length} bytes, at most {LONGEST_ATTRIBUTES} are "
                "allowed: send its values in the body"
            )

    @property
    def traceparent(self) -> str:
        """Return the caller's traceparent, "" without a sampled one: Triton records any trace
        (quirks.py).

        SageMaker strips the header, so Custom-Attributes may carry it."""
        header = self.header("traceparent") or self.attributes.get("traceparent", "")
        return header if header and SAMPLED.fullmatch(header) else ""

    @cached_property
    def forwarded(self) -> float:
        """Return when nginx forwarded the request, on time.monotonic()'s clock, so time in
        gunicorn's queue counts."""
        try:
            return monotonic() - max(0.0, time() - float(self.header(FORWARDED)))
        except ValueError:  # the request did not come through nginx
            return monotonic()

    def whole(self) -> bytes:
        """Return the body, unpacked. Raise PayloadTooLarge, Overloaded and others."""
        length, limit = self.content_length, flask.current_app.config["MAX_CONTENT_LENGTH"]
        if length is None:  # only without nginx, which has the body whole before it sends it
            data = self.get_data(cache=False)
        elif length > limit:
            raise RequestEntityTooLarge
        else:
            data = self.environ["wsgi.input"].read(length)
            if len(data) < length:
                raise ClientDisconnected
        encoding = self.header("Content-Encoding")
        if not encoding:
            return data
        body = unpacked(data, encoding, limit)
        if self.slot and (more := len(body) - len(data)):
            self.slot.grow(more)
        return body

    def drain(self) -> None:
        """Read what is left of the body: closing a connection with unread data resets it, and loses
        the reply."""
        while self.environ["wsgi.input"].read(MEGABYTE):
            pass

    def reply_headers(self) -> dict[str, str]:
        """Return the headers of the reply to an inference. nginx logs them, and adds the id."""
        attributes = self.header(ATTRIBUTES)
        headers = {
            ATTRIBUTES: attributes if len(attributes) <= LONGEST_ATTRIBUTES else "",
            "X-Model-Name": self.model,
            "X-Model-Version": self.version,
            "Server-Timing": self.timings.header(),
        }
        return {name: value for name, value in headers.items() if value}


def incoming() -> Incoming:
    """Return the request that this thread answers."""
    return flask.request._get_current_object()  # type: ignore[attr-defined,no-any-return]


def services() -> "Services":
    """Return the objects of the running app."""
    return flask.current_app.extensions["serving"]  # type: ignore[no-any-return]


def read_request(source: Incoming, stream: str, body: Target, route: Target) -> Request:
    """Return the request. `stream` is the type of the stream that the route asks for, `body` the
    model that the body names, `route` the one that the path or the header Target-Model names. Raise
    InvalidRequest if two disagree."""
    app, accept = services(), source.header("Accept")
    query: Mapping[str, str] = source.args if source.environ.get("QUERY_STRING") else {}
    others = {"the header Custom-Attributes": source.attributes, "the query string": query}
    targets = [*(Target.within(part, values) for part, values in others.items() if values), body]
    if route.source == PATH:
        targets = [replace(target, name=None) for target in targets]
    target = Target.agreed([route, *targets], route.source)
    if target.name is None and "model" in query:
        raise InvalidRequest(
            "the query string names no model; did you mean model_name instead of model?"
        )
    return Request(
        id=source.id,
        target=target,
        attributes=source.attributes,
        parameters={key: value for key, value in query.items() if key not in RESERVED},
        session=source.header(SESSION_ID),
        accept=accept,
        stream=stream or streamed_type(accept),
        reply_deadline=Deadline(source.forwarded + app.gateway.timeout),
        stream_deadline=Deadline(source.forwarded + app.gateway.stream_timeout),
        budget=app.budget,
        timings=source.timings,
        traceparent=source.traceparent,
        decoder=app.decoder,
    )


def read_invocation(source: Incoming) -> Body:
    """Return the body of /invocations. Raise InvalidRequest and others."""
    inference_type = services().settings.inference_type
    return read_body(
        source.environ.get("CONTENT_TYPE", ""),
        source.whole(),
        generates=inference_type != "infer",
        stream=EVENT_STREAM if inference_type == "generate_stream" else "",
        accept=source.header("Accept"),
    )


def pre_request(_worker: Any, request: Any) -> None:
    """Receive a body of known length faster: gunicorn calls this hook before the app
    (gunicorn_config.py)."""
    if isinstance(request.body.reader, LengthReader):
        request.body = io.BufferedReader(Received(request.unreader, request.body.reader.length))


class Received(io.RawIOBase):
    """Receives a body of known length into the caller's buffer. gunicorn's own reader (27.0) copies
    each part several times: it takes 1.9 instead of 0.5 ms of processor time for 3 MB, 25 instead
    of 4.5 for 25 MB."""

    def __init__(self, unreader: Any, length: int) -> None:
        super().__init__()
        self._unreader, self._remaining = unreader, length

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        buffer = buffer[: self._remaining]
        if received := self._unreader.take_buffered():  # came with the headers
            size = min(len(received), len(buffer))
            buffer[:size] = received[:size]
            self._unreader.unread(received[size:])
        else:
            size = self._unreader.sock.recv_into(buffer)
        self._remaining -= size
        return size
