"""A request, made once in the front and passed whole; the model it is for; what a kind of body can do; and the reply.

Request --Body.batches--> Batch --Triton--> InferReply --Batch.read--> results --Body.reply--> Reply
                                                                          +-----Body.line--> a line of a stream
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any, ClassVar

from clients.base import Model, ModelClient
from serving.budget import NEVER, Budget, Deadline
from serving.clients import source_of
from serving.codecs import describe
from serving.decoding import Decoder
from serving.errors import InvalidRequest, ModelFailed
from serving.sessions import Sequencing, Session
from serving.triton.tensors import InferReply, Parameters, Tensor


@dataclass(frozen=True)
class ServedModel:
    """A model that Triton has loaded, and its client; without a client it serves tensors only.

    `client_error` says why the client that the model names could not be made; `sequencing` is set for a model whose
    requests belong to sequences, and `parts` names the models that an ensemble is made of. `engine` is Triton's
    backend, `engine_reason` why it was chosen where there was a choice (repository/engines.py). `labels` has the
    class names of the outputs whose label_filename in config.pbtxt names a file. `batched_parts` says that a part of
    an ensemble has a batch dimension.
    """

    model: Model
    client: ModelClient | None = None
    client_error: str = ""
    sequencing: Sequencing | None = None
    parts: tuple[str, ...] = ()
    engine: str = ""
    engine_reason: str = ""
    labels: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    batched_parts: bool = False

    @property
    def name(self) -> str:
        return self.model.name

    @property
    def names(self) -> tuple[str, ...]:
        """Triton's, and those of its parts."""
        return (self.name, *self.parts)

    def require_client(self) -> ModelClient:
        """The client; raises ModelFailed, or InvalidRequest that says what to send instead."""
        if self.client_error:
            raise ModelFailed(self.name, self.client_error)
        if self.client is None:
            raise InvalidRequest(
                f"model '{self.name}' has no client, so it takes tensors: send KServe v2 JSON "
                '{"inputs": [{"name", "shape", "datatype", "data"}]}, its binary form, or application/x-npy'
            )
        return self.client

    def example(self) -> bytes:
        """One instance as a caller would post it: the folder's example.*, else the client's own."""
        own = self.example_file()
        return own.read_bytes() if own else self.require_client().example

    def example_file(self) -> Path | None:
        """The folder's own."""
        return next(iter(sorted(self.model.path.glob("example.*"))), None)

    def known_parameters(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Those of the values that are parameters of the client; the rest is the caller's own."""
        names = {parameter.name for parameter in self.client.parameters} if self.client else set()
        return {name: value for name, value in given.items() if name in names}

    def describe(self) -> dict[str, Any]:
        """What GET /models says of it."""
        described: dict[str, Any] = {
            "engine": self.engine,
            **({"engine_reason": self.engine_reason} if self.engine_reason else {}),
            "client": source_of(self.client) if self.client else None,
            "max_batch_size": self.model.max_batch_size,
            "inputs": [asdict(spec) for spec in self.model.inputs],
            "outputs": [asdict(spec) for spec in self.model.outputs],
        }
        if self.client:
            described["codec"] = self.client.codec.name
            described["instance"] = self.client.codec.expected
            described |= {"columns": self.client.columns} if self.client.columns else {}
            schemas = self.client.parameter_schemas()
            described["parameters"] = [
                {
                    "name": p.name,
                    "default": plain(self.client.defaults[p.name]),
                    "expected": p.expected(),
                    "help": p.help,
                    "schema": schemas[p.name],
                }
                for p in self.client.parameters
            ]
        return described | ({"error": self.client_error} if self.client_error else {})


def plain(value: Any) -> Any:
    """Return a tuple as a list, because orjson does not write subclasses of tuple, such as Names."""
    return list(value) if isinstance(value, tuple) else value


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
