"""Writes config.pbtxt with Triton's own protobuf classes, so that Triton can read it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from google.protobuf import text_format
from tritonclient.grpc.model_config_pb2 import DataType, ModelConfig

from build_engines.model_spec import ONNX, Engine, ModelSpec
from build_engines.request import Request
from clients.base import TensorSpec
from serving.repository.cpu_engine import AUTO, CPU_ENGINE, OPENVINO, PRECISION

HEADER = "# Written by python -m build_engines.\n"


def write_configs(
    folder: Path, model_spec: ModelSpec, engine: Engine, request: Request, any_cpu_engine: bool
) -> None:
    """Write config.pbtxt for a GPU, and configs/cpu.pbtxt with the settings that differ on a
    machine without one (with all settings if config.pbtxt has an accelerator).

    If the engine always runs on a CPU, write only config.pbtxt, for the CPU. `any_cpu_engine` has
    the same meaning as in `_cpu_parameters`.
    """
    cpu = model_config(
        model_spec,
        platform=model_spec.platform,
        kind="KIND_CPU",
        count=model_spec.cpu_instances,
        request=request,
    )
    override = ModelConfig(instance_group=cpu.instance_group)
    for name, value in _cpu_parameters(model_spec, engine, any_cpu_engine).items():
        cpu.parameters[name].string_value = value
        override.parameters[name].string_value = value
    if engine.runs_on_cpu:
        (folder / "config.pbtxt").write_text(render(cpu, model_spec.note))
        return
    gpu = model_config(
        model_spec, platform=engine.platform, kind="KIND_GPU", count=1, request=request
    )
    if engine.platform != model_spec.platform:
        override.platform = model_spec.platform
    if engine.preferred_batch_sizes:
        gpu.dynamic_batching.preferred_batch_size.extend(engine.preferred_batch_sizes)
        override.dynamic_batching.SetInParent()  # empty, so it removes these sizes
    if engine.accelerator:
        accelerators = gpu.optimization.execution_accelerators.gpu_execution_accelerator
        accelerators.add(name="tensorrt", parameters=engine.accelerator)
        override = cpu  # complete, because a partial configuration cannot remove the accelerator
    (folder / "config.pbtxt").write_text(render(gpu, model_spec.note))
    (folder / "configs").mkdir()
    (folder / "configs" / "cpu.pbtxt").write_text(render(override))


def _cpu_parameters(
    model_spec: ModelSpec, engine: Engine, any_cpu_engine: bool
) -> Mapping[str, str]:
    """Return the engine's parameters for a CPU, except those that the ModelSpec sets, which include
    the settings of --set.

    If `any_cpu_engine` is true, an ONNX model may be computed in BF16. Unless the build is for
    OpenVINO, `serve` then chooses the CPU engine. If it is false, OpenVINO computes an fp32 model
    in fp32.
    """
    parameters = dict(engine.cpu_parameters)
    if any_cpu_engine and model_spec.platform == ONNX:
        parameters.setdefault(CPU_ENGINE, AUTO)
    elif parameters.get(CPU_ENGINE) == OPENVINO and engine.precision == "fp32":
        parameters[PRECISION] = "f32"
    return {name: parameters[name] for name in parameters if name not in model_spec.settings}


def model_config(
    model_spec: ModelSpec, platform: str, kind: str, count: int, request: Request
) -> Any:
    """Return the ModelConfig of the model on `platform`, with as many instances on `kind`
    (KIND_CPU, KIND_GPU) as --instances says, or else `count`."""
    config = ModelConfig(platform=platform, max_batch_size=model_spec.max_batch_size)
    for spec in model_spec.inputs:
        _declare_tensor(config.input.add(), spec, model_spec.max_batch_size)
    for spec in model_spec.outputs:
        _declare_tensor(config.output.add(), spec, model_spec.max_batch_size)
    if model_spec.labels:
        config.output[0].label_filename = model_spec.labels
    group = config.instance_group.add(count=request.instances or count)
    group.kind = group.Kind.Value(kind)
    if model_spec.max_batch_size:
        config.dynamic_batching.SetInParent()
    for key, value in model_spec.parameters.items():
        config.parameters[key].string_value = value
    return config


def _declare_tensor(target: Any, spec: TensorSpec, max_batch_size: int) -> None:
    """Declare a tensor. A scalar is declared as [1], because config.pbtxt cannot declare []. If the
    model takes batches, callers therefore see [n, 1], and `reshape` makes the model see [n]."""
    target.name, target.data_type = spec.name, data_type(spec.datatype)
    target.dims.extend(spec.shape or (1,))
    if not spec.shape and max_batch_size:
        target.reshape.SetInParent()


def data_type(datatype: str) -> int:
    """Return the value in Triton's enum of datatypes for a name such as FP32, INT64 or BYTES."""
    return int(DataType.Value(f"TYPE_{datatype.replace('BYTES', 'STRING')}"))


def render(config: Any, note: str = "") -> str:
    """Return the text of a config.pbtxt: HEADER, `note` as a comment, and the ModelConfig."""
    comment = "".join(f"# {line}\n" for line in note.splitlines())
    text: str = text_format.MessageToString(config, use_short_repeated_primitives=True)
    return HEADER + comment + text
