"""A request, made once in the front and passed on whole."""

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
        """Return the one name and version that all targets agree on. `source` says whether the
        path named the model. Raise InvalidRequest if two disagree."""
        return cls(source, _agreed("name", targets), _agreed("version", targets))

    def without(self, other: "Target") -> "Target":
        """Return what this target says and `other` does not say."""
        name = None if other.name else self.name
        version = None if other.version else self.version
        return Target(self.source, name, version)


def _agreed(field: str, targets: Iterable[Target]) -> str | None:
    """Return the field of the first target that has it. Raise InvalidRequest if two disagree."""
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
        """Add the time of the `with` block to one of STAGES."""
        return Stage(self, name)

    def header(self) -> str:
        """Return the header Server-Timing (W3C), in milliseconds; "" when no stage was entered."""
        return ", ".join(f"{name};dur={1000 * self[name]:.3f}" for name in STAGES if name in self)


class Stage:
    """The context of Timings.stage. A class, because a generator makes it several times slower."""

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
    decoder: Decoder = field(default_factory=lambda: Decoder(Limits()))  # shared by all requests

    @property
    def deadline(self) -> Deadline:
        return self.stream_deadline if self.stream else self.reply_deadline
