"""Read config.pbtxt as Triton's ModelConfig, answer questions about it, and choose the engine of an
ONNX model on the processor: ONNX Runtime, or OpenVINO if that computes in BF16. PID 1 cannot import
this: it lacks protobuf.

    cpu_engine in config.pbtxt: onnxruntime, openvino --> that one
    SERVE_CPU_ENGINE: onnxruntime, openvino ------------> that one
    cpu_engine: auto, as build_engines writes ----------> OpenVINO with AMX or AVX512-BF16
    none of these --------------------------------------> ONNX Runtime, as config.pbtxt says

If OpenVINO cannot run or refuses the model, ONNX Runtime serves, so a repository works on every
machine. BF16 has 8
significant bits, so a model gets it only if its config.pbtxt has a cpu_engine or says it itself.
"""

import importlib.util
import os
import re
import sys
import tarfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from serving.errors import ConfigError
from serving.host.machine import processor_features
from serving.host.tritonserver import PYTHON, is_nvidia_image
from serving.repository.layout import CONFIG, PLATFORMS, config_file, own_client
from serving.repository.paths import real_path
from serving.settings.table import Settings

MESSAGES = "tritonclient.grpc.model_config_pb2"
ENSEMBLE = "ensemble"  # of backend_of
ENGINE_REASON = "cpu_engine_reason"  # a parameter that `serve` writes
BACKEND = {"platform", "backend", "default_model_filename"}  # fields that name it
SEQUENCE_IDLE_SECONDS = 1.0  # of a model that sets none (sequence_batch_scheduler.cc)
PLAN_REMEDIES = (
    "a TensorRT plan runs only with the GPU model and the TensorRT version that it was "
    "built with: build it here (python -m build_engines build NAME --for tensorrt), or have "
    "ONNX Runtime's TensorRT provider serve the ONNX file (--for gpu); docs/build_engines.md"
)
LARGEST_CONFIG = 2**20  # bytes of config.pbtxt: 1.5 MB take 5 s to parse; ours have 2 kB
PACKAGES = "EXECUTION_ENV_PATH"
MODEL = "$$TRITON_MODEL_DIRECTORY"  # Triton's word for the model's folder
STUB = "triton_python_backend_stub"  # in the model's folder: it is started instead of the backend's
_PYTHON = re.compile(r"lib/python(\d+\.\d+)(/site-packages/numpy-(\d+)[^/]*\.(dist|egg)-info)?")
HOOK = "auto_complete_config"  # the function by which a Python model completes its configuration
AUTO, ONNX_RUNTIME, OPENVINO = "auto", "onnxruntime", "openvino"
PARAMETER = "cpu_engine"  # of config.pbtxt
NAMES = {ONNX_RUNTIME: "ONNX Runtime", OPENVINO: "OpenVINO"}
# Linux's word -> its makers', the faster first
BF16 = {"amx_bf16": "AMX", "avx512_bf16": "AVX512-BF16"}
PRECISION, BF16_HINT = "INFERENCE_PRECISION_HINT", "HINT_BF16"  # OpenVINO's parameters
# ONNX Runtime's parameter -> OpenVINO's
THREADS = {"intra_op_thread_count": "INFERENCE_NUM_THREADS"}
# load it without its package, which imports grpc and so takes half a second
if MESSAGES not in sys.modules:
    _package: Any = importlib.util.find_spec("tritonclient")
    _spec: Any = PathFinder.find_spec(
        MESSAGES, [f"{path}/grpc" for path in _package.submodule_search_locations]
    )
    sys.modules[MESSAGES] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules[MESSAGES])
_messages: Any = sys.modules[MESSAGES]
ModelConfig, DataType, Control = (
    _messages.ModelConfig,
    _messages.DataType,
    _messages.ModelSequenceBatching.Control,
)


class Unreadable(ConfigError):
    """A configuration that cannot be used; if it cannot be read, the `remedy` begins with line and
    column."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(file, "cannot be used", " ".join(reason.split()))


def parse_config(text: str) -> Any:
    """Parse a config.pbtxt. Raise ConfigError with line and column."""
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as err:
        raise ConfigError("", str(err)) from err


def read_file(file: Path) -> Any:
    """Read a config.pbtxt; an empty one if there is no file, because Triton completes that. Raise
    Unreadable."""
    try:
        return parse_config(_text(file) if file.is_file() else "")
    except (OSError, UnicodeDecodeError, ConfigError) as err:
        raise Unreadable(file, str(err)) from err


def _text(file: Path) -> str:
    """Return the text of a config.pbtxt. Raise ConfigError if it is larger than LARGEST_CONFIG."""
    with file.open("rb") as opened:
        content = opened.read(LARGEST_CONFIG + 1)
    if len(content) > LARGEST_CONFIG:
        problem = f"it has more than {LARGEST_CONFIG} bytes, and parsing it would take too long"
        raise ConfigError("", problem, "shorten it")
    return content.decode("utf-8")


def read_config(model: Path, device: str) -> Any:
    """Return the configuration that is served for the model on the device. Raise Unreadable."""
    return read_merged(model, config_file(model, device))


def read_merged(model: Path, file: Path) -> Any:
    """Return the ModelConfig of a file of the model, merged into config.pbtxt if it is not whole.
    Raise Unreadable."""
    config = read_file(file)
    if file == model / CONFIG or is_whole(config):
        return config
    return merged(read_file(model / CONFIG), config, _text(file))


def is_whole(config: Any) -> bool:
    """Return whether the file names tensors: then it replaces config.pbtxt, as in Triton; else it
    overrides fields."""
    return bool(config.input or config.output)


def merged(base: Any, override: Any, text: str) -> Any:
    """Return a copy of `base` with the fields of `override`, whose text is `text`, in place of its
    own. Maps, such as `parameters`, are merged by key. The name of the model's file is replaced
    together with the backend."""
    config = ModelConfig()
    config.CopyFrom(base)
    replaced = {field.name for field, _ in override.ListFields() if not is_map(field)}
    for name in replaced | BACKEND if replaced & BACKEND else replaced:
        config.ClearField(name)
    # the text, because in a message a 0 cannot be told from a missing number
    return text_format.Merge(text, config)


def is_map(field: Any) -> bool:
    """Return whether a field of a protobuf message is a map."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def shared_clients(model: Path, config: Any) -> Path | None:
    """Return the repository's folder of clients if the model's client is there."""
    file = own_client_of(model, config)
    return file.parent if file and file.parent != model else None


def mistake_of_client(model: Path, config: Any, settings: Settings) -> str:
    """Return why the model must not bring its client; "" if it may, or if it brings none."""
    file = None if settings.model_clients else own_client_of(model, config)
    return (
        f"SERVE_MODEL_CLIENTS=false, and the model repository brings the client {file}"
        if file
        else ""
    )


def own_client_of(model: Path, config: Any) -> Path | None:
    """Return the file of the client that the model repository has for `model`, whose ModelConfig is
    `config`."""
    parameter = config.parameters.get("client")
    return own_client(model, str(parameter.string_value) if parameter else "")


def written(config: Any) -> str:
    """Return the config.pbtxt that `serve` writes."""
    return "# Written by serve.\n" + str(text_format.MessageToString(config, as_utf8=True))


def backend_of(config: Any) -> str:
    """Return the backend's name; "" if Triton finds it by the model's files."""
    if config.platform == ENSEMBLE or config.HasField("ensemble_scheduling"):
        return ENSEMBLE
    return str(config.backend or PLATFORMS.get(config.platform, (config.platform, ""))[0])


def with_plan_remedies(reason: str, folder: Path) -> str:
    """Return why the model in `folder` did not load, followed by what to do if it is a TensorRT
    plan."""
    return f"{reason}; {PLAN_REMEDIES}" if any(folder.glob("*/*.plan")) else reason


def parts_of(config: Any) -> list[str]:
    """Return the models that the steps of an ensemble call, in order."""
    return list(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def configs_of_parts(config: Any, find: Callable[[str], Any]) -> dict[str, Any]:
    """Return the configurations of all models that an ensemble calls, however deep; `find` returns
    one by name."""
    configs: dict[str, Any] = {}
    pending = parts_of(config)
    while pending:
        if (name := pending.pop(0)) not in configs:
            configs[name] = find(name)
            pending += parts_of(configs[name])
    return configs


def correlation_type(config: Any) -> str | None:
    """Return the datatype that holds the ids of sequences, "" if the model does not get them; None
    without sequence batching."""
    if not config.HasField("sequence_batching"):
        return None
    controls = (c for entry in config.sequence_batching.control_input for c in entry.control)
    types = (
        datatype_name(c.data_type) for c in controls if c.kind == Control.CONTROL_SEQUENCE_CORRID
    )
    return next(types, "")


def sequence_idle_seconds(config: Any) -> float:
    """Return the seconds without a request after which Triton ends a sequence."""
    return (
        float(config.sequence_batching.max_sequence_idle_microseconds / 1e6)
        or SEQUENCE_IDLE_SECONDS
    )


def datatype_name(data_type: int) -> str:
    """Return ModelConfig's enum in the protocol's spelling: TYPE_FP32 -> FP32, TYPE_STRING ->
    BYTES."""
    name = str(DataType.Name(data_type)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def is_complete(model: Path, config: Any) -> bool:
    """Return whether the configuration is complete: it names a backend and all tensors with type
    and dimensions, and the model has no auto_complete_config of its own."""
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


def mistake_of_packages(model: Path, config: Any) -> str:
    """Return why the model cannot run with the packages that it brings; "" if it can, or if it
    brings none.

    EXECUTION_ENV_PATH names an archive that conda-pack or venv-pack made, or an unpacked one.
    Triton's Python backend unpacks it, puts its bin/ first on PATH and starts the stub, which takes
    the packages of the first `python3` there. If that is of another version than the stub, or is
    not there, the model silently runs with the server's packages.
    """
    if PACKAGES not in config.parameters:
        return ""
    setting = str(config.parameters[PACKAGES].string_value)
    looked_at = ("bin/*", "lib/python*", "lib/python*/site-packages/numpy-*")
    try:
        path = real_path(packages_of(model, config))
        if path.is_dir():
            files = [file for pattern in looked_at for file in path.glob(pattern)]
            links = {
                str(file.relative_to(path)): str(file.readlink()) if file.is_symlink() else ""
                for file in files
            }
        else:
            with tarfile.open(path) as archive:
                links = {member.name.removeprefix("./"): member.linkname for member in archive}
        mistake = _mistake(links, own_stub=(model / STUB).is_file())
    except ConfigError as err:
        mistake = str(err)
    except tarfile.TarError:
        mistake = "it is not a tar archive that gzip, bzip2 or xz compressed"
    except (OSError, EOFError) as err:
        mistake = f"it cannot be read: {getattr(err, 'strerror', None) or err}"
    return f"{PACKAGES} '{setting}': {mistake}" if mistake else ""


def packages_of(model: Path, config: Any) -> Path:
    """Return the path that EXECUTION_ENV_PATH names."""
    setting = str(config.parameters[PACKAGES].string_value)
    return Path(setting.replace(MODEL, str(model)))


def _mistake(links: Mapping[str, str], own_stub: bool) -> str:
    """Return what is wrong with the files of `links`: the names, and the targets of those that are
    links (else "")."""
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
    """This machine's processor: `features` are its instruction sets; `obstacle` says why OpenVINO
    cannot run here ("": it can); `has_own_backend` whether Triton's backend for OpenVINO is this
    project's."""

    features: frozenset[str] = frozenset()
    obstacle: str = ""
    has_own_backend: bool = True


@dataclass(frozen=True)
class Choice:
    """A chosen engine. `reason` follows "because" in a message; `refused`: another engine was asked
    for."""

    engine: str
    reason: str
    refused: bool = False

    def __str__(self) -> str:
        return f"{NAMES[self.engine]}, because {self.reason}"


def choose(requested: str, setting: str, processor: Processor) -> Choice | None:
    """Choose by config.pbtxt (`requested`) and by SERVE_CPU_ENGINE. Return None if neither leaves
    the choice open."""
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
    """Return the ModelConfig that is served for the model on this machine, and why an engine was
    chosen, None if there was no choice. `config` is what its files say and is changed; None: they
    are read. Raise Unreadable."""
    file = config_file(model, settings.device)
    config = read_merged(model, file) if config is None else config
    if mistake := mistake_of_packages(model, config) or mistake_of_client(model, config, settings):
        raise Unreadable(file, mistake)
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
        config.platform, config.backend = "", OPENVINO
        config.default_model_filename = config.default_model_filename or "model.onnx"
        for onnx_name, openvino_name in THREADS.items():
            if onnx_name in config.parameters and openvino_name not in config.parameters:
                config.parameters[openvino_name].string_value = config.parameters[
                    onnx_name
                ].string_value
        has_precision = PRECISION in config.parameters or BF16_HINT in config.parameters
        if processor.has_own_backend and not requested and not has_precision:
            config.parameters[PRECISION].string_value = "f32"
    return config, choice


def leave_openvino(config: Any, reason: str) -> Choice | None:
    """Change the ModelConfig of a model that OpenVINO refuses for `reason`: ONNX Runtime serves it.
    Return that choice, None if `fitted` did not choose OpenVINO."""
    if config.backend != OPENVINO or ENGINE_REASON not in config.parameters:
        return None
    config.platform, config.backend = "onnxruntime_onnx", ""
    choice = Choice(ONNX_RUNTIME, f"OpenVINO refuses it ({reason})", refused=True)
    config.parameters[ENGINE_REASON].string_value = choice.reason
    return choice


def engine_of(config: Any) -> str:
    """Return the engine that config.pbtxt asks for; "" if it asks for none. Raise ConfigError."""
    engine = (
        str(config.parameters[PARAMETER].string_value) if PARAMETER in config.parameters else ""
    )
    if engine not in ("", AUTO, *NAMES):
        raise ConfigError(
            f"parameter '{PARAMETER}'", f"is '{engine}'; it must be {AUTO}, {' or '.join(NAMES)}"
        )
    return engine


def this_processor(backends: Path) -> Processor:
    """Return this machine's processor: ask Linux and Python's packages, without importing them."""
    folder = backends / OPENVINO
    has_own_backend = (folder / "model.py").is_file()
    obstacle = "" if folder.is_dir() else f"there is no backend '{OPENVINO}'"
    if has_own_backend and importlib.util.find_spec(OPENVINO) is None:
        obstacle = f"OpenVINO is not installed for this {os.uname().machine}"
    return Processor(processor_features(), obstacle, has_own_backend)


def choice_lines(choices: Mapping[str, Choice], refused: bool) -> list[str]:
    """Return a log line for each choice with its models: the `refused` choices, or the others."""
    lines: dict[str, list[str]] = {}
    for name, choice in sorted(choices.items()):
        if choice.refused == refused:
            lines.setdefault(str(choice), []).append(name)
    return [f"{', '.join(names)}: {line}" for line, names in lines.items()]
