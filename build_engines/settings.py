"""Checks the settings that --set names, which become `parameters` in config.pbtxt."""

from collections.abc import Iterable

from backends.onnxruntime.onnx_session import PARAMETERS as ONNXRUNTIME_SETTINGS
from backends.openvino.openvino_settings import PARAMETERS as OPENVINO_SETTINGS
from backends.openvino.openvino_settings import UNSUPPORTED as UNSUPPORTED_BY_OPENVINO
from backends.pytorch.naming import PARAMETERS as PYTORCH_SETTINGS
from backends.pytorch.naming import UNSUPPORTED as UNSUPPORTED_BY_PYTORCH
from build_engines.errors import UsageError
from serving.clients import client_class, client_names
from serving.named_value import unknown
from serving.repository.cpu_engine import CPU_ENGINE

BACKEND_SETTINGS = {*ONNXRUNTIME_SETTINGS, *OPENVINO_SETTINGS, *PYTORCH_SETTINGS, CPU_ENGINE}
UNSUPPORTED = UNSUPPORTED_BY_OPENVINO | UNSUPPORTED_BY_PYTORCH
SESSION = "session."  # the prefix of ONNX Runtime's own settings


def all_settings() -> set[str]:
    """Return the names of all settings and request parameters of this project's clients."""
    names: set[str] = set()
    for client in client_names():
        names |= _settings_of(client)
    return names


def _settings_of(client: str) -> set[str]:
    """Return the names of the client's settings and request parameters, which config.pbtxt may
    set."""
    known = client_class(client)
    return {value.name for value in (*known.settings, *known.parameters)}


def check_settings(client: str, names: Iterable[str]) -> None:
    """Raise UsageError for a setting in UNSUPPORTED, and say what to do instead. Raise it also for
    a name that neither the client nor a backend has, and suggest the most similar known one."""
    if client:
        own = _settings_of(client)
        owner = f"the client '{client}'"
    else:
        own = BACKEND_SETTINGS
        owner = "a backend (name the --client for its own)"
    for name in names:
        if name in UNSUPPORTED:
            raise UsageError(f"--set {name} is not supported: {UNSUPPORTED[name]}")
        if name not in own | BACKEND_SETTINGS and not name.startswith(SESSION):
            raise UsageError(f"--set {name}: {unknown(f'setting of {owner}', name, own)}")
