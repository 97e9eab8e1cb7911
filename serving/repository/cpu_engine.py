"""Chooses the engine that runs an ONNX model on the CPU: ONNX Runtime or OpenVINO.

The first of these that applies decides:

    config.pbtxt has cpu_engine onnxruntime or openvino -> that engine
    SERVE_CPU_ENGINE is onnxruntime or openvino ---------> that engine
    config.pbtxt has cpu_engine auto --------------------> OpenVINO if the processor has AMX or
                                                           AVX512-BF16 and the backend is this
                                                           project's, else ONNX Runtime
    otherwise -------------------------------------------> ONNX Runtime, as config.pbtxt says

If OpenVINO cannot run here or rejects the model, ONNX Runtime is used instead, so that a repository
works on every machine. BF16 has only 8 significant bits. So this project's backend computes an ONNX
model in BF16 only if its config.pbtxt has a cpu_engine or asks for BF16.
"""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.errors import ConfigError
from serving.host.machine import processor_features
from serving.repository.layout import config_file
from serving.repository.model_config import (
    RAGGED,
    Unreadable,
    allow_ragged_batches,
    backend_of,
    mistake_of_client,
    parameter_of,
    read_merged,
)
from serving.repository.packages import mistake_of_packages
from serving.settings.settings import Settings

ENGINE_REASON = "cpu_engine_reason"  # a parameter that `serve` adds to config.pbtxt
AUTO = "auto"
ONNX_RUNTIME = "onnxruntime"
OPENVINO = "openvino"
CPU_ENGINE = "cpu_engine"  # the parameter in config.pbtxt that requests an engine
NAMES = {ONNX_RUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"}
# maps Linux's names of the instruction sets for BF16, the fastest first, to the names in messages
BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"}
# OpenVINO's parameters for the precision in which it computes
PRECISION = "INFERENCE_PRECISION_HINT"
BF16_HINT = "HINT_BF16"
# the parameters of ONNX Runtime and of OpenVINO for the number of threads
ONNX_THREADS = "intra_op_thread_count"
OPENVINO_THREADS = "INFERENCE_NUM_THREADS"


@dataclass(frozen=True)
class Processor:
    """This machine's processor. `features` are its instruction sets; `obstacle` says why OpenVINO
    cannot run here, or is "" if it can; `has_own_backend` says whether Triton's backends are this
    project's."""

    features: frozenset[str] = frozenset()
    obstacle: str = ""
    has_own_backend: bool = True


@dataclass(frozen=True)
class Choice:
    """The engine that was chosen for a model, and why. `reason` follows the word "because" in
    messages. `refused` is true if OpenVINO was requested or chosen, but cannot run the model
    here."""

    engine: str
    reason: str
    refused: bool = False

    def __str__(self) -> str:
        return f"{NAMES[self.engine]}, because {self.reason}"


def choose(requested: str, setting: str, processor: Processor) -> Choice | None:
    """Choose an engine from config.pbtxt's cpu_engine (`requested`) and SERVE_CPU_ENGINE
    (`setting`). Return None if neither of them asks for a choice."""
    for engine, reason in (
        (requested, f"config.pbtxt says {CPU_ENGINE}"),
        (setting, "SERVE_CPU_ENGINE says so"),
    ):
        if engine == OPENVINO and processor.obstacle:
            return Choice(ONNX_RUNTIME, f"{processor.obstacle}, although {reason}", refused=True)
        if engine in NAMES:
            return Choice(engine, reason)
    if not requested:
        return None
    # config.pbtxt says auto
    bf16 = [name for feature, name in BF16.items() if feature in processor.features]
    if not bf16:
        return Choice(ONNX_RUNTIME, f"this processor has neither {' nor '.join(BF16.values())}")
    if processor.obstacle:
        return Choice(ONNX_RUNTIME, processor.obstacle)
    if not processor.has_own_backend:
        reason = "NVIDIA's backend of OpenVINO is used only if it is asked for"
        return Choice(ONNX_RUNTIME, reason)
    return Choice(OPENVINO, f"this processor computes in BF16 ({bf16[0]})")


def served_config(
    model: Path, settings: Settings, processor: Processor
) -> tuple[Any, Choice | None]:
    """Return the ModelConfig with which the model is served on this machine, and the Choice of its
    engine (None if there was no choice). Raise Unreadable if the configuration cannot be used."""
    file = config_file(model, settings.device)
    config = read_merged(model, file)
    mistake = mistake_of_packages(model, config) or mistake_of_client(model, config, settings)
    if mistake:
        raise Unreadable(file, mistake)
    if processor.has_own_backend and config.max_batch_size and RAGGED in config.parameters:
        allow_ragged_batches(config)
    if settings.device != "cpu" or backend_of(config) != ONNX_RUNTIME:
        return config, None
    try:
        requested = requested_engine(config)
    except ConfigError as err:
        raise Unreadable(file, str(err)) from err
    choice = choose(requested, settings.cpu_engine, processor)
    if not choice:
        return config, None
    config.parameters[ENGINE_REASON].string_value = choice.reason
    if choice.engine == OPENVINO:
        _use_openvino(config)
        # By default, OpenVINO computes in BF16 if the processor supports BF16. Make it compute in
        # FP32 if the model's author has set neither a cpu_engine nor a precision.
        has_precision = PRECISION in config.parameters or BF16_HINT in config.parameters
        if processor.has_own_backend and not requested and not has_precision:
            config.parameters[PRECISION].string_value = "f32"
    return config, choice


def _use_openvino(config: Any) -> None:
    """Switch a ModelConfig from ONNX Runtime to OpenVINO, with the same number of threads."""
    config.platform = ""
    config.backend = OPENVINO
    config.default_model_filename = config.default_model_filename or "model.onnx"
    threads = parameter_of(config, ONNX_THREADS)
    if threads and OPENVINO_THREADS not in config.parameters:
        config.parameters[OPENVINO_THREADS].string_value = threads


def leave_openvino(config: Any, reason: str) -> Choice | None:
    """Switch a ModelConfig to ONNX Runtime, because OpenVINO rejects the model for `reason`. Return
    the new choice, or None if `served_config` had not chosen OpenVINO."""
    if config.backend != OPENVINO or ENGINE_REASON not in config.parameters:
        return None
    config.platform = "onnxruntime_onnx"
    config.backend = ""
    choice = Choice(ONNX_RUNTIME, f"OpenVINO refuses it ({reason})", refused=True)
    config.parameters[ENGINE_REASON].string_value = choice.reason
    return choice


def requested_engine(config: Any) -> str:
    """Return the engine that config.pbtxt requests, or "" if it requests none. Raise ConfigError if
    there is no such engine."""
    engine = parameter_of(config, CPU_ENGINE)
    if engine not in ("", AUTO, *NAMES):
        raise ConfigError(
            f"parameter '{CPU_ENGINE}'", f"is '{engine}'; it must be {AUTO}, {' or '.join(NAMES)}"
        )
    return engine


def this_processor(backends: Path) -> Processor:
    """Describe this machine's processor. `backends` is the folder of Triton's backends."""
    folder = backends / OPENVINO
    has_own_backend = (folder / "model.py").is_file()
    obstacle = "" if folder.is_dir() else f"there is no backend '{OPENVINO}'"
    if has_own_backend and importlib.util.find_spec(OPENVINO) is None:
        obstacle = f"OpenVINO is not installed for this {os.uname().machine}"
    return Processor(processor_features(), obstacle, has_own_backend)


def choice_lines(choices: Mapping[str, Choice], refused: bool) -> list[str]:
    """Return a log line for each different choice, beginning with the names of the models for which
    it was made. Include only choices whose `refused` has this value."""
    lines: dict[str, list[str]] = {}
    for name, choice in sorted(choices.items()):
        if choice.refused == refused:
            lines.setdefault(str(choice), []).append(name)
    return [f"{', '.join(names)}: {line}" for line, names in lines.items()]
