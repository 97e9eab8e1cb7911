"""The interface that starts containers: `Runner.start(launch)` returns a Handle.

simulate/inplace.py runs a program in place, simulate/image.py an image.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Protocol

PORT = 8080
SAFE_PORTS = "23000-23999"  # as seen on the platform
MODEL, MODELS = "/opt/ml/model", "/opt/ml/models"


class CannotStart(Exception):
    """The program, the image or the engine is missing; the message says what to do."""


@dataclass(frozen=True)
class Launch:
    """What to start. `folder` is an empty folder for this container's files. `model` becomes /opt/ml/model, `models`
    becomes /opt/ml/models; both are read-only for the container."""

    name: str
    folder: Path
    environment: Mapping[str, str]
    model: Path | None = None
    models: Path | None = None


class Handle(Protocol):
    """A started container.

    `pid` is its first process on this machine, `network` a process in the network of `port` (0: this machine's),
    `models` the path of Launch.models inside the container, `output` its output.
    """

    pid: int
    port: int
    network: int
    models: str
    output: IO[bytes]

    def exit_code(self) -> int | None:
        """Its exit code; None while it runs."""

    def terminate(self) -> None:
        """Sends SIGTERM to its first process."""

    def kill(self) -> None:
        """Sends SIGKILL to all its processes; returns when they have ended."""

    def changed_files(self) -> list[str]:
        """Files that the container changed in /opt/ml/model; empty if it could not write there."""


class Runner(Protocol):
    """`describe` says in one line what it runs and how that is isolated from the machine."""

    def describe(self) -> str: ...

    def start(self, launch: Launch) -> Handle:
        """Raises CannotStart."""


def host_variables(port: int) -> dict[str, str]:
    """The variables that the platform sets."""
    return {"SAGEMAKER_BIND_TO_PORT": str(port), "SAGEMAKER_SAFE_PORT_RANGE": SAFE_PORTS}
