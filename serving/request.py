"""A request, made once in the front and passed on whole, and the Job that its kind of body makes of
it.

bytes --parse--> body.bind(served, request) -> Job
Job.batches -> Batch --Triton--> InferReply --Batch.read--> results --Job.reply--> Reply
                                                               +------Job.line---> a line of a
                                                               stream
"""

from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from time import perf_counter
from typing import TYPE_CHECKING, Any

from serving.budget import NEVER, Budget, Deadline
from serving.errors import InvalidRequest, SessionNotFound
from serving.headers import Session
from serving.model_status.served_model import ServedModel
from serving.named_value import unknown
from serving.triton.gateway import Call, Responses, TritonGateway
from serving.triton.quirks import NO_ROWS, UNKNOWN_SEQUENCE
from serving.triton.tensors import InferReply, InferRequest, Parameters, Tensor

if TYPE_CHECKING:
    from serving.bodies.instances import Decoder

AHEAD = 2  # batches in Triton at once for one request: the next is prepared while one is worked on
Results = Generator[Any, None, None]
Started = Callable[[Responses], None]
NAME_KEYS = ("model_name", "modelname")
VERSION_KEY = "model_version"
RESERVED = {*NAME_KEYS, VERSION_KEY}
STAGES = ("decode", "preprocess", "triton", "postprocess")
PATH = "the path"  # as the source of a Target: names elsewhere in the request do not count


@dataclass(frozen=True)
class Target:
    """The model and the version that one part of a request names; None if it names none."""

    source: str
    name: str | None = None
    version: str | None = None

    @classmethod
    def within(cls, source: str, values: Mapping[str, str]) -> "Target":
        """Return the model that these values name. Raise InvalidRequest if two of NAME_KEYS
        disagree."""
        names = [cls(f"{source}, '{key}',", values[key]) for key in NAME_KEYS if values.get(key)]
        return cls(source, _agreed("name", names), values.get(VERSION_KEY) or None)

    @classmethod
    def agreed(cls, targets: Sequence["Target"], source: str) -> "Target":
        """Return what the first target that names one says. Raise InvalidRequest if two
        disagree."""
        return cls(source, _agreed("name", targets), _agreed("version", targets))


def _agreed(field: str, targets: Iterable[Target]) -> str | None:
    named = [
        (value, target.source)
        for target in targets
        if (value := getattr(target, field)) is not None
    ]
    first, source = named[0] if named else (None, "")
    for value, other in named:
        if value != first:
            raise InvalidRequest(
                f"two model {field}s: {source} says '{first}' and {other} says '{value}'; "
                "send one of them"
            )
    return first


UNNAMED = Target("the body")


class Timings(dict[str, float]):
    """The seconds that a request has spent in each stage."""

    def stage(self, name: str) -> "Stage":
        """Add the time of the `with` block to one of STAGES."""
        return Stage(self, name)

    def header(self) -> str:
        """Return the header Server-Timing (W3C), in milliseconds; "" when no stage was entered."""
        return ", ".join(f"{name};dur={1000 * self[name]:.3f}" for name in STAGES if name in self)


class Stage:
    """The context of Timings.stage. A class, because a generator makes it several times slower."""

    __slots__ = ("_name", "_started", "_timings")

    def __init__(self, timings: Timings, name: str) -> None:
        self._timings, self._name = timings, name

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *error: object) -> None:
        self._timings[self._name] = (
            self._timings.get(self._name, 0.0) + perf_counter() - self._started
        )


@dataclass(frozen=True)
class Request:
    """What a caller asks."""

    id: str
    target: Target = UNNAMED
    attributes: Mapping[str, str] = field(default_factory=dict)  # the pairs of Custom-Attributes
    parameters: Mapping[str, str] = field(default_factory=dict)  # the query string
    session: str = ""  # the header Session-Id as it came
    accept: str = ""  # the header Accept
    # the media type of the stream that the caller asks for; "" for a reply in one piece
    stream: str = ""
    reply_deadline: Deadline = NEVER  # when the caller of a reply in one piece stops waiting
    stream_deadline: Deadline = NEVER  # when the caller of a stream stops waiting
    budget: Budget = field(default_factory=Budget)
    timings: Timings = field(default_factory=Timings)
    traceparent: str = ""  # the header of a sampled trace
    decoder: "Decoder | None" = None  # shared by all requests; None: one of its own

    @property
    def deadline(self) -> Deadline:
        return self.stream_deadline if self.stream else self.reply_deadline


@dataclass(frozen=True)
class Batch:
    """One call to Triton. `read` makes a result of its reply, or returns None if the result needs
    the next call's reply too. `is_pipelined` says that the next batch does not wait for this one's
    answer; the last one never is."""

    inputs: Sequence[Tensor]
    read: Callable[[InferReply], Any] = lambda reply: reply
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


class Job:
    """One request to one model: each kind of body has one, which is run once.

    `session` is the session that the request is a step of. The objects `flags` of the body may say
    `sequence_end`.
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
        """Return the answer in one piece, made of the results of all batches. Each has a
        `version`."""
        raise NotImplementedError

    def line(self, result: Any) -> bytes:
        """Return the JSON of one response of a stream."""
        raise NotImplementedError

    def answer(self, gateway: TritonGateway) -> Reply:
        """Return the answer in one piece. Raise a ServingError."""
        with closing(self.results(gateway)) as results:
            return self.reply(results)

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

    def responses(
        self, gateway: TritonGateway, started: Started = lambda responses: None
    ) -> Results:
        """Yield the result of each response of Triton's stream. `started` gets each call, so that
        another thread can cancel it."""
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
        if self.session and str(error).endswith(UNKNOWN_SEQUENCE):
            raise SessionNotFound(self.session.id) from error

    def _message(self, batch: Batch) -> InferRequest:
        """Return the call to Triton. Raise InvalidRequest for a tensor that the model does not
        have, because Triton would cut its name at a NUL character, and name all of them in its
        answer, of which gRPC cannot carry 10,000; and for a batch of no rows, which Triton never
        answers (quirks.py)."""
        served, request = self.served, self.request
        inputs = [tensor.name for tensor in batch.inputs]
        for kind, names, specs in (
            ("input", inputs, served.model.inputs),
            ("output", batch.outputs, served.model.outputs),
        ):
            known = {spec.name for spec in specs}
            for name in names:
                if name not in known:
                    raise InvalidRequest(f"model '{served.name}': {unknown(kind, name, known)}")
        if len(set(inputs)) < len(inputs):
            raise InvalidRequest("the request names an input twice; send each input once")
        for tensor in batch.inputs if served.model.max_batch_size or served.batched_parts else ():
            if tensor.shape[:1] == NO_ROWS:
                raise InvalidRequest(
                    f"input '{tensor.name}': its shape {list(tensor.shape)} has no rows; "
                    "the first dimension counts them and must be at least 1"
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
