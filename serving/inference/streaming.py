"""Streams: the responses of a decoupled or an ordinary model, each sent as soon as Triton gives it.

    body --read--> tensors --ModelStreamInfer--> response, response … --Format--> event, event …
      an error up to the first response: raised, an ordinary reply         later: the last event

What a body's responses look like: KServe v2 replies for tensors, {"model_name", "model_version", output: value}
for a flat body, {"model_name", "model_version", "offset", "predictions"} for instances.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import orjson

from serving.bodies.invocation import Body, FlatBody, Instances, NpyBody, TensorBody
from serving.bodies.tensors import read_npy, write_json
from serving.bodies.wire import Inference, read_flat, read_tensors, write_flat
from serving.inference.pipeline import Pipeline
from serving.inference.served_model import ServedModel
from serving.inference.sessions import Session
from serving.triton.calls import Responses
from serving.triton.tensors import Reply, raw_tensors


@dataclass(frozen=True)
class Format:
    """How a response's JSON becomes a part of the stream, and how an error's does."""

    media_type: str
    event: bytes
    error: bytes


EVENTS = Format("text/event-stream; charset=utf-8", b"data: %b\n\n", b"event: error\ndata: %b\n\n")
LINES = Format("application/jsonlines", b"%b\n", b"%b\n")
FORMATS = {"text/event-stream": EVENTS, "application/jsonlines": LINES}


@dataclass(frozen=True)
class Line:
    """One response as JSON, and the version that gave it."""

    version: str
    json: bytes


@dataclass(frozen=True)
class Query:
    """What is asked of a model; `parameters` are those of its client."""

    served: ServedModel
    version: str
    body: Body
    parameters: Mapping[str, Any]
    session: Session | None = None
    request_id: str = ""


Started = Callable[[Responses], None]
Lines = Generator[Line, None, None]


def lines(pipeline: Pipeline, query: Query, started: Started) -> Lines:
    """The responses as they come; `started` is told of each call to Triton. Raises a ServingError."""
    name, body = query.served.model.name, query.body
    if isinstance(body, Instances):
        return _predictions(pipeline, query, body, started)
    inference = _read(query.served, body)
    if isinstance(body, FlatBody):
        return _responses(pipeline, query, inference, started, lambda reply: write_flat(name, reply, inference.id))
    model = query.served.model
    return _responses(
        pipeline,
        query,
        inference,
        started,
        lambda reply: write_json(name, reply.version, reply.outputs, model, inference.id),
    )


def _read(served: ServedModel, body: FlatBody | TensorBody | NpyBody) -> Inference:
    if isinstance(body, FlatBody):
        return read_flat(body, served.model)
    if isinstance(body, TensorBody):
        return read_tensors(body)
    name, array = read_npy(body.body, served.model)
    return Inference(tuple(raw_tensors({name: array})), {})


def _responses(
    pipeline: Pipeline, query: Query, inference: Inference, started: Started, write: Callable[[Reply], bytes]
) -> Lines:
    flags = query.session.parameters() if query.session else {}
    responses = pipeline.gateway.stream(
        query.served.model.name,
        query.version,
        inference.inputs,
        query.request_id,
        {**inference.parameters, **flags},
        inference.outputs,
    )
    with closing(responses):
        started(responses)
        for reply in responses:
            yield Line(reply.version, write(reply))


def _predictions(pipeline: Pipeline, query: Query, body: Instances, started: Started) -> Lines:
    parts = pipeline.stream(
        query.served, query.version, body.items, query.parameters, query.request_id, query.session, started
    )
    with closing(parts):
        for part in parts:
            document = {
                "model_name": query.served.model.name,
                "model_version": part.version,
                "offset": part.offset,
                "predictions": part.predictions,
            }
            yield Line(part.version, orjson.dumps(document))


class Stream:
    """A reply's body. The first response is waited for here, so that an error before it is raised;
    one that comes later is `report`ed as JSON in the last event. `cancel` may come from any thread."""

    def __init__(self, lines: Callable[[Started], Lines], form: Format, report: Callable[[Exception], bytes]) -> None:
        self._form, self._report = form, report
        self._responses: Responses | None = None
        self.cancelled = False
        self._lines = lines(self._note)
        self._line: Line | None = None

    def open(self) -> "Stream":
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
                yield self._form.error % self._report(err)

    def close(self) -> None:
        """Ends it wherever it is."""
        self._lines.close()


def only_line(stream: Lines) -> Line | None:
    """The single response of a stream; None when there are more or none."""
    with closing(stream):
        found = [line for line, _ in zip(stream, range(2), strict=False)]
    return found[0] if len(found) == 1 else None
