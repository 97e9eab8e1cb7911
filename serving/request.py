"""Defines Request, the parsed form of a caller's request, and the objects that it consists of."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter

from serving.bodies.decoder import Decoder
from serving.budget import NEVER, Budget, Deadline
from serving.codecs import Limits
from serving.errors import InvalidRequest

NAME_KEYS = ("model_name", "modelname")
VERSION_KEY = "model_version"
RESERVED = {*NAME_KEYS, VERSION_KEY}
STAGES = ("load", "decode", "preprocess", "triton", "postprocess")
PATH = "the path"  # the source of a Target that overrides all other names in the request


@dataclass(frozen=True)
class Target:
    """The model and the version that one part of a request names. `source` describes that part in
    error messages."""

    source: str
    name: str | None = None
    version: str | None = None

    @classmethod
    def within(cls, source: str, values: Mapping[str, str]) -> "Target":
        """Return the target that `values` names under NAME_KEYS and VERSION_KEY. Raise
        InvalidRequest if two of the keys name different models."""
        targets = [cls(f"{source}, '{key}',", values.get(key) or None) for key in NAME_KEYS]
        return cls(source, _agreed("name", targets), values.get(VERSION_KEY) or None)

    @classmethod
    def agreed(cls, targets: Sequence["Target"], source: str) -> "Target":
        """Return the name and version that all targets agree on, as a target of `source`. Raise
        InvalidRequest if two targets disagree."""
        return cls(source, _agreed("name", targets), _agreed("version", targets))

    def without(self, other: "Target") -> "Target":
        """Return this target without its name if `other` has a name, and without its version if
        `other` has a version."""
        name = None if other.name else self.name
        version = None if other.version else self.version
        return Target(self.source, name, version)


def _agreed(field: str, targets: Iterable[Target]) -> str | None:
    """Return the value of `field` in the first target that has one. Raise InvalidRequest if two
    targets disagree."""
    agreed: str | None = None
    source = ""
    for target in targets:
        value: str | None = getattr(target, field)
        if value is None:
            continue
        if agreed is None:
            agreed = value
            source = target.source
        elif value != agreed:
            raise InvalidRequest(
                f"two model {field}s: {source} says '{agreed}' and {target.source} says "
                f"'{value}'; send one of them"
            )
    return agreed


UNNAMED = Target("the body")


class Timings(dict[str, float]):
    """The seconds that a request has spent in each stage."""

    def stage(self, name: str) -> "Stage":
        """Return a context manager that adds the time spent in its `with` block to the stage
        `name`, which is one of STAGES."""
        return Stage(self, name)

    def header(self) -> str:
        """Return the value of the header Server-Timing (W3C), in milliseconds, or "" if no stage
        was entered."""
        return ", ".join(f"{name};dur={1000 * self[name]:.3f}" for name in STAGES if name in self)


class Stage:
    """The context manager that Timings.stage returns. It is a class, because a context manager made
    from a generator would be several times slower."""

    __slots__ = ("_name", "_started", "_timings")

    def __init__(self, timings: Timings, name: str) -> None:
        self._timings = timings
        self._name = name

    def __enter__(self) -> None:
        self._started = perf_counter()

    def __exit__(self, *error: object) -> None:
        before = self._timings.get(self._name, 0.0)
        self._timings[self._name] = before + perf_counter() - self._started


@dataclass(frozen=True)
class Request:
    """A caller's request, without its body."""

    id: str
    target: Target = UNNAMED
    # the key-value pairs of Custom-Attributes
    attributes: Mapping[str, str] = field(default_factory=dict)
    # the key-value pairs of the query string, except the model's name and version
    parameters: Mapping[str, str] = field(default_factory=dict)
    session: str = ""  # the value of the Session-Id header
    accept: str = ""  # the value of the Accept header
    # the media type of the requested stream; "" for a reply in one piece
    stream: str = ""
    reply_deadline: Deadline = NEVER  # the deadline if the reply is in one piece
    stream_deadline: Deadline = NEVER  # the deadline if the reply is a stream
    budget: Budget = field(default_factory=Budget)
    timings: Timings = field(default_factory=Timings)
    traceparent: str = ""  # the value of the traceparent header if the trace is sampled
    decoder: Decoder = field(default_factory=lambda: Decoder(Limits()))  # shared by all requests

    @property
    def deadline(self) -> Deadline:
        return self.stream_deadline if self.stream else self.reply_deadline
