"""Check the Python packages that a model brings along: EXECUTION_ENV_PATH in config.pbtxt.

It names an archive that conda-pack or venv-pack made, or an unpacked one. Triton's Python backend unpacks it, puts its
bin/ first on PATH and starts the stub, which takes the packages of the first `python3` there. If that is of another
version than the stub, or is not there, the model silently runs with the packages of the server instead.
"""

import re
import sys
import tarfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from serving.host.tritonserver import PYTHON, is_nvidia_image

PARAMETER = "EXECUTION_ENV_PATH"
MODEL = "$$TRITON_MODEL_DIRECTORY"  # Triton's word for the model's folder
STUB = "triton_python_backend_stub"  # in the model's folder: it is started instead of the backend's
_PYTHON = re.compile(r"lib/python(\d+\.\d+)(/site-packages/numpy-(\d+)[^/]*\.(dist|egg)-info)?")


def mistake_of_packages(model: Path, config: Any) -> str:
    """Return why the model cannot run with the packages that it brings; "" if it can, or if it brings none."""
    if PARAMETER not in config.parameters:
        return ""
    said = str(config.parameters[PARAMETER].string_value)
    path = Path(said.replace(MODEL, str(model)))
    try:
        mistake = _mistake(dict(_entries(path)), own_stub=(model / STUB).is_file())
    except tarfile.TarError:
        mistake = "it is not a tar archive that gzip, bzip2 or xz compressed"
    except (OSError, EOFError) as err:
        mistake = f"it cannot be read: {getattr(err, 'strerror', None) or err}"
    return f"{PARAMETER} '{said}': {mistake}" if mistake else ""


def _entries(path: Path) -> Iterator[tuple[str, str]]:
    """Yield the name and the target ("" if it is not a link) of the archive's files, or of those in a folder that are
    looked at."""
    if path.is_dir():
        for pattern in ("bin/*", "lib/python*", "lib/python*/site-packages/numpy-*"):
            for file in path.glob(pattern):
                yield str(file.relative_to(path)), str(file.readlink()) if file.is_symlink() else ""
        return
    with tarfile.open(path) as archive:
        for member in archive:
            yield member.name.removeprefix("./"), member.linkname


def _mistake(entries: Mapping[str, str], own_stub: bool) -> str:
    if "bin/activate" not in entries:
        return "it has no bin/activate; make it with conda-pack or venv-pack"
    found = [match for match in map(_PYTHON.match, entries) if match]
    pythons = {match[1] for match in found}
    if not own_stub and PYTHON not in pythons:
        has = f"Python {', '.join(sorted(pythons))}" if pythons else "no Python in lib/"
        return f"it has {has}, and Triton's Python backend here is for Python {PYTHON}: make it with that version"
    for name, target in entries.items():
        if name.startswith("bin/python") and target.startswith("/") and not Path(target).exists():
            own = f"{sys.base_prefix}/bin/python{PYTHON}"
            return f"its {name} is a link to {target}, which is not here: make it with {own}, or with conda-pack"
    if is_nvidia_image():
        return ""
    numpy = {int(match[3]) for match in found if match[3]}
    if not numpy or max(numpy) > 1:
        has = f"NumPy {max(numpy)}" if numpy else "no NumPy"
        return f"it has {has}, and Triton's Python backend here needs NumPy 1: install 'numpy<2' in it"
    return ""
