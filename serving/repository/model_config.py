"""Reads config.pbtxt as Triton's ModelConfig, answers questions about it, and chooses the engine
that runs an ONNX model on the CPU: ONNX Runtime, or OpenVINO if it can compute in BF16. Process 1
cannot import this module, because it needs protobuf.

    cpu_engine in config.pbtxt: onnxruntime, openvino --> that one
    SERVE_CPU_ENGINE: onnxruntime, openvino ------------> that one
    cpu_engine: auto, as build_engines writes ----------> OpenVINO with AMX or AVX512-BF16
    none of these --------------------------------------> ONNX Runtime, as config.pbtxt says

If OpenVINO cannot run or rejects the model, ONNX Runtime is used, so a repository works on every
machine. BF16 has only 8 significant bits, so a model is computed in BF16 only if its config.pbtxt
has a cpu_engine or asks for BF16.
"""

import importlib.util
import os
import re
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from itertools import chain
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from serving.errors import ConfigError
from serving.host.machine import processor_features
from serving.host.tritonserver import PYTHON, is_nvidia_image
from serving.repository.layout import CONFIG, PLATFORMS, config_file, own_client
from serving.repository.paths import MOST_ENTRIES, real_path
from serving.settings.table import Settings

MESSAGES = "tritonclient.grpc.model_config_pb2"
ENSEMBLE = "ensemble"  # a result of backend_of
ENGINE_REASON = "cpu_engine_reason"  # a parameter that `serve` adds to config.pbtxt
BACKEND = {"platform", "backend", "default_model_filename"}  # fields that determine the backend
SEQUENCE_IDLE_SECONDS = 1.0  # Triton's default (sequence_batch_scheduler.cc)
PLAN_REMEDIES = (
    "a TensorRT plan runs only with the GPU model and the TensorRT version that it was "
    "built with: build it here (python -m build_engines build NAME --for tensorrt), or have "
    "ONNX Runtime's TensorRT provider serve the ONNX file (--for gpu); docs/build_engines.md"
)
LARGEST_CONFIG = 2**20  # bytes of config.pbtxt: 1.5 MB take 5 s to parse; ours have about 2 kB
PACKAGES = "EXECUTION_ENV_PATH"
MODEL = "$$TRITON_MODEL_DIRECTORY"  # Triton's placeholder for the model's folder
# maximum size of unpacked packages in bytes: a conda environment with torch and CUDA has about 8 GB
MOST_UNPACKED = 16 * 2**30
# if the model's folder contains a file with this name, it is started instead of the backend's stub
STUB = "triton_python_backend_stub"
_PYTHON = re.compile(r"lib/python(\d+\.\d+)(/site-packages/numpy-(\d+)[^/]*\.(dist|egg)-info)?")
HOOK = "auto_complete_config"  # the function with which a Python model completes its configuration
AUTO = "auto"
ONNX_RUNTIME = "onnxruntime"
OPENVINO = "openvino"
PARAMETER = "cpu_engine"  # a parameter in config.pbtxt
# A parameter that build_engines writes for a text model whose rows do not depend on the padding:
# the tokens of the longest text. This project's backends then merge texts of any length; NVIDIA's
# cannot.
RAGGED = "ragged_batches"
IDS = "input_ids"
# the other inputs of such a model, and the values that the backend fills in if a request has none
FILLED = {"attention_mask": 1, "token_type_ids": 0}
NAMES = {ONNX_RUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"}
# Linux's names -> the manufacturers' names, fastest first
BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"}
# OpenVINO's parameters
PRECISION = "INFERENCE_PRECISION_HINT"
BF16_HINT = "HINT_BF16"
# ONNX Runtime's parameter -> OpenVINO's
THREADS = {"intra_op_thread_count": "INFERENCE_NUM_THREADS"}
# import the module without its package, which imports grpc and takes half a second
if MESSAGES not in sys.modules:
    _package: Any = importlib.util.find_spec("tritonclient")
    _spec: Any = PathFinder.find_spec(
        MESSAGES, [f"{path}/grpc" for path in _package.submodule_search_locations]
    )
    sys.modules[MESSAGES] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[MESSAGES])
_messages: Any = sys.modules[MESSAGES]
ModelConfig = _messages.ModelConfig
DataType = _messages.DataType
Control = _messages.ModelSequenceBatching.Control


class Unreadable(ConfigError):
    """Raised if a configuration cannot be used. If it cannot be parsed, the `remedy` begins with
    the line and column."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(file, "cannot be used", " ".join(reason.split()))


def parse_config(text: str) -> Any:
    """Parse a config.pbtxt. Raise ConfigError with the line and column of a mistake."""
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as err:
        raise ConfigError("", str(err)) from err


def read_file(file: Path) -> Any:
    """Read a config.pbtxt. Return an empty ModelConfig if there is no file, because Triton
    completes it. Raise Unreadable."""
    try:
        return parse_config(_text(file)) if file.is_file() else ModelConfig()
    except (OSError, UnicodeDecodeError, ConfigError) as err:
        raise Unreadable(file, str(err)) from err


def _text(file: Path) -> str:
    """Read the text of a config.pbtxt. Raise ConfigError if it is larger than LARGEST_CONFIG."""
    with file.open("rb") as opened:
        content = opened.read(LARGEST_CONFIG + 1)
    if len(content) > LARGEST_CONFIG:
        problem = f"it has more than {LARGEST_CONFIG} bytes, and parsing it would take too long"
        raise ConfigError("", problem, "shorten it")
    return content.decode("utf-8")


def read_config(model: Path, device: str) -> Any:
    """Return the configuration with which the model is served on the device. Raise Unreadable."""
    return read_merged(model, config_file(model, device))


def read_merged(model: Path, file: Path) -> Any:
    """Return the ModelConfig in `file`. If it is only a partial configuration, merge it into
    config.pbtxt. Raise Unreadable."""
    config = read_file(file)
    if file == model / CONFIG or is_whole(config):
        return config
    return merged(read_file(model / CONFIG), config, _text(file))


def is_whole(config: Any) -> bool:
    """Return whether the configuration lists tensors. If so, it replaces config.pbtxt, as in
    Triton; otherwise it overrides some of its fields."""
    return bool(config.input or config.output)


def merged(base: Any, override: Any, text: str) -> Any:
    """Return a copy of `base` in which the fields of `override` replace the existing ones. `text`
    is the text of `override`. Maps, such as `parameters`, are merged by key. The model's file name
    is replaced together with the backend."""
    config = ModelConfig()
    config.CopyFrom(base)
    replaced = {field.name for field, _ in override.ListFields() if not is_map(field)}
    for name in replaced | BACKEND if replaced & BACKEND else replaced:
        config.ClearField(name)
    # use the text, because a message does not distinguish a 0 from a missing number
    return text_format.Merge(text, config)


def is_map(field: Any) -> bool:
    """Return whether a field of a protobuf message is a map."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def shared_clients(model: Path, config: Any) -> Path | None:
    """Return the repository's shared clients folder if it contains the model's client, else
    None."""
    file = own_client_of(model, config)
    return file.parent if file and file.parent != model else None


def mistake_of_client(model: Path, config: Any, settings: Settings) -> str:
    """Return the error message if the model repository contains a client for the model although
    clients are not allowed, else ""."""
    file = None if settings.model_clients else own_client_of(model, config)
    return (
        f"SERVE_MODEL_CLIENTS=false, and the model repository brings the client {file}"
        if file
        else ""
    )


def own_client_of(model: Path, config: Any) -> Path | None:
    """Return the file of the client that the model repository contains for `model`, or None.
    `config` is the model's ModelConfig."""
    parameter = config.parameters.get("client")
    named = str(parameter.string_value) if parameter else ""
    return own_client(model, named)


def written(config: Any) -> str:
    """Convert a ModelConfig to the text of a config.pbtxt, marked as written by `serve`."""
    return "# Written by serve.\n" + str(text_format.MessageToString(config, as_utf8=True))


def backend_of(config: Any) -> str:
    """Return the name of the backend, or "" if Triton derives it from the model's files."""
    if config.platform == ENSEMBLE or config.HasField("ensemble_scheduling"):
        return ENSEMBLE
    return str(config.backend or PLATFORMS.get(config.platform, (config.platform, ""))[0])


def with_plan_remedies(reason: str, folder: Path) -> str:
    """Return `reason`, which says why the model in `folder` could not be loaded. If the model is a
    TensorRT plan, append remedies."""
    return f"{reason}; {PLAN_REMEDIES}" if any(folder.glob("*/*.plan")) else reason


def parts_of(config: Any) -> list[str]:
    """Return the names of the models that an ensemble calls, in order."""
    return list(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def configs_of_parts(config: Any, find: Callable[[str], Any]) -> dict[str, Any]:
    """Return the configurations of all models that an ensemble calls, directly or indirectly.
    `find` returns a configuration by name."""
    configs: dict[str, Any] = {}
    pending = parts_of(config)
    while pending:
        if (name := pending.pop(0)) not in configs:
            configs[name] = find(name)
            pending += parts_of(configs[name])
    return configs


def correlation_type(config: Any) -> str | None:
    """Return the datatype of sequence ids, or "" if the model does not receive them. Return None if
    the model has no sequence batching."""
    if not config.HasField("sequence_batching"):
        return None
    for entry in config.sequence_batching.control_input:
        for control in entry.control:
            if control.kind == Control.CONTROL_SEQUENCE_CORRID:
                return datatype_name(control.data_type)
    return ""


def sequence_idle_seconds(config: Any) -> float:
    """Return the seconds without a request after which Triton ends a sequence."""
    return (
        float(config.sequence_batching.max_sequence_idle_microseconds / 1e6)
        or SEQUENCE_IDLE_SECONDS
    )


def datatype_name(data_type: int) -> str:
    """Convert ModelConfig's enum to the protocol's spelling: TYPE_FP32 -> FP32, TYPE_STRING ->
    BYTES."""
    name = str(DataType.Name(data_type)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def is_complete(model: Path, config: Any) -> bool:
    """Return whether the configuration is complete: it names a backend and all tensors with their
    types and dimensions, and the model's code has no auto_complete_config."""
    typed = all(
        tensor.name and tensor.data_type and tensor.dims
        for tensor in (*config.input, *config.output)
    )
    declared = bool(
        (config.backend or config.platform) and config.input and config.output and typed
    )
    return declared and not any(
        HOOK.encode() in code.read_bytes() for code in model.glob("*/model.py")
    )


def mistake_of_packages(model: Path, config: Any, most: int = MOST_ENTRIES) -> str:
    """Return the error message if the model cannot run with the packages that it contains, else "".
    An archive of them may have `most` files.

    EXECUTION_ENV_PATH names an archive made by conda-pack or venv-pack, or its unpacked folder.
    Triton's Python backend unpacks it, puts its bin/ first on PATH and starts the stub, which uses
    the packages of the first `python3` on PATH. If that is a different version of Python, or is
    missing, the model silently runs with the server's packages.
    """
    if PACKAGES not in config.parameters:
        return ""
    setting = str(config.parameters[PACKAGES].string_value)
    looked_at = ("bin/*", "lib/python*", "lib/python*/site-packages/numpy-*")
    try:
        path = real_path(packages_of(model, config))
        if path.is_dir():
            links = {}
            for file in chain.from_iterable(map(path.glob, looked_at)):
                target = str(file.readlink()) if file.is_symlink() else ""
                links[str(file.relative_to(path))] = target
        else:
            links = _links_of_archive(path, most)
        mistake = _mistake(links, own_stub=(model / STUB).is_file())
    except ConfigError as err:
        mistake = str(err)
    except tarfile.TarError:
        mistake = "it is not a tar archive that gzip, bzip2 or xz compressed"
    except (OSError, EOFError) as err:
        mistake = f"it cannot be read: {getattr(err, 'strerror', None) or err}"
    return f"{PACKAGES} '{setting}': {mistake}" if mistake else ""


def _links_of_archive(path: Path, most: int) -> dict[str, str]:
    """Return the files in a tar archive as {name: the target of a link, or ""}. Raise ConfigError
    if it contains more than `most` files or MOST_UNPACKED bytes."""
    links = {}
    count = 0
    with tarfile.open(path) as archive:
        while member := archive.next():
            archive.members.clear()  # type: ignore[attr-defined]  # tarfile would keep them all
            links[member.name.removeprefix("./")] = member.linkname
            count += 1  # count members rather than names, which may repeat
            if count > most:
                raise ConfigError("", f"it has more than {most} files")
            # check this before tarfile unpacks the file to find the next one
            if member.offset_data + member.size > MOST_UNPACKED:
                raise ConfigError("", f"it unpacks to more than {MOST_UNPACKED // 2**30} GB")
    return links


def packages_of(model: Path, config: Any) -> Path:
    """Return the path that EXECUTION_ENV_PATH names."""
    setting = str(config.parameters[PACKAGES].string_value)
    return Path(setting.replace(MODEL, str(model)))


def _mistake(links: Mapping[str, str], own_stub: bool) -> str:
    """Return what is wrong with a folder of packages, or "". `links` maps its files to the targets
    of links, or to "" for other files."""
    if "bin/activate" not in links:
        return "it has no bin/activate; make it with conda-pack or venv-pack"
    matches = [match for match in map(_PYTHON.match, links) if match]
    pythons = {match[1] for match in matches}
    if not own_stub and PYTHON not in pythons:
        packaged = f"Python {', '.join(sorted(pythons))}" if pythons else "no Python in lib/"
        return (
            f"it has {packaged}, and Triton's Python backend here is for Python {PYTHON}: make "
            "it with that version"
        )
    for name, target in links.items():
        if name.startswith("bin/python") and target.startswith("/") and not Path(target).exists():
            python = f"{sys.base_prefix}/bin/python{PYTHON}"
            return (
                f"its {name} is a link to {target}, which is not here: make it with {python}, "
                "or with conda-pack"
            )
    numpy = max((int(match[3]) for match in matches if match[3]), default=0)
    if numpy != 1 and not is_nvidia_image():
        packaged = f"NumPy {numpy}" if numpy else "no NumPy"
        return (
            f"it has {packaged}, and Triton's Python backend here needs NumPy 1: install "
            "'numpy<2' in it"
        )
    return ""


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
    """A chosen engine. `reason` follows "because" in a message. `refused` means that another engine
    was requested."""

    engine: str
    reason: str
    refused: bool = False

    def __str__(self) -> str:
        return f"{NAMES[self.engine]}, because {self.reason}"


def choose(requested: str, setting: str, processor: Processor) -> Choice | None:
    """Choose an engine from config.pbtxt's cpu_engine (`requested`) and SERVE_CPU_ENGINE
    (`setting`). Return None if neither of them asks for a choice."""
    for engine, who in (
        (requested, f"config.pbtxt says {PARAMETER}"),
        (setting, "SERVE_CPU_ENGINE says so"),
    ):
        if engine in NAMES:
            if engine == OPENVINO and processor.obstacle:
                return Choice(ONNX_RUNTIME, f"{processor.obstacle}, although {who}", refused=True)
            return Choice(engine, who)
    if not requested:
        return None
    bf16 = next((name for word, name in BF16.items() if word in processor.features), "")
    if not bf16:
        return Choice(ONNX_RUNTIME, f"this processor has neither {' nor '.join(BF16.values())}")
    if processor.obstacle or not processor.has_own_backend:
        reason = (
            processor.obstacle or "NVIDIA's backend of OpenVINO is used only if it is asked for"
        )
        return Choice(ONNX_RUNTIME, reason)
    return Choice(OPENVINO, f"this processor computes in BF16 ({bf16})")


def fitted(
    model: Path, settings: Settings, processor: Processor, config: Any = None
) -> tuple[Any, Choice | None]:
    """Return the ModelConfig with which the model is served on this machine, and why its engine was
    chosen (None if there was no choice). `config` is modified; if it is None, it is read from the
    model's files. Raise Unreadable."""
    file = config_file(model, settings.device)
    config = read_merged(model, file) if config is None else config
    if mistake := mistake_of_packages(model, config) or mistake_of_client(model, config, settings):
        raise Unreadable(file, mistake)
    if processor.has_own_backend and config.max_batch_size and RAGGED in config.parameters:
        _merge_all_lengths(config)
    if settings.device != "cpu" or backend_of(config) != ONNX_RUNTIME:
        return config, None
    try:
        requested = engine_of(config)
        choice = choose(requested, settings.cpu_engine, processor)
    except ConfigError as err:
        raise Unreadable(file, str(err)) from err
    if choice:
        config.parameters[ENGINE_REASON].string_value = choice.reason
    if choice and choice.engine == OPENVINO:
        config.platform = ""
        config.backend = OPENVINO
        config.default_model_filename = config.default_model_filename or "model.onnx"
        for onnx_name, openvino_name in THREADS.items():
            if onnx_name in config.parameters and openvino_name not in config.parameters:
                config.parameters[openvino_name].string_value = config.parameters[
                    onnx_name
                ].string_value
        # SERVE_CPU_ENGINE alone chose OpenVINO: keep the answers of FP32
        has_precision = PRECISION in config.parameters or BF16_HINT in config.parameters
        if processor.has_own_backend and not requested and not has_precision:
            config.parameters[PRECISION].string_value = "f32"
    return config, choice


def _merge_all_lengths(config: Any) -> None:
    """Let Triton merge texts of different lengths that leave out what the backend fills in."""
    for spec in config.input:
        spec.optional = spec.name in FILLED
        spec.allow_ragged_batch = spec.optional or spec.name == IDS


def leave_openvino(config: Any, reason: str) -> Choice | None:
    """Switch a ModelConfig to ONNX Runtime, because OpenVINO rejects the model for `reason`. Return
    the new choice, or None if `fitted` had not chosen OpenVINO."""
    if config.backend != OPENVINO or ENGINE_REASON not in config.parameters:
        return None
    config.platform = "onnxruntime_onnx"
    config.backend = ""
    choice = Choice(ONNX_RUNTIME, f"OpenVINO refuses it ({reason})", refused=True)
    config.parameters[ENGINE_REASON].string_value = choice.reason
    return choice


def engine_of(config: Any) -> str:
    """Return the engine that config.pbtxt requests, or "" if it requests none. Raise
    ConfigError."""
    engine = (
        str(config.parameters[PARAMETER].string_value) if PARAMETER in config.parameters else ""
    )
    if engine not in ("", AUTO, *NAMES):
        raise ConfigError(
            f"parameter '{PARAMETER}'", f"is '{engine}'; it must be {AUTO}, {' or '.join(NAMES)}"
        )
    return engine


def this_processor(backends: Path) -> Processor:
    """Describe this machine's processor. Look for Python packages without importing them."""
    folder = backends / OPENVINO
    has_own_backend = (folder / "model.py").is_file()
    obstacle = "" if folder.is_dir() else f"there is no backend '{OPENVINO}'"
    if has_own_backend and importlib.util.find_spec(OPENVINO) is None:
        obstacle = f"OpenVINO is not installed for this {os.uname().machine}"
    return Processor(processor_features(), obstacle, has_own_backend)


def choice_lines(choices: Mapping[str, Choice], refused: bool) -> list[str]:
    """Return one log line per choice, with its models. Include only choices with this value of
    `refused`."""
    lines: dict[str, list[str]] = {}
    for name, choice in sorted(choices.items()):
        if choice.refused == refused:
            lines.setdefault(str(choice), []).append(name)
    return [f"{', '.join(names)}: {line}" for line, names in lines.items()]
