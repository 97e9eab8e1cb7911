"""A trained network that is committed with its model folder."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from build_engines.errors import BuildError
from build_engines.weights.digests import digest


@dataclass(frozen=True)
class Committed:
    """The file and its SHA-256."""

    path: Path
    sha256: str

    def copy(self, target: Path) -> None:
        """Copies the file; BuildError when its SHA-256 is not that of the trained network."""
        if not self.path.is_file() or digest(self.path) != self.sha256:
            raise BuildError(
                f"{self.path} is not the network that was trained: get it back (git checkout {self.path.name}), "
                "or train it again with --weights train"
            )
        shutil.copyfile(self.path, target)
