"""Finds weights in Python packages that `make setup` installs. Only their files are read; no module
imports these packages."""

from importlib import metadata
from pathlib import Path

from build_engines.errors import BuildError


def file_of(package: str, name: str) -> Path:
    """Return the path of the file `name` in the package. Raise BuildError if the package is not
    installed or has no such file."""
    for distribution in metadata.distributions(name=package):
        for file in distribution.files or ():
            if file.name == name:
                return Path(str(file.locate()))
    raise BuildError(
        f"{name} comes with the package {package}, which is not installed: make setup installs it"
    )
