"""The argument and the result of a peer's `start`."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Context:
    """`python` of the peer's environment, the models' repository and names, a free port, a folder to write to, and the
    engine that is asked for, "" when none is."""

    python: Path
    repository: Path
    models: tuple[str, ...]
    port: int
    scratch: Path
    engine: str = ""


@dataclass(frozen=True)
class Start:
    """A command, its variables besides those that every peer gets, and a pattern for the shared-memory files that a
    killed peer leaves."""

    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    leftovers: str = ""
