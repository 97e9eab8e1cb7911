"""A request as Flask has it, and the Request that is made of it, once."""

import io
import re
import uuid
from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import flask

from serving.bodies.forms import TextOrForm
from serving.bodies.packed import unpacked
from serving.bodies.reading import Body, read_attributes, read_body
from serving.budget import HANDED_OVER, Deadline
from serving.codecs import FORM
from serving.decoding import Item
from serving.errors import InvalidRequest
from serving.front.admission import Slot
from serving.headers import ATTRIBUTES, EVENT_STREAM, SESSION_ID, TARGET_MODEL, streamed_type
from serving.request import PATH, RESERVED, Request, Target, Timings

if TYPE_CHECKING:
    from serving.front.services import Services

SAMPLED = re.compile(r"00-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f][13579bdf]")  # W3C Trace Context, a trace that is recorded
MEGABYTE = 2**20


class Incoming(flask.Request):
    """Flask's request, with what the front notes of it for the log and the metrics."""

    slot: Slot  # set when the request is admitted

    def __init__(self, environ: Any, *arguments: Any, **names: Any) -> None:
        super().__init__(environ, *arguments, **names)
        self.timings = Timings()
        self.started: float | None = None  # time.perf_counter()
        self.model = self.version = ""  # that answer

    @cached_property
    def id(self) -> str:
        """nginx hands on the caller's Inference-Id or an id that it made."""
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
        given = self.headers.get("traceparent") or self.attributes.get("traceparent", "")
        return given if SAMPLED.fullmatch(given) else ""

    def deadline(self, seconds: float) -> Deadline:
        """So long after nginx handed the request over."""
        return Deadline.after(seconds, self.headers.get(HANDED_OVER, type=float))

    def whole(self) -> bytes:
        """The body, unpacked."""
        limit = flask.current_app.config["MAX_CONTENT_LENGTH"]
        data = self._data()
        body = unpacked(data, self.headers.get("Content-Encoding", ""), limit)
        if more := len(body) - len(data):
            self.slot.grow(more)
        return body

    def drain(self) -> None:
        """Read what is left of the body: closing a connection with unread data resets it, and loses the reply."""
        while self.environ["wsgi.input"].read(MEGABYTE):
            pass

    def _data(self) -> bytes:
        """Once in memory. nginx has the body whole before it sends it, so its length is known."""
        if self.content_length is None:
            return self.get_data(cache=False)
        # A BufferedReader reads a known number of bytes into their final place.
        return io.BufferedReader(self.stream).read(self.content_length)  # type: ignore[type-var]


def incoming() -> Incoming:
    """The one that this thread answers."""
    found = flask.request._get_current_object()  # type: ignore[attr-defined]
    if not isinstance(found, Incoming):
        raise TypeError(found)
    return found


def read_request(source: Incoming, services: "Services", stream: str, body: Target, named: Target) -> Request:
    """Return the request. `stream` is the type of the stream that the route asks for, `body` the model that the body
    names, `named` the one that the route or the header Target-Model names. Raise InvalidRequest if two disagree."""
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
        reply_deadline=source.deadline(services.gateway.timeout),
        stream_deadline=source.deadline(services.gateway.stream_timeout),
        budget=services.budget,
        timings=source.timings,
        traceparent=source.traceparent,
        decoder=services.decoder,
    )


def target_model(source: Incoming) -> Target:
    """What the header Target-Model says."""
    return Target("the header Target-Model", source.headers.get(TARGET_MODEL) or None)


def read_invocation(source: Incoming, inference_type: str) -> Body:
    """Return the body of /invocations. Raise InvalidRequest and others."""
    if source.mimetype == FORM:
        return _read_form(source)
    content_type, stream = source.headers.get("Content-Type", ""), EVENT_STREAM
    return read_body(
        content_type,
        source.whole(),
        generates=inference_type != "infer",
        stream=stream if inference_type == "generate_stream" else "",
        accept=source.accept,
    )


def _read_form(form: Incoming) -> TextOrForm:
    """Each file is an instance; fields other than the model's name and version are parameters, or make an instance."""
    files = [Item(name, raw=upload.read()) for name, uploads in form.files.lists() for upload in uploads]
    # a part without a name has None for one
    parameters = {str(key): value for key, value in form.form.items() if key not in RESERVED}
    named = Target.within("the form", form.form)
    return TextOrForm(files, FORM, parameters, named)
