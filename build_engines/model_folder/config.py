"""config.pbtxt, through Triton's own protobuf: what can be written there is what Triton can read.

The Request has what a user may choose; the rest follows from the model and the engine.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc import model_config_pb2

from build_engines.errors import UsageError
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import Request
from clients.base import TensorSpec
from serving.repository.model_config import datatype_name, is_map, is_whole, merged, parse_config

HEADER = "# Written by python -m build_engines.\n"
CONTROLS = {
    "start": "CONTROL_SEQUENCE_START",
    "end": "CONTROL_SEQUENCE_END",
    "ready": "CONTROL_SEQUENCE_READY",
    "corrid": "CONTROL_SEQUENCE_CORRID",
}


def model_config(model_spec: ModelSpec, platform: str, kind: str, count: int, request: Request) -> Any:
    """The ModelConfig of the model on `platform`, `count` instances on `kind` (KIND_CPU, KIND_GPU)."""
    config = model_config_pb2.ModelConfig(platform=platform, max_batch_size=model_spec.max_batch_size)
    for spec in model_spec.inputs:
        _tensor(config.input.add(), spec, model_spec.max_batch_size)
    for spec in model_spec.outputs:
        _tensor(config.output.add(), spec, model_spec.max_batch_size)
    if model_spec.labels:
        config.output[0].label_filename = model_spec.labels
    group = config.instance_group.add(count=request.instances or count)
    group.kind = group.Kind.Value(kind)
    _set_batching(config, model_spec)
    parameters = ({"client": model_spec.client} if model_spec.client else {}) | dict(model_spec.settings)
    for key, value in parameters.items():
        config.parameters[key].string_value = value
    return config


def _tensor(target: Any, spec: TensorSpec, max_batch_size: int) -> None:
    """A scalar has no place in config.pbtxt: callers send [1], or [n, 1] for a batch; the model gets [], or [n]."""
    target.name, target.data_type = spec.name, data_type(spec.datatype)
    target.dims.extend(spec.shape or (1,))
    if not spec.shape and max_batch_size:
        target.reshape.SetInParent()


def data_type(datatype: str) -> int:
    """Triton's enum of a datatype: FP32, INT64, BYTES …"""
    return int(model_config_pb2.DataType.Value(f"TYPE_{datatype.replace('BYTES', 'STRING')}"))


def _set_batching(config: Any, model_spec: ModelSpec) -> None:
    if model_spec.controls:
        _set_sequences(config.sequence_batching, model_spec)
    elif model_spec.max_batch_size:
        config.dynamic_batching.SetInParent()


def _set_sequences(batching: Any, model_spec: ModelSpec) -> None:
    batching.direct.SetInParent()
    for kind, spec in model_spec.controls.items():
        control = batching.control_input.add(name=spec.name).control.add()
        control.kind = control.Kind.Value(CONTROLS[kind])
        if kind == "corrid":
            control.data_type = data_type(spec.datatype)
        elif spec.datatype in _FALSE_TRUE:
            getattr(control, _FALSE_TRUE[spec.datatype]).extend([0, 1])
        else:
            raise UsageError(f"the control input '{spec.name}' is {spec.datatype}; Triton has FP32, INT32 and BOOL")


_FALSE_TRUE = {"FP32": "fp32_false_true", "INT32": "int32_false_true", "BOOL": "bool_false_true"}


def render(config: Any, note: str = "") -> str:
    """A ModelConfig as a config.pbtxt, `note` as a comment at its top."""
    comment = "".join(f"# {line}\n" for line in note.splitlines())
    text: str = text_format.MessageToString(config, use_short_repeated_primitives=True)
    return HEADER + comment + text


def difference(base: Any, other: Any) -> Any:
    """What a configs/NAME.pbtxt says so that `serve` makes `other` of config.pbtxt, `base`: what differs, or all."""
    own = model_config_pb2.ModelConfig()
    for field, value in other.ListFields():
        there = getattr(base, field.name)
        if is_map(field):
            for key in (key for key in value if key not in there or there[key] != value[key]):
                getattr(own, field.name)[key].CopyFrom(value[key])
        elif value != there:
            own.MergeFrom(type(other)(**{field.name: value}))
    return own if not is_whole(own) and merged(base, own, render(own)) == other else other


def read_config(folder: Path) -> Any:
    """A model folder's config.pbtxt as a ModelConfig."""
    return parse_config((folder / "config.pbtxt").read_text(encoding="utf-8"))


def specs(tensors: Sequence[Any]) -> tuple[TensorSpec, ...]:
    """A ModelConfig's inputs or outputs."""
    return tuple(TensorSpec(each.name, datatype_name(each.data_type), tuple(each.dims)) for each in tensors)


def parameters_of(config: Any) -> dict[str, str]:
    """A ModelConfig's `parameters`."""
    return {key: value.string_value for key, value in config.parameters.items()}
