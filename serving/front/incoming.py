"""A request as Flask has it, and the Request that is made of it, once."""

import io
import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from time import monotonic, time
from typing import TYPE_CHECKING

import flask

from serving.bodies.forms import TextOrForm
from serving.bodies.packed import unpacked
from serving.bodies.reading import Body, read_attributes, read_body
from serving.budget import Deadline
from serving.codecs import FORM
from serving.decoding import Item
from serving.errors import InvalidRequest
from serving.front.admission import Slot
from serving.headers import ATTRIBUTES, EVENT_STREAM, SESSION_ID, TARGET_MODEL, streamed_type
from serving.request import PATH, RESERVED, Request, Target, Timings

if TYPE_CHECKING:
    from serving.front.services import Services

SAMPLED = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")  # W3C Trace Context, a trace that is recorded
FORWARDED = "X-Request-Start"  # nginx's time in seconds since 1970; nginx replaces what a caller sends
MEGABYTE = 2**20


class Incoming(flask.Request):
    """Flask's request, with what the front notes of it for the reply, the log and the metrics."""

    slot: Slot | None = None  # once the request is admitted
    model = version = ""  # the model and the version that answer

    @cached_property
    def timings(self) -> Timings:
        return Timings()

    @cached_property
    def id(self) -> str:
        """Return the caller's Inference-Id or the id that nginx made."""
        return self.headers.get("X-Request-Id") or uuid.uuid4().hex

    @property
    def accept(self) -> str:
        return self.headers.get("Accept", "")

    @cached_property
    def attributes(self) -> Mapping[str, str]:
        return read_attributes(self.headers.get(ATTRIBUTES, ""))

    @property
    def traceparent(self) -> str:
        """Return the caller's traceparent, "" without a sampled one: Triton records any trace (quirks.py).

        SageMaker strips the header, so Custom-Attributes may carry it."""
        header = self.headers.get("traceparent") or self.attributes.get("traceparent", "")
        return header if header and SAMPLED.fullmatch(header) else ""

    @cached_property
    def forwarded(self) -> float:
        """Return when nginx forwarded the request, on time.monotonic()'s clock, so time in gunicorn's queue counts."""
        sent = self.headers.get(FORWARDED, type=float)
        return monotonic() - (0.0 if sent is None else max(0.0, time() - sent))

    def whole(self) -> bytes:
        """Return the body, unpacked. Raise PayloadTooLarge, Overloaded and others."""
        length, encoding = self.content_length, self.headers.get("Content-Encoding")
        # A BufferedReader reads a known number of bytes into their final place. nginx has the body whole before it
        # sends it, so its length is known.
        data: bytes = (
            self.get_data(cache=False) if length is None else io.BufferedReader(self.stream).read(length)  # type: ignore[type-var]
        )
        if not encoding:
            return data
        body = unpacked(data, encoding, flask.current_app.config["MAX_CONTENT_LENGTH"])
        if self.slot and (more := len(body) - len(data)):
            self.slot.grow(more)
        return body

    def drain(self) -> None:
        """Read what is left of the body: closing a connection with unread data resets it, and loses the reply."""
        while self.environ["wsgi.input"].read(MEGABYTE):
            pass

    def reply_headers(self) -> dict[str, str]:
        """Return the headers of the reply to an inference. nginx logs them, Server-Timing too, and adds the id."""
        headers = {
            "X-Request-Id": self.id,
            ATTRIBUTES: self.headers.get(ATTRIBUTES, ""),
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


def read_request(source: Incoming, stream: str, body: Target, named: Target) -> Request:
    """Return the request. `stream` is the type of the stream that the route asks for, `body` the model that the body
    names, `named` the one that the route or the header Target-Model names. Raise InvalidRequest if two disagree."""
    app = services()
    targets = [
        Target.within("the header Custom-Attributes", source.attributes),
        Target.within("the query string", source.args),
        body,
    ]
    if named.source == PATH:
        targets = [replace(target, name=None) for target in targets]
    target = Target.agreed([named, *targets], named.source)
    if target.name is None and "model" in source.args:
        raise InvalidRequest("the query string names no model; did you mean model_name instead of model?")
    return Request(
        id=source.id,
        target=target,
        attributes=source.attributes,
        parameters={key: value for key, value in source.args.items() if key not in RESERVED},
        session=source.headers.get(SESSION_ID, ""),
        accept=source.accept,
        stream=stream or streamed_type(source.accept),
        reply_deadline=Deadline(source.forwarded + app.gateway.timeout),
        stream_deadline=Deadline(source.forwarded + app.gateway.stream_timeout),
        budget=app.budget,
        timings=source.timings,
        traceparent=source.traceparent,
        decoder=app.decoder,
    )


def target_model(source: Incoming) -> Target:
    """What the header Target-Model says."""
    return Target("the header Target-Model", source.headers.get(TARGET_MODEL) or None)


def read_invocation(source: Incoming) -> Body:
    """Return the body of /invocations. Raise InvalidRequest and others."""
    if source.mimetype == FORM:
        return _read_form(source)
    inference_type = services().settings.inference_type
    return read_body(
        source.headers.get("Content-Type", ""),
        source.whole(),
        generates=inference_type != "infer",
        stream=EVENT_STREAM if inference_type == "generate_stream" else "",
        accept=source.accept,
    )


def _read_form(form: Incoming) -> TextOrForm:
    """Each file is an instance; fields other than the model's name and version are parameters, or make an instance."""
    files = [Item(name, raw=upload.read()) for name, uploads in form.files.lists() for upload in uploads]
    # a part without a name has None for one
    parameters = {str(key): value for key, value in form.form.items() if key not in RESERVED}
    named = Target.within("the form", form.form)
    return TextOrForm(files, FORM, parameters, named)
