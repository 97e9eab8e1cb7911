"""A request, made once in the front and passed whole; what a kind of body can do; and the reply.

Request --Body.batches--> Batch --Triton--> InferReply --Batch.read--> results --Body.reply--> Reply
                                                                          +-----Body.line--> a line of a stream
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any, ClassVar

from serving.budget import NEVER, Budget, Deadline
from serving.codecs import describe
from serving.decoding import Decoder
from serving.errors import InvalidRequest
from serving.served_model import ServedModel
from serving.sessions import Session
from serving.triton.tensors import InferReply, Parameters, Tensor

NAME_KEYS = ("model_name", "modelname")
VERSION_KEY = "model_version"
RESERVED = {*NAME_KEYS, VERSION_KEY}
STAGES = ("decode", "preprocess", "triton", "postprocess")
PATH = "the path"  # as the place of a Target: names elsewhere in the request do not count


@dataclass(frozen=True)
class Target:
    """The model and the version that one place of a request names; None where it names none."""

    place: str
    name: str | None = None
    version: str | None = None

    @classmethod
    def within(cls, place: str, values: Mapping[str, Any]) -> "Target":
        """The model that these values name. Raises InvalidRequest when one is no name."""
        name = next((values[key] for key in NAME_KEYS if values.get(key) not in (None, "")), None)
        version = values.get(VERSION_KEY)
        if name is not None and not isinstance(name, str):
            raise InvalidRequest(f"{place}: the model's name must be a string, got {describe(name)}")
        if isinstance(version, bool) or not isinstance(version, str | int | None):
            raise InvalidRequest(f"{place}: model_version must be a whole number, got {describe(version)}")
        return cls(place, name, None if version in (None, "") else str(version))

    @classmethod
    def agreed(cls, targets: Iterable["Target"]) -> "Target":
        """What the first that names one says; raises InvalidRequest when two disagree."""
        named = list(targets)
        return cls("the request", _agreed("name", named), _agreed("version", named))


def _agreed(what: str, targets: list[Target]) -> str | None:
    given = [(t.place, value) for t in targets if (value := getattr(t, what)) is not None]
    for place, value in given[1:]:
        if value != given[0][1]:
            raise InvalidRequest(
                f"two model {what}s: {given[0][0]} says '{given[0][1]}' and {place} says '{value}'; send one of them"
            )
    return given[0][1] if given else None


NOBODY = Target("the body")


class Timings(dict[str, float]):
    """The seconds that a request has spent in each stage."""

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Add the time of the `with` block to one of STAGES."""
        started = perf_counter()
        try:
            yield
        finally:
            self[name] = self.get(name, 0.0) + perf_counter() - started

    def header(self) -> str:
        """Return the header Server-Timing (W3C), in milliseconds; "" when no stage was entered."""
        return ", ".join(f"{name};dur={1000 * self[name]:.3f}" for name in STAGES if name in self)


@dataclass(frozen=True)
class Request:
    """What a caller asks. `attributes` are the pairs of Custom-Attributes, `parameters` those of the query string;
    `session` is the header Session-Id as it came, `accept` the header Accept, `traceparent` that of a sampled trace."""

    id: str
    body: "Body"
    target: Target = NOBODY
    attributes: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    session: str = ""
    accept: str = ""
    deadline: Deadline = NEVER
    budget: Budget = field(default_factory=Budget)
    timings: Timings = field(default_factory=Timings)
    traceparent: str = ""

    @property
    def version(self) -> str:
        """The version that is asked for; "" is the latest."""
        return self.target.version or ""


def _unread(reply: InferReply) -> InferReply:
    return reply


@dataclass(frozen=True)
class Batch:
    """One call to Triton: `read` makes a result of its reply, which is the reply itself where nothing else is said, and
    None where the result takes the next call's reply too; `goes_on` says that the next batch does not wait for this
    one's answer."""

    inputs: Sequence[Tensor]
    read: Callable[[InferReply], Any] = _unread
    parameters: Parameters = field(default_factory=dict)
    outputs: Sequence[str] = ()
    goes_on: bool = False


@dataclass(frozen=True)
class Reply:
    """What leaves: the content, its type, the version that answered, further headers."""

    content: bytes
    content_type: str = "application/json"
    version: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)


class Body:
    """What a caller sent, as data: one class for each kind. JSON lines are asked one by one, and have no batches, reply
    and line of their own (serving/inference/batch_transform.py).

    single_stream: an answer in one piece is the only response of a stream, as Triton's generate has it
    """

    single_stream: ClassVar[bool] = False

    def target(self) -> Target:
        """The model that the body names."""
        return NOBODY

    def meant_for(self, served: ServedModel) -> "Body":
        """What the body is for this model: itself, unless the model decides. Raises InvalidRequest."""
        return self

    def by_line(self, accept: str) -> bool:
        """Whether each of its lines is answered by a line of JSON, and a wrong one spoils no other."""
        return False

    def check_single(self) -> None:
        """Raises InvalidRequest where the body is only good for a stream."""

    def check_stream(self) -> None:
        """Raises InvalidRequest where the body cannot be answered by a stream."""

    def flags(self) -> Sequence[Mapping[str, Any]]:
        """The objects of the body in which `sequence_end` may stand."""
        return ()

    def batches(
        self, served: ServedModel, request: Request, session: Session | None, decoder: Decoder
    ) -> Iterator[Batch]:
        """Its way to Triton; raises a ServingError."""
        raise NotImplementedError

    def reply(self, served: ServedModel, request: Request, results: Iterator[Any]) -> Reply:
        """The answer in one piece, of the results of all batches, which come one by one. Each has a `version`."""
        raise NotImplementedError

    def line(self, served: ServedModel, request: Request, result: Any) -> bytes:
        """The JSON of one response of a stream."""
        raise NotImplementedError
