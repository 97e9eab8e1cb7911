"""Finds the installed tritonserver, and returns the command line and the environment that it needs.

In NVIDIA's image it is in /opt/tritonserver. Elsewhere it comes with the PyPI package
nvidia-pytriton, which is never imported.
"""

import contextlib
import ctypes.util
import importlib.util
import os
import sys
import sysconfig
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from serving.triton.quirks import STUB_WAIT_VERSION

NVIDIA_IMAGE = Path("/opt/tritonserver")
PACKAGE = "pytriton"
DISTRIBUTION = "nvidia-pytriton"
# maps the version of the PyPI package to the version of tritonserver that it contains
TRITON_IN_PACKAGE = {"0.7.0": "2.51.0"}
PYTHON = f"{sys.version_info.major}.{sys.version_info.minor}"
# the folders into which Triton's Python backend unpacks the Python packages of models
ENVIRONMENTS = "/tmp/python_env_??????"


def is_nvidia_image() -> bool:
    """Return whether this is NVIDIA's Triton image, which has C++ backends and GPU libraries."""
    return (NVIDIA_IMAGE / "bin" / "tritonserver").is_file()


def package(name: str = PACKAGE) -> Path:
    """Return the folder `pytriton/tritonserver` of the installed package. Raise FileNotFoundError
    if it is not installed."""
    spec = importlib.util.find_spec(name)
    folder = Path(spec.origin).parent / "tritonserver" if spec and spec.origin else None
    if folder and (folder / "bin" / "tritonserver").is_file():
        return folder
    raise FileNotFoundError(
        f"there is no tritonserver: the Python package '{DISTRIBUTION}' is not installed in "
        f"{sys.prefix}: pip install --no-deps {DISTRIBUTION}, or use NVIDIA's Triton image"
    )


def binary() -> Path:
    """Return the path of the installed tritonserver. Raise FileNotFoundError if there is none."""
    folder = NVIDIA_IMAGE if is_nvidia_image() else package()
    return folder / "bin" / "tritonserver"


def backend_directory() -> Path:
    """Return the folder that contains Triton's backends. In NVIDIA's image it is NVIDIA's own,
    elsewhere triton/backends under sys.prefix."""
    folder = NVIDIA_IMAGE if is_nvidia_image() else Path(sys.prefix) / "triton"
    return folder / "backends"


def python_backends(folder: Path) -> list[str]:
    """Return "python" and the names of the backends in `folder` that are written in Python
    (NAME/model.py)."""
    return ["python", *sorted(path.parent.name for path in folder.glob("*/model.py"))]


def only_python_backends(folder: Path) -> bool:
    """Return whether all backends in the folder are Python backends."""
    names = {backend.name for backend in folder.glob("*/")}
    return names <= set(python_backends(folder))


def command(flags: Mapping[str, object], backends: Path, prefix: str) -> list[str]:
    """Return tritonserver's command line. `backends` is the folder that contains the backends. The
    names of the files that Python backends create in /dev/shm begin with `prefix`. Raise
    FileNotFoundError if there is no tritonserver."""
    words = [str(binary())]
    words += [f"--{name}={value}" for name, value in flags.items()]
    if only_python_backends(backends):  # repository/completion.py completes configurations instead
        words.append("--disable-auto-complete-config")
    return words + [
        f"--backend-config={name},shm-region-prefix-name={prefix}"
        for name in python_backends(backends)
    ]


def environment(base: Mapping[str, str], python: str = PYTHON) -> dict[str, str]:
    """Return `base` with the variables that tritonserver and its Python stubs need. In NVIDIA's
    image, nothing needs to be added.

    A stub ignores PYTHONPATH, and uses the packages of the first `python3` on PATH. Raise
    FileNotFoundError if the package or this Python's shared library is missing.
    """
    if is_nvidia_image():
        return dict(base)
    # the shared libraries that the wheel contains
    wheel_libraries = package().parent.parent / f"{DISTRIBUTION.replace('-', '_')}.libs"
    existing = base.get("LD_LIBRARY_PATH", "")
    library_folders = [wheel_libraries, *_folders_of_libpython(python, existing)]
    return dict(base) | {
        "LD_LIBRARY_PATH": _prepended(library_folders, existing),
        "PATH": _prepended([Path(sys.executable).parent], base.get("PATH", os.defpath)),
    }


def _folders_of_libpython(python: str, existing: str) -> list[Path]:
    """Return a list with the folder that contains the shared library of Python `python`, such as
    "3.12", or [] if the dynamic linker finds it anyway. `existing` is LD_LIBRARY_PATH. Raise
    FileNotFoundError if the library is missing."""
    name = f"libpython{python}.so.1.0"
    configured = Path(sysconfig.get_config_var("LIBDIR") or "/usr/lib")
    candidates = [
        configured,
        configured / (sysconfig.get_config_var("MULTIARCH") or ""),
        Path(sys.base_prefix) / "lib",
    ]
    candidates += [Path(folder) for folder in existing.split(os.pathsep) if folder]
    for folder in candidates:
        if (folder / name).is_file():
            return [folder]
    if ctypes.util.find_library(f"python{python}"):
        return []
    raise FileNotFoundError(
        f"{name} is missing, to which Triton's Python stub is linked: install Debian's "
        f"libpython{python}, or a Python built with --enable-shared"
    )


def version() -> str:
    """Return the version of the installed tritonserver, such as "2.51.0", or "" if it is
    unknown."""
    if is_nvidia_image():
        with contextlib.suppress(OSError):
            return (NVIDIA_IMAGE / "TRITON_VERSION").read_text().strip()
        return os.environ.get("TRITON_SERVER_VERSION", "")
    with contextlib.suppress(metadata.PackageNotFoundError):
        return TRITON_IN_PACKAGE.get(metadata.version(DISTRIBUTION), "")
    return ""


def with_stub_wait(environ: Mapping[str, str], prefix: str = sys.prefix) -> dict[str, str]:
    """Return `environ` with a variable that preloads the library built from backends/stub_wait.c,
    which makes the Python backend wait for a paused stub. Return `environ` unchanged if the library
    was not verified with the installed version of Triton. If it was verified but is missing, raise
    FileNotFoundError."""
    if version() != STUB_WAIT_VERSION:
        return dict(environ)
    library = Path(prefix) / "triton/stub_wait.so"
    if not library.is_file():
        raise FileNotFoundError(
            f"{library} is missing: build it from backends/stub_wait.c (make setup does)"
        )
    return dict(environ) | {"LD_PRELOAD": _prepended([library], environ.get("LD_PRELOAD", ""))}


def _prepended(paths: list[Path], existing: str) -> str:
    """Return the list `existing` of paths, separated by colons, with `paths` moved or added to its
    beginning."""
    names = [str(path) for path in paths]
    kept = [name for name in existing.split(os.pathsep) if name and name not in names]
    return os.pathsep.join(names + kept)
