"""Checks the Python packages that a model brings along (EXECUTION_ENV_PATH in config.pbtxt)."""

import re
import sys
import tarfile
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from serving.errors import ConfigError
from serving.host.tritonserver import PYTHON, is_nvidia_image
from serving.repository.model_config import parameter_of
from serving.repository.paths import MOST_ENTRIES, real_path

PACKAGES = "EXECUTION_ENV_PATH"
MODEL = "$$TRITON_MODEL_DIRECTORY"  # Triton's placeholder for the model's folder
# Maximum size of the unpacked packages in bytes. A conda environment with torch and CUDA has about
# 8 GB.
MOST_UNPACKED = 16 * 2**30
# If the model's folder contains a file of this name, Triton starts it instead of its own stub.
STUB = "triton_python_backend_stub"
# Patterns for the files and folders of an unpacked environment that show whether it can be used.
_INSPECTED = ("bin/*", "lib/python*", "lib/python*/site-packages/numpy-*")
# Matches paths that the last two patterns find. Group 1 is Python's version, group 3 is NumPy's
# major version.
_PYTHON = re.compile(r"lib/python(\d+\.\d+)(/site-packages/numpy-(\d+)[^/]*\.(dist|egg)-info)?")


def mistake_of_packages(model: Path, config: Any, most: int = MOST_ENTRIES) -> str:
    """Return the error message if the model cannot run with the packages that it brings along, else
    "". If they are in an archive, it may have at most `most` entries.

    EXECUTION_ENV_PATH names an archive made by conda-pack or venv-pack, or its unpacked folder.
    Triton's Python backend unpacks the archive, puts its bin/ first on PATH and starts the stub,
    which uses the packages of the first `python3` on PATH. If that `python3` is missing or has
    another version, the model silently runs with the server's packages.
    """
    if PACKAGES not in config.parameters:
        return ""
    try:
        path = real_path(packages_of(model, config))
        link_targets = (
            _link_targets_in_folder(path) if path.is_dir() else _link_targets_in_archive(path, most)
        )
        mistake = _mistake_of_links(link_targets, has_own_stub=(model / STUB).is_file())
    except ConfigError as err:
        mistake = str(err)
    except tarfile.TarError:
        mistake = "it is not a tar archive that gzip, bzip2 or xz compressed"
    except (OSError, EOFError) as err:
        reason = getattr(err, "strerror", None) or err
        mistake = f"it cannot be read: {reason}"
    return f"{PACKAGES} '{parameter_of(config, PACKAGES)}': {mistake}" if mistake else ""


def _link_targets_in_folder(folder: Path) -> dict[str, str]:
    """Map the files and folders that match _INSPECTED to their targets if they are links, and to ""
    otherwise. The keys are paths relative to `folder`. Raise OSError."""
    link_targets = {}
    for file in chain.from_iterable(map(folder.glob, _INSPECTED)):
        name = str(file.relative_to(folder))
        link_targets[name] = str(file.readlink()) if file.is_symlink() else ""
    return link_targets


def _link_targets_in_archive(path: Path, most: int) -> dict[str, str]:
    """Map the names in a tar archive to their targets if they are links, and to "" otherwise. Raise
    ConfigError if there are more than `most` entries, or more than MOST_UNPACKED unpacked bytes.
    Raise tarfile.TarError, OSError or EOFError if it cannot be read."""
    link_targets = {}
    count = 0
    with tarfile.open(path) as archive:
        while member := archive.next():
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
            link_targets[member.name.removeprefix("./")] = member.linkname
            count += 1  # count members rather than names, which may repeat
            if count > most:
                raise ConfigError("", f"it has more than {most} files")
            # check this before tarfile unpacks the file to find the next entry
            if member.offset_data + member.size > MOST_UNPACKED:
                raise ConfigError("", f"it unpacks to more than {MOST_UNPACKED // 2**30} GB")
    return link_targets


def packages_of(model: Path, config: Any) -> Path:
    """Return the path that EXECUTION_ENV_PATH names."""
    return Path(parameter_of(config, PACKAGES).replace(MODEL, str(model)))


def _mistake_of_links(link_targets: Mapping[str, str], has_own_stub: bool) -> str:
    """Return what is wrong with a folder of packages, or "" if nothing is. `link_targets` maps its
    files to their targets if they are links, and to "" otherwise. If the model `has_own_stub`, any
    version of Python is accepted."""
    if "bin/activate" not in link_targets:
        return "it has no bin/activate; make it with conda-pack or venv-pack"
    matches = [match for match in map(_PYTHON.match, link_targets) if match]
    pythons = {match[1] for match in matches}
    if not has_own_stub and PYTHON not in pythons:
        packaged = f"Python {', '.join(sorted(pythons))}" if pythons else "no Python in lib/"
        return (
            f"it has {packaged}, and Triton's Python backend here is for Python {PYTHON}: make "
            "it with that version"
        )
    for name, target in link_targets.items():
        is_outside = target.startswith("/")
        if name.startswith("bin/python") and is_outside and not Path(target).exists():
            python = f"{sys.base_prefix}/bin/python{PYTHON}"
            return (
                f"its {name} is a link to {target}, which is not here: make it with {python}, "
                "or with conda-pack"
            )
    numpy = max((int(match[3]) for match in matches if match[3]), default=0)
    if numpy != 1 and not is_nvidia_image():
        packaged = f"NumPy {numpy}" if numpy else "no NumPy"
        return (
            f"it has {packaged}, and Triton's Python backend here needs NumPy 1: install "
            "'numpy<2' in it"
        )
    return ""
