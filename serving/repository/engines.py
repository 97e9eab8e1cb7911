"""Choose the engine that runs an ONNX model on the processor: ONNX Runtime, or OpenVINO if that computes in BF16.

    cpu_engine in config.pbtxt: onnxruntime, openvino ------------------> that one
    SERVE_CPU_ENGINE: onnxruntime, openvino ----------------------------> that one
    cpu_engine: auto, as build_engines writes --------------------------> OpenVINO with AMX or AVX512-BF16
    none of these ------------------------------------------------------> ONNX Runtime, as config.pbtxt says

If OpenVINO cannot run, ONNX Runtime serves, so a repository works on every machine. BF16 has 8 significant bits, so a
model gets it only if it says auto or somebody asks for it.
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
    ENGINE_REASON,
    Unreadable,
    backend_of,
    mistake_of_client,
    mistake_of_packages,
    read_merged,
)
from serving.settings.table import Settings

AUTO, ONNX_RUNTIME, OPENVINO = "auto", "onnxruntime", "openvino"
PARAMETER = "cpu_engine"  # of config.pbtxt
NAMES = {ONNX_RUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"}
BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"}  # Linux's word -> its makers', the faster first
THREADS = {"intra_op_thread_count": "INFERENCE_NUM_THREADS"}  # ONNX Runtime's parameter -> OpenVINO's


@dataclass(frozen=True)
class Processor:
    """This machine's processor: `features` are its instruction sets; `obstacle` says why OpenVINO cannot run here ("":
    it can); `own` whether Triton's backend for OpenVINO is this project's."""

    features: frozenset[str] = frozenset()
    obstacle: str = ""
    own: bool = True

    @property
    def bf16(self) -> str:
        """Return the name of the instruction set that computes in BF16; "" if there is none."""
        return next((name for word, name in BF16.items() if word in self.features), "")


@dataclass(frozen=True)
class Choice:
    """A chosen engine. `reason` follows "because" in a message; `refused`: another engine was asked for."""

    engine: str
    reason: str
    refused: bool = False

    def __str__(self) -> str:
        return f"{NAMES[self.engine]}, because {self.reason}"


def choose(asked: str, setting: str, here: Processor) -> Choice | None:
    """Choose by config.pbtxt (`asked`) and by SERVE_CPU_ENGINE. Return None if neither leaves the choice open."""
    for engine, who in ((asked, f"config.pbtxt says {PARAMETER}"), (setting, "SERVE_CPU_ENGINE says so")):
        if engine in NAMES:
            if engine == OPENVINO and here.obstacle:
                return Choice(ONNX_RUNTIME, f"{here.obstacle}, although {who}", refused=True)
            return Choice(engine, who)
    if not asked:
        return None
    if not here.bf16:
        return Choice(ONNX_RUNTIME, f"this processor has neither {' nor '.join(BF16.values())}")
    if here.obstacle or not here.own:
        return Choice(ONNX_RUNTIME, here.obstacle or "NVIDIA's backend of OpenVINO is taken only where it is asked for")
    return Choice(OPENVINO, f"this processor computes in BF16 ({here.bf16})")


def fitted(model: Path, settings: Settings, here: Processor, config: Any = None) -> tuple[Any, Choice | None]:
    """Return the ModelConfig that is served for the model on this machine, and why an engine was chosen, None if
    there was no choice. `config` is what its files say and is changed; None: they are read. Raise Unreadable."""
    file = config_file(model, settings.device)
    config = read_merged(model, file) if config is None else config
    if mistake := mistake_of_packages(model, config) or mistake_of_client(model, config, settings):
        raise Unreadable(file, mistake)
    if settings.device != "cpu" or backend_of(config) != ONNX_RUNTIME:
        return config, None
    try:
        choice = choose(asked_of(config), settings.cpu_engine, here)
    except ConfigError as err:
        raise Unreadable(file, str(err)) from err
    if choice:
        config.parameters[ENGINE_REASON].string_value = choice.reason
    if choice and choice.engine == OPENVINO:
        config.platform, config.backend = "", OPENVINO
        config.default_model_filename = config.default_model_filename or "model.onnx"
        for theirs, own in THREADS.items():
            if theirs in config.parameters and own not in config.parameters:
                config.parameters[own].string_value = config.parameters[theirs].string_value
    return config, choice


def asked_of(config: Any) -> str:
    """Return what config.pbtxt says of the engine; "" if nothing. Raise ConfigError."""
    asked = str(config.parameters[PARAMETER].string_value) if PARAMETER in config.parameters else ""
    if asked not in ("", AUTO, *NAMES):
        raise ConfigError(f"parameter '{PARAMETER}'", f"is '{asked}'; it must be {AUTO}, {' or '.join(NAMES)}")
    return asked


def this_processor(backends: Path) -> Processor:
    """Ask Linux and Python's packages for this machine's; import nothing."""
    folder = backends / OPENVINO
    own = (folder / "model.py").is_file()
    obstacle = "" if folder.is_dir() else f"there is no backend '{OPENVINO}'"
    if own and importlib.util.find_spec(OPENVINO) is None:
        obstacle = f"OpenVINO is not installed for this {os.uname().machine}"
    return Processor(processor_features(), obstacle, own)


def choice_lines(choices: Mapping[str, Choice], refused: bool) -> list[str]:
    """Return a log line for each choice with its models: the `refused` choices, or the others."""
    lines: dict[str, list[str]] = {}
    for name, choice in sorted(choices.items()):
        if choice.refused == refused:
            lines.setdefault(str(choice), []).append(name)
    return [f"{', '.join(names)}: {line}" for line, names in lines.items()]
