"""config.pbtxt as Triton's ModelConfig, and what one says; no other module reads one.

It takes protobuf, which PID 1 does not have.
"""

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from google.protobuf import text_format

from serving.errors import InvalidRequest, LoadFailed
from serving.repository.layout import CONFIG, PLATFORMS, config_file

MESSAGES = "tritonclient.grpc.model_config_pb2"
ENSEMBLE, TENSORRT = "ensemble", "tensorrt"  # of backend_of
ENGINE_REASON = "cpu_engine_reason"  # a parameter that `serve` writes (repository/engines.py)
BACKEND = {"platform", "backend", "default_model_filename"}  # fields that name it
SEQUENCE_IDLE_SECONDS = 1.0  # of a model that sets none (sequence_batch_scheduler.cc)
PLAN_REMEDIES = (
    "a TensorRT plan runs only with the GPU model and the TensorRT version that it was built with: build it here "
    "(python -m build_engines build NAME --for tensorrt), or have ONNX Runtime's TensorRT provider serve the ONNX file "
    "(--for gpu); docs/tensorrt.md"
)
HOOK = "auto_complete_config"  # the function by which a Python model completes its configuration


class Unreadable(LoadFailed):
    """A configuration that cannot be read; `reason` begins with line and column."""

    def __init__(self, file: Path, reason: str) -> None:
        self.file, self.reason = file, " ".join(reason.split())
        super().__init__(f"{file} cannot be read: {self.reason}")


def _messages() -> Any:
    """tritonclient's module, without its package, which imports grpc: that takes half a second."""
    package = importlib.util.find_spec("tritonclient")
    if MESSAGES not in sys.modules and package and package.submodule_search_locations:
        file = Path(package.submodule_search_locations[0]) / "grpc" / "model_config_pb2.py"
        spec = importlib.util.spec_from_file_location(MESSAGES, file)
        if spec and spec.loader:
            sys.modules[MESSAGES] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[MESSAGES])
    return importlib.import_module(MESSAGES)


ModelConfig: Any = _messages().ModelConfig
DataType: Any = _messages().DataType
Control: Any = _messages().ModelSequenceBatching.Control


def parse_config(text: str) -> Any:
    """A config.pbtxt as the ModelConfig protobuf; raises InvalidRequest with line and column."""
    try:
        return text_format.Parse(text, ModelConfig())
    except text_format.ParseError as err:
        raise InvalidRequest(str(err)) from err


def read_file(file: Path) -> Any:
    """The ModelConfig in it, an empty one where there is no file, for Triton completes that; raises Unreadable."""
    try:
        return parse_config(file.read_text(encoding="utf-8") if file.is_file() else "")
    except (OSError, UnicodeDecodeError, InvalidRequest) as err:
        raise Unreadable(file, str(err)) from err


def read_config(model: Path, device: str) -> Any:
    """The one that is served for the model on that device; raises Unreadable."""
    return read_merged(model, config_file(model, device))


def read_merged(model: Path, file: Path) -> Any:
    """The ModelConfig of one of the model's files; one that is not whole is merged into config.pbtxt. Raises
    Unreadable."""
    own = read_file(file)
    if file == model / CONFIG or is_whole(own):
        return own
    return merged(read_file(model / CONFIG), own, file.read_text(encoding="utf-8"))


def is_whole(config: Any) -> bool:
    """Whether it stands in place of config.pbtxt, as for Triton: it names tensors. Any other says what differs."""
    return bool(config.input or config.output)


def merged(base: Any, own: Any, text: str) -> Any:
    """A copy of `base` in which what `own`, whose text is given, names stands in place of what was there; of maps, such
    as `parameters`, each key. A backend's file name goes with the backend."""
    made = ModelConfig()
    made.CopyFrom(base)
    replaced = {field.name for field, _ in own.ListFields() if not is_map(field)}
    if replaced & BACKEND:
        replaced |= BACKEND
    for name in replaced:
        made.ClearField(name)
    return text_format.Merge(text, made)  # not of `own`: in a message a number that is 0 is as one that is not there


def is_map(field: Any) -> bool:
    """Of a protobuf message's fields."""
    return bool(field.message_type and field.message_type.GetOptions().map_entry)


def written(config: Any) -> str:
    """The config.pbtxt that `serve` makes of it."""
    return "# Written by serve.\n" + str(text_format.MessageToString(config, as_utf8=True))


def backend_of(config: Any) -> str:
    """The backend's name; "" where Triton finds it by the model's files."""
    if config.platform == ENSEMBLE or config.HasField("ensemble_scheduling"):
        return ENSEMBLE
    return str(config.backend or PLATFORMS.get(config.platform, (config.platform, ""))[0])


def with_plan_remedies(reason: str, folder: Path) -> str:
    """Return why the model in `folder` did not load, followed by what to do if it is a TensorRT plan."""
    return f"{reason}; {PLAN_REMEDIES}" if any(folder.glob("*/*.plan")) else reason


def parts_of(config: Any) -> list[str]:
    """The models that the steps of an ensemble call, in order."""
    return list(dict.fromkeys(step.model_name for step in config.ensemble_scheduling.step))


def configs_of_parts(config: Any, find: Callable[[str], Any]) -> dict[str, Any]:
    """Those of the models that an ensemble calls, and of what these call, by name; `find` gives a model's."""
    found: dict[str, Any] = {}
    left = parts_of(config)
    while left:
        if (name := left.pop(0)) not in found:
            found[name] = find(name)
            left += parts_of(found[name])
    return found


def correlation_type(config: Any) -> str | None:
    """The datatype of the sequence ids; None when it has no sequence batching."""
    if not config.HasField("sequence_batching"):
        return None
    controls = (c for each in config.sequence_batching.control_input for c in each.control)
    types = (datatype_name(c.data_type) for c in controls if c.kind == Control.CONTROL_SEQUENCE_CORRID)
    return next(types, "BYTES")


def sequence_idle_seconds(config: Any) -> float:
    """After how long without a request Triton forgets a sequence."""
    return float(config.sequence_batching.max_sequence_idle_microseconds / 1e6) or SEQUENCE_IDLE_SECONDS


def datatype_name(data_type: int) -> str:
    """ModelConfig's enum in the protocol's spelling: TYPE_FP32 -> FP32, TYPE_STRING -> BYTES."""
    name = str(DataType.Name(data_type)).removeprefix("TYPE_")
    return "BYTES" if name == "STRING" else name


def is_complete(model: Path, config: Any) -> bool:
    """Whether the configuration says all that Triton must know, and the model has nothing to add by code of its own:
    a backend, and inputs and outputs of which each has a name, a type and dimensions."""
    tensors = all(each.name and each.data_type and each.dims for each in (*config.input, *config.output))
    said = bool((config.backend or config.platform) and config.input and config.output and tensors)
    return said and not any(HOOK.encode() in code.read_bytes() for code in model.glob("*/model.py"))
