"""What the settings say on tritonserver's command line, beyond what `serve` itself needs there."""

from collections.abc import Iterator
from pathlib import Path

from serving.host.machine import gpu_count
from serving.host.tritonserver import python_backends
from serving.settings.forms import bracketed
from serving.settings.table import SECRET_KEY, Settings

MANAGING = "model-repository,shared-memory,trace,logging"  # groups of gRPC's calls, as Triton names them


def flags(settings: Settings) -> dict[str, object]:
    """The options that are given once: name -> value."""
    return _guard(settings) | {
        "grpc-address": bracketed(settings.triton_grpc_host),
        "metrics-address": _named(settings.triton_metrics_host),
        "http-thread-count": settings.triton_threads,
        "buffer-manager-thread-count": settings.buffer_manager_threads,
        "log-verbose": settings.log_verbose,
        "log-info": settings.log_info,
        "log-warning": settings.log_warning,
        "log-error": _word(settings.log_error),
    }


def _guard(settings: Settings) -> dict[str, object]:
    """A gRPC that others can reach infers; a model that one could load there would be code that one could run."""
    if not (settings.allow_grpc and settings.triton_secret):
        return {}
    return {"grpc-restricted-protocol": f"{MANAGING}:{SECRET_KEY}={settings.triton_secret}"}


def repeated(settings: Settings, backends: Path, gpus: int | None = None) -> Iterator[str]:
    """The options that are given for each model repository, model, backend and GPU, then the user's own.

    In multi-model mode repositories and models come later, through the SageMaker endpoint. `gpus` is their
    number; None counts this machine's.
    """
    if not settings.multi_model:
        yield from (f"--model-repository={folder}" for folder in settings.model_repositories)
    if settings.load_models and not settings.multi_model:
        yield "--model-control-mode=explicit"
        yield from (f"--load-model={name}" for name in settings.load_models)
    yield from backend_options(settings, backends)
    if settings.device == "gpu" and settings.model_load_gpu_limit:
        for device in range(gpu_count() if gpus is None else gpus):
            yield f"--model-load-gpu-limit={device}:{settings.model_load_gpu_limit:g}"
    yield from settings.additional_arguments


def backend_options(settings: Settings, backends: Path) -> Iterator[str]:
    for name in python_backends(backends):
        yield f"--backend-config={name},shm-default-byte-size={settings.shm_default_bytes}"
        yield f"--backend-config={name},shm-growth-byte-size={settings.shm_growth_bytes}"
    if (backends / "tensorflow").is_dir() and "tensorflow" not in python_backends(backends):
        yield f"--backend-config=tensorflow,version={settings.tensorflow_version}"


def _word(value: bool) -> str:
    return str(value).lower()


def _named(host: str) -> str:
    """As libevent wants an address, through which Triton serves HTTP."""
    return f"ipv6:{host}" if ":" in host else host
