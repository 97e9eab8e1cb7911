"""Which engine `serve` takes for a model on this machine, and what Triton gets then (docs/engines.md)."""

from pathlib import Path
from typing import Any

from serving.host.tritonserver import backend_directory
from serving.repository.engines import AUTO, NAMES, ONNX_RUNTIME, Choice, Engines, choose, this_processor
from serving.repository.model_config import read_config
from serving.settings.table import Settings


def config_of(model: Path, setting: str = AUTO) -> tuple[Any, Choice | None]:
    """The model's configuration with the engine that `serve` takes when SERVE_CPU_ENGINE is `setting`; None where there
    is no choice."""
    settings = Settings.from_env({"SERVE_CPU_ENGINE": setting, "SERVE_DEVICE": "cpu"})
    return Engines(settings, backend_directory()).fitted(read_config(model, "cpu"))


def taken(model: Path, setting: str = AUTO) -> str:
    """That engine's name."""
    choice = config_of(model, setting)[1]
    return choice.engine if choice else ONNX_RUNTIME


def own_choice() -> Choice:
    """What `serve` takes by itself for the models that leave it open."""
    choice = choose(AUTO, AUTO, this_processor(backend_directory()))
    return choice or Choice(ONNX_RUNTIME, "there is no choice")


def has_bf16() -> bool:
    """Whether OpenVINO computes in BF16 here."""
    return bool(this_processor(backend_directory()).bf16)


def title(engine: str) -> str:
    """Its name for people."""
    return NAMES.get(engine, engine)
