"""Change an archive before Triton loads it: choose the engine, and complete its configurations.

To complete configurations Triton starts each Python-based model twice and waits a second for the first process to end,
whether anything is missing or not: a load takes 1.4 s instead of 0.15 s. So if all of Triton's backends are
Python-based, Triton is told to leave configurations as they are, and they are completed here. (Other backends complete
more than what is missing.)

`python -m serving.preparation.staging MODEL CONFIG BACKENDS` is the process that completes one: it does what Triton's
Python backend does with `auto_complete_config`, with the backend's own module triton_python_backend_utils. Classes that
only its stub has, such as Tensor and Logger, are empty.
"""

import importlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format

from serving.errors import LoadFailed
from serving.host.tritonserver import only_python_backends
from serving.repository.archives import Archive
from serving.repository.engines import Engines
from serving.repository.layout import FILES, config_file, replace_config, versions
from serving.repository.model_config import ENSEMBLE, HOOK, backend_of, is_complete, read_config, read_file, written
from serving.settings.table import Settings

log = logging.getLogger(__name__)
HERE = Path(__file__).resolve().parents[2]


class Staging:
    """Safe to share between threads."""

    def __init__(self, settings: Settings, backends: Path) -> None:
        self.settings, self.backends = settings, backends
        self._engines = Engines(settings, backends)
        self._completes = only_python_backends(backends)

    def fit(self, archive: Archive, staged: Path) -> None:
        """Change what is staged of the archive for Triton. Raise LoadFailed."""
        for part in archive.parts:
            self._arrange(staged / part.name)
            self.complete(staged / part.name)

    def _arrange(self, model: Path) -> None:
        """Write the configuration for this machine, with the engine that was chosen."""
        config, choice = self._engines.made(model)
        if config is not None:
            replace_config(model, written(config))
        if choice:
            log.log(logging.WARNING if choice.refused else logging.INFO, "%s: %s", model.name, choice)

    def complete(self, model: Path) -> None:
        """Complete the configuration of a staged model. Raise LoadFailed."""
        config = read_config(model, self.settings.device)
        if backend_of(config) == ENSEMBLE and not config.platform:  # Triton 24.10 does not load one without
            config.platform = ENSEMBLE
            replace_config(model, written(config))
        elif self._completes and not is_complete(model, config):
            replace_config(model, self._completed(model))

    def _completed(self, model: Path) -> str:
        file, module = config_file(model, self.settings.device), "serving.preparation.staging"
        command = [sys.executable, "-m", module, str(model), str(file), str(self.backends)]
        seconds, environ = self.settings.load_timeout, os.environ | {"PYTHONPATH": str(HERE)}
        failed = f"the configuration of '{model.name}' is not complete, and"
        try:
            done = subprocess.run(command, cwd=HERE, env=environ, capture_output=True, text=True, timeout=seconds)
        except subprocess.TimeoutExpired as err:
            raise LoadFailed(f"{failed} completing it took more than {seconds:g} s") from err
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["no reason was given"])[-1]
            raise LoadFailed(f"{failed} cannot be completed: {reason}")
        return done.stdout


def main(arguments: Sequence[str]) -> int:
    """Print the completed configuration. Raise ValueError if something is still missing."""
    model, file, backends = map(Path, arguments)
    with redirect_stdout(sys.stderr):  # what the model prints
        config = completed(read_file(file), model, backends)
    for tensor in (*config.input, *config.output):
        if not tensor.dims or not tensor.data_type:
            raise ValueError(f"'{tensor.name}' has no {'data_type' if tensor.dims else 'dims'} in {file.name}")
    sys.stdout.write(text_format.MessageToString(config, as_utf8=True))
    return 0


def completed(config: Any, model: Path, backends: Path) -> Any:
    """Return the ModelConfig with what the backend adds. Raise whatever its code raises."""
    found = versions(model)
    if not found:
        return config
    if not backend_of(config):
        config.backend = next((name for name, file in FILES.items() if (found[-1] / file).exists()), "")
    sys.path.insert(0, str(backends / "python"))
    utils: Any = importlib.import_module("triton_python_backend_utils")
    utils.__getattr__ = _absent
    hook = _hook(config, model, found[-1], backends)
    if hook is None:
        return config
    name, config.name = config.name, model.name
    given = json_format.MessageToJson(
        config, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )
    made = json_format.ParseDict(hook(utils.ModelConfig(given)).as_dict(), type(config)())
    made.name = name
    return made


def _hook(config: Any, model: Path, version: Path, backends: Path) -> Any:
    """Return `auto_complete_config` of the model's code, or of its backend's; None without one."""
    backend = backend_of(config)
    folder, module = (model, f"{version.name}.model") if backend == "python" else (backends / backend, "model")
    if not (folder / f"{module.replace('.', '/')}.py").is_file():
        return None
    sys.path.insert(0, str(folder))
    os.environ["COMPLETED_MODEL"] = str(version / config.default_model_filename)
    return getattr(importlib.import_module(module).TritonPythonModel, HOOK, None)


class _Absent(type):
    """The type of a class whose methods do nothing."""

    def __getattr__(cls, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _absent(name: str) -> Any:
    """Return a class for a name that triton_python_backend_utils does not have."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(name, (), {})


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Exception as err:
        sys.exit(f"{type(err).__name__}: {' '.join(str(err).split())}")
