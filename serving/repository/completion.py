"""Completes the config.pbtxt of a model that uses Triton's Python backend or a backend based on it.

Triton can complete configurations itself, but then it starts each Python-based model twice, and a
load takes 1.4 s instead of 0.15 s. Triton's completion can only be turned off for all models at
once. If all backends are Python-based, it is turned off, and a separate process completes each
incomplete configuration: `python -m serving.repository.completion MODEL CONFIG BACKENDS`.

That process calls the function `complete` of this project's backends, or else, as the Python
backend does, the function `auto_complete_config` of the backend's or the model's code. Classes that
exist only in Triton's stub, such as Tensor, are replaced by empty ones.
"""

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf import json_format

from serving.errors import ConfigError
from serving.host.processes import dying_with_us, last_line
from serving.repository.layout import CONFIG, FILES, versions
from serving.repository.model_config import backend_of, read_file, text_of

ROOT = Path(__file__).resolve().parents[2]
HOOK = "auto_complete_config"  # the function with which a Python model completes its configuration


def is_complete(model: Path, config: Any) -> bool:
    """Return whether the configuration is complete: it names a backend or platform, and all tensors
    with their types and dimensions, and the model's code has no auto_complete_config."""
    if not ((config.backend or config.platform) and config.input and config.output):
        return False
    for tensor in (*config.input, *config.output):
        if not (tensor.name and tensor.data_type and tensor.dims):
            return False
    codes = (file.read_bytes() for file in model.glob("*/model.py"))
    return not any(HOOK.encode() in code for code in codes)


def complete(model: Path, backends: Path, source: str, seconds: float) -> None:
    """Complete the configuration in the folder `model`. A separate process does this, because it
    runs the model's code. If it fails or takes more than `seconds`, raise ConfigError, in which
    `source` names the configuration."""
    module = "serving.repository.completion"
    arguments = map(str, (model, model / CONFIG, backends))
    command = [*dying_with_us("KILL"), sys.executable, "-m", module, *arguments]
    environ = os.environ | {"PYTHONPATH": str(ROOT)}
    try:
        done = subprocess.run(
            command, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as err:
        problem = f"is not complete, and completing it took more than {seconds:g} s"
        raise ConfigError(source, problem) from err
    if done.returncode:
        problem = f"is not complete, and cannot be completed: {last_line(done.stderr)}"
        raise ConfigError(source, problem)


def main(model: Path, file: Path, backends: Path) -> None:
    """Complete the configuration in `file`, and write it back. Use the latest version of `model`.
    Raise ValueError if the type or the dimensions of a tensor are still missing, and whatever the
    backend's or the model's code raises."""
    config = read_file(file)
    if numbered := versions(model):
        config = _completed(config, numbered[-1], backends)
    for tensor in (*config.input, *config.output):
        if not tensor.dims or not tensor.data_type:
            missing = "data_type" if tensor.dims else "dims"
            raise ValueError(f"'{tensor.name}' has no {missing} in {file.name}")
    file.write_text(text_of(config), encoding="utf-8")


def _completed(config: Any, version: Path, backends: Path) -> Any:
    """Return the ModelConfig after the code of the backend or of the model has completed it. If
    the backend is missing, first derive it from the file in `version`. If there is no such code,
    change nothing else."""
    backend = backend_of(config)
    if not backend:
        names = [name for name, file in FILES.items() if (version / file).exists()]
        backend = names[0] if names else ""
        config.backend = backend
    if backend == "python":
        folder = version.parent
        module = f"{version.name}.model"
    else:
        folder = backends / backend
        module = "model"
    if not (folder / f"{module.replace('.', '/')}.py").is_file():
        return config
    sys.path[:0] = [str(backends / "python"), str(folder), str(version)]
    utils: Any = importlib.import_module("triton_python_backend_utils")
    utils.__getattr__ = _absent
    code = importlib.import_module(module)
    name = config.name
    config.name = version.parent.name  # for the code; a staged config.pbtxt has no name
    fields = json_format.MessageToDict(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    if backend != "python" and hasattr(code, "complete"):
        fields = code.complete(fields, version)
    elif hook := getattr(code.TritonPythonModel, HOOK, None):
        fields = hook(utils.ModelConfig(json.dumps(fields))).as_dict()
    completed = json_format.ParseDict(fields, type(config)())
    completed.name = name
    return completed


class _Absent(type):
    """The metaclass of empty classes. Every attribute of them is a function that does nothing."""

    def __getattr__(cls, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _absent(name: str) -> Any:
    """Return an empty class for a name that triton_python_backend_utils does not define. Raise
    AttributeError for a name that begins with two underscores."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(name, (), {})


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:]))
    except Exception as err:
        reason = " ".join(str(err).split())
        sys.exit(f"{type(err).__name__}: {reason}")
