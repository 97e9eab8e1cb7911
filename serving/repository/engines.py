"""The engine that runs an ONNX model on the processor: ONNX Runtime, or OpenVINO where that computes in BF16.

    cpu_engine in config.pbtxt: onnxruntime, openvino ------------------> that one
    SERVE_CPU_ENGINE: onnxruntime, openvino ----------------------------> that one
    cpu_engine: auto, as build_engines writes --------------------------> OpenVINO with AMX or AVX512-BF16
    none of these ------------------------------------------------------> ONNX Runtime, as config.pbtxt says

Where OpenVINO cannot run, ONNX Runtime serves: a repository works on every machine. BF16 has 8 significant bits, so no
model gets it that does not say auto, unless somebody asks for it.
"""

import importlib.util
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from serving.errors import InvalidRequest
from serving.host.machine import processor_features
from serving.repository.layout import CONFIG, config_file
from serving.repository.model_config import (
    ENGINE_REASON,
    ModelConfig,
    Unreadable,
    backend_of,
    is_whole,
    read_file,
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
    """`features` are instruction sets; `obstacle` says why OpenVINO cannot run here, "" when it can; `own` says whether
    its backend is this project's."""

    features: frozenset[str] = frozenset()
    obstacle: str = ""
    own: bool = True

    @property
    def bf16(self) -> str:
        """With what it computes in BF16; "" when it does not."""
        return next((name for word, name in BF16.items() if word in self.features), "")


@dataclass(frozen=True)
class Choice:
    """`reason` in words that follow "because"; `refused` when another engine was asked for."""

    engine: str
    reason: str
    refused: bool = False

    def __str__(self) -> str:
        return f"{NAMES[self.engine]}, because {self.reason}"


def choose(asked: str, setting: str, here: Processor) -> Choice | None:
    """`asked` is what config.pbtxt says; None where nobody leaves it open."""
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


@dataclass(frozen=True)
class Engines:
    """Chooses for the models of a server, whose Triton has its backends in the folder `backends`."""

    settings: Settings
    backends: Path

    @cached_property
    def here(self) -> Processor:
        return this_processor(self.backends)

    def made(self, model: Path) -> tuple[Any, Choice | None]:
        """The ModelConfig that Triton gets in place of the one that lies in the model's folder, None where it gets that
        one; and why an engine was chosen, None where there was no choice. Raises Unreadable."""
        file = config_file(model, self.settings.device)
        config = read_merged(model, file)
        try:
            made, choice = self.fitted(config)
        except InvalidRequest as err:
            raise Unreadable(file, str(err)) from err
        as_it_lies = file == model / CONFIG or is_whole(read_file(file))
        return (None if as_it_lies and not choice else made), choice

    def fitted(self, config: Any) -> tuple[Any, Choice | None]:
        """A configuration with the engine that is chosen for it; the same and None where there is nothing to choose.
        Raises InvalidRequest."""
        if self.settings.device != "cpu" or backend_of(config) != ONNX_RUNTIME:
            return config, None
        choice = choose(asked_of(config), self.settings.cpu_engine, self.here)
        return (with_engine(config, choice), choice) if choice else (config, None)


def asked_of(config: Any) -> str:
    """What config.pbtxt says, "" when nothing; raises InvalidRequest."""
    asked = str(config.parameters[PARAMETER].string_value) if PARAMETER in config.parameters else ""
    if asked not in ("", AUTO, *NAMES):
        raise InvalidRequest(f"parameter '{PARAMETER}' is '{asked}'; it must be {AUTO}, {' or '.join(NAMES)}")
    return asked


def with_engine(config: Any, choice: Choice) -> Any:
    """A copy for that engine, and the reason for GET /models."""
    made = ModelConfig()
    made.CopyFrom(config)
    made.parameters[ENGINE_REASON].string_value = choice.reason
    if choice.engine == OPENVINO:
        made.platform, made.backend = "", OPENVINO
        made.default_model_filename = made.default_model_filename or "model.onnx"
        for theirs, own in THREADS.items():
            if theirs in made.parameters and own not in made.parameters:
                made.parameters[own].string_value = made.parameters[theirs].string_value
    return made


def this_processor(backends: Path) -> Processor:
    """This machine's, asked of Linux and of Python's packages; nothing is imported."""
    folder = backends / OPENVINO
    own = (folder / "model.py").is_file()
    obstacle = "" if folder.is_dir() else f"there is no backend '{OPENVINO}'"
    if own and importlib.util.find_spec(OPENVINO) is None:
        obstacle = f"OpenVINO is not installed for this {os.uname().machine}"
    return Processor(processor_features(), obstacle, own)


def told(choices: Mapping[str, Choice], refused: bool) -> list[str]:
    """A line for each choice with the models that it was made for: those that were `refused`, or the others."""
    lines: dict[str, list[str]] = {}
    for name, choice in sorted(choices.items()):
        if choice.refused == refused:
            lines.setdefault(str(choice), []).append(name)
    return [f"{', '.join(names)}: {line}" for line, names in lines.items()]
