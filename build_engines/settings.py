"""Checks the settings that --set names, which become `parameters` in config.pbtxt."""

from collections.abc import Iterable

from backends.onnxruntime.onnx_session import PARAMETERS as ONNXRUNTIME_SETTINGS
from backends.openvino.openvino_settings import READ as OPENVINO_SETTINGS
from backends.openvino.openvino_settings import REMOVED as REMOVED_FROM_OPENVINO
from backends.pytorch.naming import PARAMETERS as PYTORCH_SETTINGS
from backends.pytorch.naming import REMOVED as REMOVED_FROM_PYTORCH
from build_engines.errors import UsageError
from serving.clients import client_class, client_names
from serving.named_value import unknown
from serving.repository.cpu_engine import PARAMETER as CPU_ENGINE

BACKEND_SETTINGS = {*ONNXRUNTIME_SETTINGS, *OPENVINO_SETTINGS, *PYTORCH_SETTINGS, CPU_ENGINE}
REMOVED = REMOVED_FROM_OPENVINO | REMOVED_FROM_PYTORCH
SESSION = "session."  # the prefix of ONNX Runtime's own settings


def all_settings() -> set[str]:
    """Return the names of all settings and request parameters of this project's clients."""
    return set().union(*map(_settings_of, client_names()))


def _settings_of(client: str) -> set[str]:
    """Return the names of the client's settings and request parameters, which config.pbtxt may
    set."""
    known = client_class(client)
    return {value.name for value in (*known.settings, *known.parameters)}


def check_settings(client: str, names: Iterable[str]) -> None:
    """Raise UsageError for a setting in REMOVED, and say what to do instead. Raise it also for a
    name that neither the client nor a backend has, and suggest the most similar known one."""
    if client:
        own = _settings_of(client)
        owner = f"the client '{client}'"
    else:
        own = BACKEND_SETTINGS
        owner = "a backend (name the --client for its own)"
    for name in names:
        if name in REMOVED:
            raise UsageError(f"--set {name} is not supported: {REMOVED[name]}")
        if name not in own | BACKEND_SETTINGS and not name.startswith(SESSION):
            raise UsageError(f"--set {name}: {unknown(f'setting of {owner}', name, own)}")
