"""Checks the settings that --set names, which become `parameters` in config.pbtxt."""

from collections.abc import Iterable

from backends.onnxruntime.onnx_session import PARAMETERS as OF_ONNXRUNTIME
from backends.openvino.openvino_settings import PARAMETERS as OF_OPENVINO
from backends.openvino.openvino_settings import UNSUPPORTED as REMOVED_FROM_OPENVINO
from backends.pytorch.naming import PARAMETERS as OF_PYTORCH
from backends.pytorch.naming import UNSUPPORTED as REMOVED_FROM_PYTORCH
from build_engines.errors import UsageError
from serving.clients import client_class, client_names
from serving.named_value import unknown
from serving.repository.cpu_engine import PARAMETER

OF_BACKENDS = {*OF_ONNXRUNTIME, *OF_OPENVINO, *OF_PYTORCH, PARAMETER}
REMOVED = REMOVED_FROM_OPENVINO | REMOVED_FROM_PYTORCH
SESSION = "session."  # the prefix of ONNX Runtime's own settings


def all_settings() -> set[str]:
    """Return the names of all settings and request parameters of this project's clients."""
    classes = map(client_class, client_names())
    return {each.name for known in classes for each in (*known.settings, *known.parameters)}


def check_settings(client: str, names: Iterable[str]) -> None:
    """Raise UsageError for a setting in REMOVED, and say what to do instead. Raise it also for a
    name that neither the client nor a backend has, and suggest the most similar known one."""
    own: set[str] = set()
    whose = "a backend (name the --client for its own)"
    if client:
        known = client_class(client)
        own = {each.name for each in (*known.settings, *known.parameters)}
        whose = f"the client '{client}'"
    for name in names:
        if name in REMOVED:
            raise UsageError(f"--set {name} is not supported: {REMOVED[name]}")
        if name not in own | OF_BACKENDS and not name.startswith(SESSION):
            raise UsageError(
                f"--set {name}: {unknown(f'setting of {whose}', name, own or OF_BACKENDS)}"
            )
