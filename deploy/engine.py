"""Docker, Podman or Buildah, whichever is installed, and git."""

import json
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

from deploy.errors import DeployError

ROOT = Path(__file__).resolve().parents[1]
ENGINES = ("docker", "podman", "buildah")
# SageMaker refuses images with an OCI manifest. Docker has no option for that (docs/deploy.md says how to build).
PUSH_OPTIONS = {"docker": [], "podman": ["--format", "v2s2"], "buildah": ["--format", "v2s2"]}

INSPECT = {"docker": ["image", "inspect"], "podman": ["image", "inspect"], "buildah": ["inspect", "--type", "image"]}


class Engine(Protocol):
    """Runs programs. A secret goes to standard input, never onto a command line."""

    def run(self, command: Sequence[str], secret: str = "") -> None:
        """Runs the command and shows its output. Raises DeployError when it fails."""

    def has(self, program: str) -> bool:
        """Whether the program is installed."""

    def succeeds(self, command: Sequence[str]) -> bool:
        """Whether the command, which changes nothing, exits with 0; hides its output."""

    def version(self) -> str:
        """The working tree's version by git describe; raises DeployError when git cannot tell."""


class LocalEngine:
    """The programs of this machine."""

    def run(self, command: Sequence[str], secret: str = "") -> None:
        done = subprocess.run(command, input=secret or None, text=True)
        if done.returncode:
            raise DeployError(f"'{' '.join(command)}' failed with exit code {done.returncode}; its output says why")

    def has(self, program: str) -> bool:
        return shutil.which(program) is not None

    def succeeds(self, command: Sequence[str]) -> bool:
        return subprocess.run(command, capture_output=True).returncode == 0

    def version(self) -> str:
        command = ["git", "describe", "--tags", "--always", "--dirty"]
        try:
            return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            raise DeployError("git describe finds no version here: name one with --tag (or --image)") from None


class PrintedEngine(LocalEngine):
    """Prints each command as a JSON object instead of running it; only `git describe` runs."""

    def __init__(self, out: Callable[[str], None]) -> None:
        self._out = out

    def run(self, command: Sequence[str], secret: str = "") -> None:
        self._out(json.dumps({"command": list(command)}, indent=2))

    def succeeds(self, command: Sequence[str]) -> bool:
        return True  # a dry run assumes that the image exists


def choose(engine: Engine, wanted: str, image: str) -> str:
    """The name of the wanted engine, or with "auto" of the first one installed that has the image."""
    names = [name for name in (ENGINES if wanted == "auto" else (wanted,)) if engine.has(name)]
    if not names:
        raise DeployError(
            f"none of {', '.join(ENGINES)} is installed here"
            if wanted == "auto"
            else f"{wanted} is not installed here; --engine names another"
        )
    for name in names:
        if engine.succeeds([name, *INSPECT[name], image]):
            return name
    raise DeployError(f"{' or '.join(names)} has no image '{image}' here: 'make image' builds it")
