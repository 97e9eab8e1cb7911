"""What the settings say on tritonserver's command line, beyond what `serve` itself needs there."""

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from serving.host.machine import gpu_count
from serving.host.tritonserver import python_backends
from serving.settings.handed_on import HANDED_ON, HandedOn
from serving.settings.table import GRPC_PORT, Settings, TritonSockets


def addresses(sockets: TritonSockets) -> dict[str, object]:
    """The options that say where tritonserver listens: name -> value."""
    return {
        "http-address": f"unix:{sockets.http}",
        "grpc-address": f"unix:{sockets.grpc}".removesuffix(f":{GRPC_PORT}"),
        "grpc-port": GRPC_PORT,
        "metrics-address": f"unix:{sockets.metrics}",
    }


def models(settings: Settings) -> Iterator[str]:
    """Where and which; in multi-model mode the SageMaker endpoint loads them later."""
    if settings.multi_model:
        return
    if settings.reloads:  # those that lie there whenever tritonserver starts
        from serving.repository.live import LiveModels

        yield from (f"--model-repository={LiveModels(settings.live_folder).repository}",)
        yield from ("--model-control-mode=explicit", "--load-model=*")
        return
    yield from (f"--model-repository={folder}" for folder in settings.model_repositories)
    if settings.load_models:
        yield "--model-control-mode=explicit"
        yield from (f"--load-model={name}" for name in settings.load_models)


def handed_on(settings: Settings, environ: Mapping[str, str], backends: Path, gpus: int | None = None) -> Iterator[str]:
    """The options that variables of NVIDIA's image stand for. `gpus` is their number; None counts this machine's."""
    logs = {"log_info": settings.logs("info"), "log_warning": settings.logs("warning")}
    for row in HANDED_ON:
        value = row.read(environ)
        text = row.format(logs[row.name] if value == "auto" else value)
        for place in _places(row, settings, backends, gpu_count() if gpus is None else gpus):
            if row.each != "gpu" or value:
                yield f"{row.option.format(place)}{text}"


def _places(row: HandedOn, settings: Settings, backends: Path, gpus: int) -> Iterable[object]:
    """What the option is given for."""
    own_tensorflow = (backends / "tensorflow").is_dir() and "tensorflow" not in python_backends(backends)
    return {
        "server": [""],
        "multi-model server": [""] if settings.multi_model else [],
        "python backend": python_backends(backends),
        "tensorflow backend": ["tensorflow"] if own_tensorflow else [],
        "gpu": range(gpus) if settings.device == "gpu" else [],
    }[row.each]
