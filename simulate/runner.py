"""How a container is started: `Runner.start(launch)` gives a Handle. In place (simulate/inplace.py), or an image."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

PORT = 8080
SAFE_PORTS = "23000-23999"  # as seen on the platform
MODEL, MODELS = "/opt/ml/model", "/opt/ml/models"


class CannotStart(Exception):
    """There is no such program or image, or no engine; the message says what to do."""


@dataclass(frozen=True)
class Launch:
    """`folder` is ours and empty, for this container's files. `model` becomes /opt/ml/model, `models`
    /opt/ml/models; both are read-only for the container."""

    name: str
    folder: Path
    environment: Mapping[str, str]
    model: Path | None = None
    models: Path | None = None


class Handle(Protocol):
    """A container that was started.

    `pid` is its first process on this machine; `network` is a process whose network the port is in, 0 for ours;
    `models` is where the container sees Launch.models; `output` is what it writes.
    """

    pid: int
    port: int
    network: int
    models: str
    output: IO[bytes]

    def exit_code(self) -> int | None:
        """None while it runs."""

    def terminate(self) -> None:
        """SIGTERM to its first process."""

    def kill(self) -> None:
        """SIGKILL to all of it; returns when nothing is left."""

    def changed_files(self) -> list[str]:
        """What the container has written to its /opt/ml/model, where that was not made impossible."""


class Runner(Protocol):
    """`describe` says in a line what is run and how it is kept apart from the machine."""

    def describe(self) -> str: ...

    def start(self, launch: Launch) -> Handle:
        """Raises CannotStart."""


def host_variables(port: int) -> dict[str, str]:
    """What the platform sets."""
    return {"SAGEMAKER_BIND_TO_PORT": str(port), "SAGEMAKER_SAFE_PORT_RANGE": SAFE_PORTS}
