"""A job: one request, bound to one model. Its calls to Triton, and what their replies become.

Job.batches -> Batch --Triton--> InferReply --Batch.read--> results --Job.reply--> Reply
                                                               +------Job.line---> a line of a stream
"""

from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from serving.errors import InvalidRequest, SessionNotFound
from serving.request import Request, ServedModel
from serving.sessions import Session
from serving.triton.gateway import Call, Responses, TritonGateway
from serving.triton.quirks import NO_ROWS, UNKNOWN_SEQUENCE
from serving.triton.tensors import InferReply, InferRequest, Parameters, Tensor

AHEAD = 2  # batches in Triton at once for one request: the next is prepared while one is worked on
Results = Generator[Any, None, None]
Started = Callable[[Responses], None]


def _unread(reply: InferReply) -> InferReply:
    return reply


@dataclass(frozen=True)
class Batch:
    """One call to Triton. `read` makes a result of its reply, None if the result takes the next call's reply too.
    `is_pipelined` says that the next batch does not wait for this one's answer."""

    inputs: Sequence[Tensor]
    read: Callable[[InferReply], Any] = _unread
    parameters: Parameters = field(default_factory=dict)
    outputs: Sequence[str] = ()
    is_pipelined: bool = False


@dataclass(frozen=True)
class Reply:
    """A reply in one piece: the content, its type, the version that answered, further headers."""

    content: bytes
    content_type: str = "application/json"
    version: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Line:
    """One response of a stream as JSON, and the version that gave it."""

    version: str
    json: bytes


class Job:
    """One request to one model: each kind of body has one, which is run once.

    `session` is the session that the request is a step of. The objects `flags` of the body may say `sequence_end`.
    """

    def __init__(self, served: ServedModel, request: Request, *flags: Mapping[str, Any]) -> None:
        self.served, self.request = served, request
        self.session: Session | None = None
        if served.sequencing:
            sources = (request.attributes, request.parameters, *flags)
            self.session = Session.of(served.sequencing, request.session, sources)

    def batches(self) -> Iterator[Batch]:
        """Yield the calls to Triton, each made when it is needed. Raise a ServingError."""
        raise NotImplementedError

    def reply(self, results: Iterator[Any]) -> Reply:
        """Return the answer in one piece, made of the results of all batches. Each has a `version`."""
        raise NotImplementedError

    def line(self, result: Any) -> bytes:
        """Return the JSON of one response of a stream."""
        raise NotImplementedError

    def answer(self, gateway: TritonGateway) -> Reply:
        """Return the answer in one piece. Raise a ServingError."""
        with closing(self.results(gateway)) as results:
            return self.reply(results)

    def lines(self, gateway: TritonGateway, started: Started = lambda responses: None) -> Generator[Line, None, None]:
        """Yield a line for each response as it comes. Raise a ServingError."""
        with closing(self.responses(gateway, started)) as results:
            for result in results:
                yield Line(result.version, self.line(result))

    def results(self, gateway: TritonGateway) -> Results:
        """Yield the result of each batch. The next batch is prepared while Triton works on one."""
        request, stage = self.request, self.request.timings.stage
        waiting: deque[tuple[Batch, Call]] = deque()
        try:
            for batch in self.batches():
                with stage("triton"):
                    call = gateway.infer(self._message(batch), request.deadline)
                    waiting.append((batch, call))
                    if batch.is_pipelined or len(waiting) > 1:
                        call.send()
                while waiting and (not batch.is_pipelined or len(waiting) >= AHEAD):
                    with stage("triton"):
                        reply = waiting[0][1].result()
                    if (result := waiting.popleft()[0].read(reply)) is not None:
                        yield result
        except InvalidRequest as err:
            self._check_session(err)
            raise
        finally:
            for _, call in waiting:
                call.cancel()

    def responses(self, gateway: TritonGateway, started: Started = lambda responses: None) -> Results:
        """Yield the result of each response of Triton's stream. `started` gets each call, so that another thread can
        cancel it."""
        request, stage = self.request, self.request.timings.stage
        try:
            for batch in self.batches():
                with closing(gateway.stream(self._message(batch), request.deadline)) as responses:
                    started(responses)
                    while True:
                        with stage("triton"):
                            reply = next(responses, None)
                        if reply is None:
                            break
                        if (result := batch.read(reply)) is not None:
                            yield result
        except InvalidRequest as err:
            self._check_session(err)
            raise

    def _check_session(self, error: InvalidRequest) -> None:
        """Raise SessionNotFound if Triton does not know the session's sequence."""
        if self.session and UNKNOWN_SEQUENCE in str(error):
            raise SessionNotFound(self.session.id) from error

    def _message(self, batch: Batch) -> InferRequest:
        """Return the call to Triton. Raise InvalidRequest for more tensors than the model has, because Triton would
        name all of them in its answer, and gRPC cannot carry 10,000; and for a batch of no rows, which Triton
        never answers (quirks.py)."""
        served, request = self.served, self.request
        known = {"inputs": len(served.model.inputs), "outputs": len(served.model.outputs)}
        for what, count in (("inputs", len(batch.inputs)), ("outputs", len(batch.outputs))):
            if count > known[what]:
                raise InvalidRequest(f"model '{served.name}' has {known[what]} {what}, and the request names {count}")
        for tensor in batch.inputs if served.model.max_batch_size or served.batched_parts else ():
            if tensor.shape[:1] == NO_ROWS:
                raise InvalidRequest(
                    f"input '{tensor.name}': its shape {list(tensor.shape)} has no rows; the first dimension counts "
                    "them and must be at least 1"
                )
        return InferRequest(
            model=served.name,
            version=request.target.version or "",
            inputs=tuple(batch.inputs),
            id=request.id,
            parameters=batch.parameters,
            outputs=batch.outputs,
            traceparent=request.traceparent,
        )
