"""One request to one model that is known: an answer in one piece, or a stream of lines. A model's own example is asked
as a caller would ask it.
"""

import traceback
from collections import deque
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from serving.bodies.instances import Instances
from serving.decoding import Decoder, Item
from serving.errors import DecodingError, InferenceFailed, InvalidRequest, LoadFailed, ModelFailed, NotAcceptable
from serving.request import Batch, Reply, Request, ServedModel
from serving.sessions import Session, session_errors, session_headers
from serving.triton.errors import BackendDied
from serving.triton.gateway import Call, Responses, TritonGateway
from serving.triton.tensors import InferReply, InferRequest, Tensor

AHEAD = 2  # batches in Triton at once for one request: the next is prepared while one is worked on


@dataclass(frozen=True)
class Line:
    """One response of a stream as JSON, and the version that gave it."""

    version: str
    json: bytes


Started = Callable[[Responses], None]
Lines = Generator[Line, None, None]
Results = Generator[Any, None, None]


class Inference:
    """Answers requests through one gateway; safe to share between threads."""

    def __init__(self, gateway: TritonGateway, decoder: Decoder) -> None:
        self.gateway, self.decoder = gateway, decoder

    def once(self, served: ServedModel, request: Request) -> Reply:
        """The answer in one piece; raises a ServingError."""
        request = _meant_for(served, request)
        if served.sequencing is None:
            return self._once(served, request, None)
        session = Session.of(served.sequencing, request.session, _flags(request))
        with session_errors(session):
            reply = self._once(served, request, session)
        return replace(reply, headers={**reply.headers, **session_headers(session)}) if session else reply

    def _once(self, served: ServedModel, request: Request, session: Session | None) -> Reply:
        request.body.check_single()
        if request.body.single_stream:
            return self._only_line(served, request, session)
        with closing(self.results(served, request, session)) as results:
            return request.body.reply(served, request, results)

    def results(self, served: ServedModel, request: Request, session: Session | None = None) -> Results:
        """Those of all batches, each as it comes."""
        waiting: deque[tuple[Batch, Call]] = deque()
        try:
            for batch in request.body.batches(served, request, session, self.decoder):
                with request.timings.stage("triton"):
                    call = self.gateway.infer(_asked(served, request, batch), request.deadline)
                    waiting.append((batch, call))
                    if batch.goes_on or len(waiting) > 1:
                        call.send()
                while waiting and (not batch.goes_on or len(waiting) >= AHEAD):
                    reply = _answer(request, waiting[0][1])
                    if (result := waiting.popleft()[0].read(reply)) is not None:
                        yield result
        finally:
            for _, call in waiting:
                call.cancel()

    def _only_line(self, served: ServedModel, request: Request, session: Session | None) -> Reply:
        """As Triton's generate: exactly one response."""
        with closing(self._lines(served, request, session, lambda responses: None)) as lines:
            found = [line for line, _ in zip(lines, range(2), strict=False)]
        if len(found) != 1:
            raise NotAcceptable(
                f"model '{served.name}' gave none or several responses, and generate is for exactly one: "
                "ask for them with Accept: text/event-stream or Accept: application/jsonlines"
            )
        return Reply(found[0].json, version=found[0].version)

    def stream(self, served: ServedModel, request: Request, started: Started = lambda responses: None) -> "Stream":
        """A line for each response, as it comes. `started` is told of each call to Triton, so that another thread can
        cancel it. Raises a ServingError."""
        request = _meant_for(served, request)
        request.body.check_stream()
        session = Session.of(served.sequencing, request.session, _flags(request))
        return Stream(self._lines(served, request, session, started), session)

    def _lines(self, served: ServedModel, request: Request, session: Session | None, started: Started) -> Lines:
        with session_errors(session):
            for batch in request.body.batches(served, request, session, self.decoder):
                with closing(self.gateway.stream(_asked(served, request, batch), request.deadline)) as responses:
                    started(responses)
                    while (reply := _next(request, responses)) is not None:
                        if (result := batch.read(reply)) is None:
                            continue
                        yield Line(reply.version, request.body.line(served, request, result))


@dataclass(frozen=True)
class Stream:
    """The lines, and the session that they are part of."""

    lines: Lines
    session: Session | None


def _meant_for(served: ServedModel, request: Request) -> Request:
    body = request.body.meant_for(served)
    return request if body is request.body else replace(request, body=body)


def _asked(served: ServedModel, request: Request, batch: Batch) -> InferRequest:
    _check_number(served, "inputs", len(batch.inputs), len(served.model.inputs))
    _check_number(served, "outputs", len(batch.outputs), len(served.model.outputs))
    _check_rows(served, batch.inputs)
    return InferRequest(
        model=served.name,
        version=request.version,
        inputs=tuple(batch.inputs),
        id=request.id,
        parameters=batch.parameters,
        outputs=batch.outputs,
        traceparent=request.traceparent,
    )


def _check_number(served: ServedModel, what: str, named: int, known: int) -> None:
    """Triton would refuse them too, but names all in its answer: of 10,000 inputs gRPC cannot carry it. Raises
    InvalidRequest."""
    if named > known:
        raise InvalidRequest(f"model '{served.name}' has {known} {what}, and the request names {named}")


def _check_rows(served: ServedModel, inputs: Sequence[Tensor]) -> None:
    """Refuse a batch of no rows, which Triton 24.10 takes and never answers, whatever the backend. It answers every
    other empty shape. Raise InvalidRequest."""
    for tensor in inputs if served.model.max_batch_size or served.batched_parts else ():
        if tensor.shape[:1] == (0,):
            raise InvalidRequest(
                f"input '{tensor.name}': its shape {list(tensor.shape)} has no rows; the first dimension counts them "
                "and must be at least 1"
            )


def _answer(request: Request, call: Call) -> InferReply:
    with request.timings.stage("triton"):
        return call.result()


def _next(request: Request, responses: Responses) -> InferReply | None:
    """None after the last one."""
    with request.timings.stage("triton"):
        return next(responses, None)


def _flags(request: Request) -> list[Any]:
    return [request.attributes, request.parameters, *request.body.flags()]


def try_example(inference: Inference, served: ServedModel) -> None:
    """Raises a ServingError; a model without a client has no example."""
    if not served.client and not served.client_error:
        return
    item = Item("example", raw=served.example())
    try:
        _infer(inference, served, Request("canary", Instances([item])))
    except (DecodingError, InvalidRequest) as err:
        raise ModelFailed(served.name, f"its example is refused: {err}") from err


def ask_example(inference: Inference, served: ServedModel) -> None:
    """Ask a model that was just loaded. Raise a ServingError that its author can use: LoadFailed has the line of the
    client's code that failed."""
    if served.client_error:
        raise LoadFailed(served.client_error)
    try:
        try_example(inference, served)
    except InferenceFailed as err:
        raise LoadFailed(f"{err} {_place(err.__cause__)}".strip()) from err
    except BackendDied as err:
        raise LoadFailed(f"a process of it died when its example was asked ({err.details})") from err


def _place(cause: BaseException | None) -> str:
    """Return what a client's code raised, and where; "" for what Triton answered."""
    is_own = cause is not None and not type(cause).__module__.startswith("grpc")
    calls = traceback.extract_tb(cause.__traceback__) if cause and is_own else []
    return (
        f"[{type(cause).__name__}: {cause}, {Path(calls[-1].filename).name} line {calls[-1].lineno}]" if calls else ""
    )


def _infer(inference: Inference, served: ServedModel, request: Request) -> None:
    try:
        inference.once(served, request)
    except NotAcceptable:  # the model only streams
        deque(inference.stream(served, request).lines, maxlen=0)
