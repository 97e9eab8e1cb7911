"""What a peer's start gets and gives."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(frozen=True)
class Context:
    """`python` of the peer's environment, the models' repository and names, a free port, a folder to write to."""

    python: Path
    repository: Path
    models: tuple[str, ...]
    port: int
    scratch: Path


@dataclass(frozen=True)
class Start:
    """A command, variables beside those that every peer gets, and a pattern of what a killed one leaves in shared
    memory."""

    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    leftovers: str = ""
