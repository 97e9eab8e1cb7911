"""Assembles the backend directory of a tritonserver that comes from the package nvidia-pytriton.

    python -m backends.install [DEST]

DEST/python is Triton's own Python backend, with the stub for the running version of Python. Each
folder here that contains a model.py is copied to DEST/NAME, together with the files of _shared,
because a backend can import only from its own folder. Triton refuses links that leave a backend's
folder, so the files are copied. Other folders in DEST are kept. A new folder is built in a
temporary folder and then renamed, so that an interrupted run leaves no incomplete backend.
"""

import argparse
import logging
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from serving.host import tritonserver

OURS = Path(__file__).resolve().parent
SHARED = OURS / "_shared"
STUB = "triton_python_backend_stub"
LIBRARY, UTILITIES = "libtriton_python.so", "triton_python_backend_utils.py"

log = logging.getLogger(__name__)


def install(destination: Path, python: str = tritonserver.PYTHON) -> list[str]:
    """Write the backends for version `python` of Python into `destination`. Return their names.

    Raise FileNotFoundError if the package, or its stub for this Python, is missing, and OSError if
    the folder cannot be written.
    """
    backends = {"python": python_backend(python), **own_backends()}
    destination.mkdir(parents=True, exist_ok=True)
    for name, files in backends.items():
        _replace(destination / name, files)
    return list(backends)


def python_backend(python: str) -> list[Path]:
    """Return the files of Triton's Python backend in the installed package, with the stub for
    version `python` of Python. Raise FileNotFoundError if there is no such stub."""
    package = tritonserver.package()
    folder = package / "backends" / "python"
    stubs = package / "python_backend_stubs"
    stub = stubs / python / STUB
    if not stub.is_file():
        available = sorted(path.parent.name for path in stubs.glob(f"*/{STUB}"))
        raise FileNotFoundError(
            f"{tritonserver.DISTRIBUTION} has no stub for Python {python}, only for "
            f"{', '.join(available)}; run with one of those"
        )
    return [folder / LIBRARY, folder / UTILITIES, stub]


def own_backends() -> dict[str, list[Path]]:
    """Return {backend: its files} for every folder here that contains a model.py."""
    shared = list(SHARED.glob("*.py"))
    folders = [model.parent for model in sorted(OURS.glob("*/model.py"))]
    return {folder.name: [*folder.glob("*.py"), *shared] for folder in folders}


def _replace(folder: Path, files: Sequence[Path]) -> None:
    """Replace the folder with a new one that contains copies of the files."""
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        new = Path(scratch) / "new"
        new.mkdir()
        for file in files:
            shutil.copy(file, new)
        if os.path.lexists(folder):
            folder.rename(Path(scratch) / "old")
        new.rename(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Install the backends into the folder that `arguments` (by default sys.argv) name, or else
    into tritonserver's backend directory. Return 0, or 1 after logging a failure."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser("python -m backends.install")
    parser.add_argument(
        "destination", nargs="?", type=Path, default=tritonserver.backend_directory()
    )
    destination = parser.parse_args(arguments).destination
    try:
        names = install(destination)
    except OSError as err:
        log.error("cannot install Triton's backends: %s", err)
        return 1
    log.info("%s: installed %s", destination, ", ".join(names))
    return 0


if __name__ == "__main__":
    sys.exit(main())
