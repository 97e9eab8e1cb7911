"""python -m serving.preparation.complete_config MODEL CONFIG BACKENDS: completes a config.pbtxt as its backend does.

What Triton's Python backend does with `auto_complete_config`, in a process without Triton: with its own module
triton_python_backend_utils, and in place of the classes that only its stub has, such as Tensor and Logger, empty ones.
"""

import importlib
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from google.protobuf import json_format, text_format

from serving.repository.layout import FILES, versions
from serving.repository.model_config import HOOK, backend_of, read_file


def main(arguments: Sequence[str]) -> int:
    """Ends with 1 and the reason as the last line of stderr."""
    model, file, backends = map(Path, arguments)
    with redirect_stdout(sys.stderr):  # what the model prints
        made = completed(read_file(file), model, backends)
    for tensor in (*made.input, *made.output):
        if not tensor.dims or not tensor.data_type:
            raise ValueError(f"'{tensor.name}' has no {'data_type' if tensor.dims else 'dims'} in {file.name}")
    sys.stdout.write(text_format.MessageToString(made, as_utf8=True))
    return 0


def completed(config: Any, model: Path, backends: Path) -> Any:
    """The ModelConfig with what the backend adds; whatever error its code raises."""
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
    """The `auto_complete_config` of the model's code, or of its backend's; None without one."""
    backend = backend_of(config)
    own = backend == "python"
    place, module = (model, f"{version.name}.model") if own else (backends / backend, "model")
    if not (place / f"{module.replace('.', '/')}.py").is_file():
        return None
    sys.path.insert(0, str(place))
    os.environ["COMPLETED_MODEL"] = str(version / config.default_model_filename)
    return getattr(importlib.import_module(module).TritonPythonModel, HOOK, None)


class _Absent(type):
    """The type of a class whose methods do nothing."""

    def __getattr__(cls, name: str) -> Callable[..., None]:
        return lambda *_, **__: None


def _absent(name: str) -> Any:
    """What the module gives for a name that it does not have."""
    if name.startswith("__"):
        raise AttributeError(name)
    return _Absent(name, (), {})


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except Exception as err:
        sys.exit(f"{type(err).__name__}: {' '.join(str(err).split())}")
