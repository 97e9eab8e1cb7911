"""Defines Incoming, which extends Flask's request with methods that read its headers and body."""

import re
import uuid
from collections.abc import Mapping
from functools import cached_property
from time import monotonic, time
from typing import Any

import flask
from werkzeug.exceptions import ClientDisconnected, RequestEntityTooLarge

from serving.bodies.packed import unpacked
from serving.bodies.reading import read_attributes
from serving.errors import InvalidRequest
from serving.front.admission import Slot
from serving.headers import ATTRIBUTES, TARGET_MODEL
from serving.request import Target, Timings
from serving.request_memory import DEFLATED, UNPACKED, reserve

# a traceparent (W3C Trace Context) with the sampled flag set
SAMPLED = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")
# The header in which nginx says when it forwarded the request, in seconds since 1970. nginx
# overwrites a value that the caller sent.
FORWARDED = "X-Request-Start"
MEGABYTE = 2**20
# The maximum length of Custom-Attributes in bytes. The reply repeats them, and nginx accepts at
# most 16 kB of headers in a reply. nginx limits each header line of a request to 8 kB, but gunicorn
# joins several lines with the same name.
LONGEST_ATTRIBUTES = 8 * 1024


class Incoming(flask.Request):
    """Flask's request. Its attributes also record facts that the reply, the log and the metrics
    contain, such as the model that answered."""

    slot: Slot | None = None  # set once the request is admitted
    model = ""  # the model that answers; "" until it is found
    version = ""  # the version that answers; "" until it has answered

    def __init__(self, environ: dict[str, Any], *arguments: Any, **names: Any) -> None:
        super().__init__(environ, *arguments, **names)
        self.timings = Timings()

    def header(self, name: str) -> str:
        """Return the value of a header, or "" if it is missing. This is several times faster than
        using `headers`, but does not find Content-Type and Content-Length."""
        key = name.upper().replace("-", "_")
        value: str = self.environ.get(f"HTTP_{key}", "")
        return value

    @cached_property
    def id(self) -> str:
        """Return the request's id. It is in the header X-Request-Id, which nginx sets to the
        caller's Inference-Id if that is valid, else to a new id. Without this header, create an
        id."""
        return self.header("X-Request-Id") or uuid.uuid4().hex

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        header = self.header(ATTRIBUTES)
        return read_attributes(header) if header else {}

    def check_attributes(self) -> None:
        """Raise InvalidRequest if the header Custom-Attributes is too long to be repeated in the
        reply."""
        length = len(self.header(ATTRIBUTES))
        if length > LONGEST_ATTRIBUTES:
            raise InvalidRequest(
                f"the header {ATTRIBUTES} has {length} bytes, at most {LONGEST_ATTRIBUTES} are "
                "allowed: send its values in the body"
            )

    @property
    def target(self) -> Target:
        """Return the model that the header Target-Model names."""
        return Target("the header Target-Model", self.header(TARGET_MODEL) or None)

    @property
    def traceparent(self) -> str:
        """Return the caller's traceparent if the trace is sampled. Otherwise return "", because
        Triton records every trace that it receives (triton/quirks.py).

        SageMaker removes the header, so it may also be sent in Custom-Attributes.
        """
        header = self.header("traceparent") or self.attributes.get("traceparent", "")
        return header if SAMPLED.fullmatch(header) else ""

    @cached_property
    def forwarded(self) -> float:
        """Return when nginx forwarded the request, on the clock of time.monotonic(). Time limits
        begin at this moment, so that the time in gunicorn's queue counts."""
        try:
            seconds = time() - float(self.header(FORWARDED))
            return monotonic() - max(0.0, seconds)
        except ValueError:  # the request did not come through nginx
            return monotonic()

    def whole_body(self) -> bytes:
        """Receive the whole body, and return it decompressed. nginx always sends the length of a
        body, so a request without a Content-Length has no body. Raise a ServingError or one of
        werkzeug's HTTPExceptions."""
        length = self.content_length or 0
        limit = flask.current_app.config["MAX_CONTENT_LENGTH"]
        if length > limit:
            raise RequestEntityTooLarge
        data: bytes = self.environ["wsgi.input"].read(length)
        if len(data) < length:
            raise ClientDisconnected
        encoding = self.header("Content-Encoding")
        if not encoding:
            return data
        most = min(limit, DEFLATED * len(data))
        reserved = reserve(UNPACKED * most, "the unpacked body")
        body = unpacked(data, encoding, limit)
        reserved.shrink(len(body))
        return body

    def drain(self) -> None:
        """Read and discard the rest of the body. Closing a connection with unread data would reset
        it, and the reply would be lost."""
        while self.environ["wsgi.input"].read(MEGABYTE):
            pass

    def reply_headers(self) -> dict[str, str]:
        """Return headers for the reply to an inference request. nginx logs all of them except
        Custom-Attributes, and adds a header with the request's id."""
        attributes = self.header(ATTRIBUTES)
        headers = {
            ATTRIBUTES: attributes if len(attributes) <= LONGEST_ATTRIBUTES else "",
            "X-Model-Name": self.model,
            "X-Model-Version": self.version,
            "Server-Timing": self.timings.header(),
        }
        return {name: value for name, value in headers.items() if value}


def incoming() -> Incoming:
    """Return the request that the current thread is answering."""
    return flask.request._get_current_object()  # type: ignore[attr-defined,no-any-return]
