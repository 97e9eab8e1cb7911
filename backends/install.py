"""Assembles the backend directory of a tritonserver that comes from the package nvidia-pytriton.

    python -m backends.install [DEST]

DEST/python is Triton's own Python backend with the stub for the running Python. Each folder here
that contains a model.py is copied to DEST/NAME, together with the files of _shared, because a
backend sees only its own folder. Links would not do, because Triton refuses links that leave the
backend's directory. Other folders in DEST, and those that are up to date, are kept. A new folder is
built in a temporary folder and then renamed, so that an interrupted run leaves no incomplete
backend.
"""

import argparse
import filecmp
import logging
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from serving.host import tritonserver

OURS = Path(__file__).resolve().parent
SHARED = "_shared"
STUB = "triton_python_backend_stub"
LIBRARY, UTILITIES = "libtriton_python.so", "triton_python_backend_utils.py"

log = logging.getLogger(__name__)


def install(destination: Path, python: str = tritonserver.PYTHON) -> list[str]:
    """Bring `destination` up to date for this version of Python. Return the names of the backends
    that were written.

    Raise FileNotFoundError if the package, or its stub for this Python, is missing, and OSError if
    the folder cannot be written.
    """
    backends = {"python": python_backend(python), **own_backends()}
    destination.mkdir(parents=True, exist_ok=True)
    outdated = [
        name for name, files in backends.items() if not _is_current(destination / name, files)
    ]
    for name in outdated:
        _replace(destination / name, backends[name])
    return outdated


def python_backend(python: str) -> dict[str, Path]:
    """Return {file name: source} for Triton's Python backend, from the installed package."""
    package = tritonserver.package()
    folder = package / "backends" / "python"
    files = {name: folder / name for name in (LIBRARY, UTILITIES)}
    files[STUB] = _stub(package / "python_backend_stubs", python)
    for path in files.values():
        if not path.is_file():
            raise FileNotFoundError(f"{path} is missing: install {tritonserver.DISTRIBUTION} again")
    return files


def _stub(folder: Path, python: str) -> Path:
    stub = folder / python / STUB
    if stub.is_file():
        return stub
    versions = [path.parent.name for path in folder.glob(f"*/{STUB}")]
    available = sorted(versions, key=_version)
    raise FileNotFoundError(
        f"{tritonserver.DISTRIBUTION} has no stub for Python {python}, only for "
        f"{', '.join(available) or 'none'}; run with one of those"
    )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def own_backends(folder: Path = OURS) -> dict[str, dict[str, Path]]:
    """Return {backend: its files} for every folder here that contains a model.py."""
    shared = _files(folder / SHARED)
    folders = [model.parent for model in sorted(folder.glob("*/model.py"))]
    return {each.name: shared | _files(each) for each in folders}


def _files(folder: Path) -> dict[str, Path]:
    """Return {path relative to `folder`: path} for its files, without bytecode."""
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): p for p in paths if "__pycache__" not in p.parts}


def _is_current(folder: Path, files: Mapping[str, Path]) -> bool:
    if folder.is_symlink() or not folder.is_dir():
        return False
    if set(_files(folder)) != set(files):
        return False
    return all(_is_copy(folder / name, source) for name, source in files.items())


def _is_copy(path: Path, source: Path) -> bool:
    same_mode = path.stat().st_mode == source.stat().st_mode
    return same_mode and not path.is_symlink() and filecmp.cmp(path, source, shallow=False)


def _replace(folder: Path, files: Mapping[str, Path]) -> None:
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        new, old = Path(scratch) / "new", Path(scratch) / "old"
        for name, source in files.items():
            (new / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, new / name)
        if folder.is_symlink():
            folder.unlink()
        elif folder.exists():
            folder.rename(old)
        new.rename(folder)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line. Return 0, or 1 after logging the failure."""
    logging.basicConfig(level=logging.INFO, format="%(message)s")
    parser = argparse.ArgumentParser(
        prog="python -m backends.install", description="Installs the backends."
    )
    parser.add_argument(
        "destination", nargs="?", type=Path, default=tritonserver.backend_directory()
    )
    destination = parser.parse_args(arguments).destination
    try:
        written = install(destination)
    except OSError as err:
        log.error("cannot install Triton's backends: %s", err)
        return 1
    what = f"installed {', '.join(written)}" if written else "up to date"
    log.info("%s: %s", destination, what)
    return 0


if __name__ == "__main__":
    sys.exit(main())
