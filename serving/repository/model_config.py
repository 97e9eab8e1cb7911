"""Reads config.pbtxt as Triton's ModelConfig, a protobuf message, and answers questions about it.
Process 1 cannot import this module, because process 1 uses only the standard library."""

import importlib.util
import sys
from collections.abc import Callable
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from serving.errors import ConfigError
from serving.repository.layout import CONFIG, PLATFORMS, config_file, own_client
from serving.settings.settings import Settings

MESSAGES = "tritonclient.grpc.model_config_pb2"
ENSEMBLE = "ensemble"  # what backend_of returns for an ensemble
BACKEND_FIELDS = {"platform", "backend"}  # they determine the backend
SEQUENCE_IDLE_SECONDS = 1.0  # Triton's default (sequence_batch_scheduler.cc)
PLAN_REMEDIES = (
    "a TensorRT plan runs only with the GPU model and the TensorRT version that it was "
    "built with: build it here (python -m build_engines build NAME --for tensorrt), or have "
    "ONNX Runtime's TensorRT provider serve the ONNX file (--for gpu); docs/build_engines.md"
)
# The maximum size of a config.pbtxt in bytes. Parsing 1.5 MB takes 5 s; this project's files have
# about 2 kB.
LARGEST_CONFIG = 2**20
# A parameter that build_engines writes for a text model whose rows do not depend on the padding.
# Its value is the maximum length of a text in tokens. It lets this project's backends batch texts
# of different lengths, which NVIDIA's backends cannot do.
RAGGED = "ragged_batches"
IDS = "input_ids"
# The other inputs of such a model, and the values that the backend fills in if a request does not
# have them.
FILLED = {"attention_mask": 1, "token_type_ids": 0}
# Import the module without its package, which would import grpc; that takes half a second.
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
    """Raised if a configuration cannot be used. `remedy` is the reason; it begins with the line and
    column if the file cannot be parsed."""

    def __init__(self, file: Path, reason: str) -> None:
        super().__init__(file, "cannot be used", " ".join(reason.split()))


def parse_config(text: str) -> Any:
    """Parse the text of a config.pbtxt. Raise ConfigError with the line and column of the first
    mistake."""
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as err:
        raise ConfigError("", str(err)) from err


def read_file(file: Path) -> Any:
    """Read a config.pbtxt. If there is no file, return an empty ModelConfig, which Triton will
    complete. Raise Unreadable if the file cannot be read or parsed."""
    try:
        return parse_config(_read_text(file)) if file.is_file() else ModelConfig()
    except (OSError, UnicodeDecodeError, ConfigError) as err:
        raise Unreadable(file, str(err)) from err


def _read_text(file: Path) -> str:
    """Read the text of a config.pbtxt. Raise ConfigError if it is larger than LARGEST_CONFIG."""
    with file.open("rb") as opened:
        content = opened.read(LARGEST_CONFIG + 1)
    if len(content) > LARGEST_CONFIG:
        problem = f"it has more than {LARGEST_CONFIG} bytes, and parsing it would take too long"
        raise ConfigError("", problem, "shorten it")
    return content.decode("utf-8")


def read_config(model: Path, device: str) -> Any:
    """Return the author's configuration of the model for `device`. Raise Unreadable."""
    return read_merged(model, config_file(model, device))


def read_merged(model: Path, file: Path) -> Any:
    """Return the ModelConfig in `file`. If it is only a partial configuration, merge it into
    config.pbtxt. Raise Unreadable."""
    config = read_file(file)
    if file == model / CONFIG or is_whole(config):
        return config
    return merged(read_file(model / CONFIG), config, _read_text(file))


def is_whole(config: Any) -> bool:
    """Return whether a configuration for a device lists tensors. If so, it replaces config.pbtxt,
    as in Triton. Otherwise only its fields override those of config.pbtxt."""
    return bool(config.input or config.output)


def merged(base: Any, override: Any, text: str) -> Any:
    """Return a copy of `base` in which the fields of `override` replace the existing ones. Maps,
    such as `parameters`, are merged by key. If `override` sets the platform or the backend, both
    fields of `base` and its default_model_filename are dropped. `text` is the text of
    `override`."""
    config = ModelConfig()
    config.CopyFrom(base)
    replaced = {field.name for field, _ in override.ListFields() if not is_map(field)}
    if replaced & BACKEND_FIELDS:
        replaced |= BACKEND_FIELDS | {"default_model_filename"}
    for name in replaced:
        config.ClearField(name)
    # merge the text, because a message does not distinguish the number 0 from a missing field
    return text_format.Merge(text, config)


def is_map(field: Any) -> bool:
    """Return whether a field of a protobuf message is a map."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def shared_clients(model: Path, config: Any) -> Path | None:
    """Return the folder of clients that the models of the repository share if it contains the
    client of `model`, else None."""
    file = own_client_of(model, config)
    return file.parent if file and file.parent != model else None


def mistake_of_client(model: Path, config: Any, settings: Settings) -> str:
    """Return the error message if the model repository contains a client for the model although
    clients are not allowed, else ""."""
    file = own_client_of(model, config)
    if settings.model_clients or not file:
        return ""
    return f"SERVE_MODEL_CLIENTS=false, and the model repository brings the client {file}"


def own_client_of(model: Path, config: Any) -> Path | None:
    """Return the file in the model repository that defines the client of `model`, or None if there
    is none. `config` is the model's ModelConfig."""
    return own_client(model, parameter_of(config, "client"))


def parameter_of(config: Any, name: str) -> str:
    """Return one of the configuration's parameters, or "" if it is missing."""
    return str(config.parameters[name].string_value) if name in config.parameters else ""


def text_of(config: Any) -> str:
    """Convert a ModelConfig to the text of a config.pbtxt, marked as written by `serve`."""
    fields = text_format.MessageToString(config, as_utf8=True)
    return f"# Written by serve.\n{fields}"


def backend_of(config: Any) -> str:
    """Return the name of the backend, or "" if the configuration names none. Triton then derives it
    from the model's files."""
    if config.platform == ENSEMBLE or config.HasField("ensemble_scheduling"):
        return ENSEMBLE
    if config.backend:
        return str(config.backend)
    backend, _ = PLATFORMS.get(config.platform, (config.platform, ""))
    return str(backend)


def with_plan_remedies(reason: str, folder: Path) -> str:
    """Return `reason`, which says why the model in `folder` could not be loaded. If the model is a
    TensorRT plan, append remedies."""
    is_plan = any(folder.glob("*/*.plan"))
    return f"{reason}; {PLAN_REMEDIES}" if is_plan else reason


def parts_of(config: Any) -> list[str]:
    """Return the names of the models that an ensemble's steps call, each once."""
    return list(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def configs_of_parts(config: Any, find: Callable[[str], Any]) -> dict[str, Any]:
    """Return the configurations of all models that an ensemble calls, directly or indirectly.
    `find` returns a configuration by name."""
    configs: dict[str, Any] = {}
    names = parts_of(config)
    for name in names:  # the loop itself appends to this list
        if name not in configs:
            configs[name] = find(name)
            names += parts_of(configs[name])
    return configs


def correlation_type(config: Any) -> str | None:
    """Return the datatype of the sequence ids (Triton's "correlation ids"), or "" if the model does
    not receive them. Return None if the model has no sequence batching."""
    if not config.HasField("sequence_batching"):
        return None
    for entry in config.sequence_batching.control_input:
        for control in entry.control:
            if control.kind == Control.CONTROL_SEQUENCE_CORRID:
                return datatype_name(control.data_type)
    return ""


def sequence_idle_seconds(config: Any) -> float:
    """Return after how many seconds without a request Triton ends a sequence."""
    microseconds = config.sequence_batching.max_sequence_idle_microseconds
    return float(microseconds / 1e6) or SEQUENCE_IDLE_SECONDS


def datatype_name(data_type: int) -> str:
    """Convert ModelConfig's enum to the protocol's spelling: TYPE_FP32 -> FP32, TYPE_STRING ->
    BYTES."""
    name = str(DataType.Name(data_type)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def allow_ragged_batches(config: Any) -> None:
    """Change a ModelConfig so that Triton merges texts of different lengths into one batch, and the
    inputs that the backend can fill in are optional."""
    for spec in config.input:
        spec.optional = spec.name in FILLED
        spec.allow_ragged_batch = spec.optional or spec.name == IDS
