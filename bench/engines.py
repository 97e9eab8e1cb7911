"""Which engine `serve` takes for a model on this machine, and what Triton gets then (docs/engines.md)."""

from pathlib import Path
from typing import Any

from serving.host.machine import processor_features
from serving.host.tritonserver import backend_directory
from serving.repository.engines import AUTO, NAMES, ONNX_RUNTIME, Choice, Engines, choose, this_processor
from serving.repository.model_config import read_config
from serving.settings.table import Settings

SETS = {  # instruction sets that engines use, by Linux's words for them: the first that is there names the processor
    "AMX": ("amx_bf16", "amx_int8"),
    "AVX512-BF16": ("avx512_bf16",),
    "AVX512-VNNI": ("avx512_vnni",),
    "AVX512": ("avx512f",),
    "AVX2-VNNI": ("avx_vnni",),
    "AVX2": ("avx2",),
    "BF16": ("bf16",),  # of arm64
    "SVE": ("sve",),
    "NEON": ("asimd",),
}


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


def instruction_sets() -> list[str]:
    """Those of SETS that this processor has, the best first."""
    found = processor_features()
    return [name for name, words in SETS.items() if found.intersection(words)]
