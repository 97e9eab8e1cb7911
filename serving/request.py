"""A request, made once in the front and passed whole, and the model that it is for.

bytes --parse--> shape --bind, with a ServedModel and a Request--> Job (job.py) --Triton--> Reply
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from clients.base import Model, ModelClient
from serving.budget import NEVER, Budget, Deadline
from serving.codecs import Limits, describe
from serving.decoding import Decoder
from serving.errors import InvalidRequest, ModelFailed
from serving.sessions import Sequencing


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
    def within(cls, source: str, values: Mapping[str, Any]) -> "Target":
        """Return the model that these values name. Raise InvalidRequest if the name or the version has a wrong type."""
        name = next((values[key] for key in NAME_KEYS if values.get(key) not in (None, "")), None)
        version = values.get(VERSION_KEY)
        if name is not None and not isinstance(name, str):
            raise InvalidRequest(f"{source}: the model's name must be a string, got {describe(name)}")
        if isinstance(version, bool) or not isinstance(version, str | int | None):
            raise InvalidRequest(f"{source}: model_version must be a whole number, got {describe(version)}")
        return cls(source, name, None if version in (None, "") else str(version))

    @classmethod
    def agreed(cls, targets: Sequence["Target"], source: str = "the request") -> "Target":
        """Return what the first target that names one says. Raise InvalidRequest if two disagree."""
        return cls(source, _agreed("name", targets), _agreed("version", targets))


def _agreed(what: str, targets: Iterable[Target]) -> str | None:
    chosen: tuple[str, str] | None = None
    for target in targets:
        value = target.name if what == "name" else target.version
        if value is None:
            continue
        if chosen is None:
            chosen = target.source, value
        elif value != chosen[1]:
            raise InvalidRequest(
                f"two model {what}s: {chosen[0]} says '{chosen[1]}' and {target.source} says '{value}'; "
                "send one of them"
            )
    return chosen[1] if chosen else None


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
        self._timings[self._name] = self._timings.get(self._name, 0.0) + perf_counter() - self._started


@dataclass(frozen=True)
class Request:
    """What a caller asks.

    attributes       the pairs of Custom-Attributes
    parameters       the query string
    session          the header Session-Id as it came
    accept           the header Accept
    stream           the media type of the stream that the caller asks for; "" for a reply in one piece
    reply_deadline   when the caller of a reply in one piece stops waiting
    stream_deadline  when the caller of a stream stops waiting
    traceparent      the header of a sampled trace
    decoder          decodes the items of all requests
    """

    id: str
    target: Target = UNNAMED
    attributes: Mapping[str, str] = field(default_factory=dict)
    parameters: Mapping[str, str] = field(default_factory=dict)
    session: str = ""
    accept: str = ""
    stream: str = ""
    reply_deadline: Deadline = NEVER
    stream_deadline: Deadline = NEVER
    budget: Budget = field(default_factory=Budget)
    timings: Timings = field(default_factory=Timings)
    traceparent: str = ""
    decoder: Decoder = field(default_factory=lambda: Decoder(Limits()))

    @property
    def deadline(self) -> Deadline:
        return self.stream_deadline if self.stream else self.reply_deadline

    def streamed_as(self, stream: str) -> "Request":
        """Return the same request for a stream of this media type, or for a reply in one piece."""
        return self if self.stream == stream else replace(self, stream=stream)
