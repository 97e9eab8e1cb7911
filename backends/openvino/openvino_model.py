"""Reads a model with OpenVINO and gives it the shapes and datatypes of config.pbtxt. Needs OpenVINO."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import openvino
import tensors as table  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path
from openvino.preprocess import PrePostProcessor
from openvino_settings import OpenvinoSettings  # type: ignore[import-not-found]

Config = dict[str, Any]

DEFAULT_FILE = "model.xml"
DATATYPES = {
    f"{sign}{bits}": f"TYPE_{word}{bits}" for sign, word in (("i", "INT"), ("u", "UINT")) for bits in (8, 16, 32, 64)
}
DATATYPES |= {"boolean": "TYPE_BOOL", "f16": "TYPE_FP16", "f32": "TYPE_FP32", "f64": "TYPE_FP64"}
KINDS = {datatype: kind for kind, datatype in DATATYPES.items()}
CONVERTED = {*DATATYPES, "bf16"}  # between these datatypes the compiled model converts


def read(file: Path, settings: OpenvinoSettings) -> Any:
    """The model in the file; ValueError or FileNotFoundError says what is wrong with it."""
    if not file.exists():
        other = file.with_name("model.onnx")
        remedy = '; say default_model_filename: "model.onnx"' if other.is_file() else ""
        raise FileNotFoundError(f"unable to find '{file}'{remedy}")
    core = openvino.Core()
    if settings.extension:
        try:
            core.add_extension(settings.extension)
        except RuntimeError as err:
            raise ValueError(f"parameter 'CPU_EXTENSION_PATH': {plain(err)}") from err
    try:
        return core.read_model(str(file))
    except RuntimeError as err:
        raise ValueError(f"OpenVINO cannot read '{file}': {plain(err)}") from err


def plain(error: Exception) -> str:
    """What OpenVINO says was wrong, without the places in its source."""
    lines = [line.strip() for line in str(error).splitlines()]
    said = [line for line in lines if line and not line.startswith(("Exception from ", "Check '"))]
    return " ".join(said) or " ".join(lines)


def fit(model: Any, config: Config, settings: OpenvinoSettings) -> None:
    """Gives the model, in place, the shapes and the datatypes that config.pbtxt asks for; ValueError when it cannot."""
    shapes = {port.get_any_name(): _shape(port, config, settings) for port in model.inputs}
    current = {port.get_any_name(): _known_shape(port) for port in model.inputs}
    if shapes != current:
        try:
            model.reshape({name: openvino.PartialShape(list(shape)) for name, shape in shapes.items()})
        except RuntimeError as err:
            raise ValueError(
                f"model '{config['name']}' cannot take the shapes {shapes}: {plain(err)}; set max_batch_size 0 or "
                "export the model with dynamic dimensions"
            ) from err


def _shape(port: Any, config: Config, settings: OpenvinoSettings) -> tuple[int, ...]:
    """The input's, of the file or, with RESHAPE_IO_LAYERS, of config.pbtxt; the first dimension is the batch's."""
    entry = next((each for each in config["input"] if each["name"] in port.names), None)
    batch = [config["max_batch_size"] if settings.fixed_batch else -1] if config["max_batch_size"] else []
    if entry and (settings.reshape or port.partial_shape.rank.is_dynamic):
        return table.configured_shape(entry, config["max_batch_size"], *batch)  # type: ignore[no-any-return]
    found = _known_shape(port)
    if batch and not found:
        raise ValueError(f"input '{port.get_any_name()}' has no dimension for batches: set max_batch_size 0")
    return (*batch, *found[len(batch) :])


def _known_shape(port: Any) -> tuple[int, ...]:
    """-1 for a variable dimension; ValueError when not even their number is known."""
    shape = port.partial_shape
    if shape.rank.is_dynamic:
        raise ValueError(
            f"tensor '{port.get_any_name()}' has any number of dimensions: list the tensors in config.pbtxt"
        )
    return tuple(-1 if size.is_dynamic else size.get_length() for size in shape)


def convert(model: Any, config: Config) -> Any:
    """The model with the datatypes of config.pbtxt at its inputs and outputs, as in NVIDIA's backend."""
    processor = PrePostProcessor(model)
    for side, ports, place in (("input", model.inputs, processor.input), ("output", model.outputs, processor.output)):
        for index, entry in ((index_of(each["name"], ports), each) for each in config[side]):
            wanted = KINDS.get(entry["data_type"])
            if index is not None and wanted and kind(ports[index]) in CONVERTED:
                place(index).tensor().set_element_type(getattr(openvino.Type, wanted))
    return processor.build()


def index_of(name: str, ports: Sequence[Any]) -> int | None:
    """The tensor that has it among its names."""
    return next((index for index, port in enumerate(ports) if name in port.names), None)


def kind(port: Any) -> str:
    """OpenVINO's word for the datatype."""
    return str(port.element_type.get_type_name())


def tensors(ports: Sequence[Any], entries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The inputs or outputs by the one of their names that config.pbtxt knows, else by OpenVINO's first."""
    known = {entry["name"] for entry in entries}
    names = {min(port.names & known, default=port.get_any_name()): port for port in ports}
    return {name: table.Tensor(name, kind(port), _known_shape(port), DATATYPES) for name, port in names.items()}


def fitted(file: Path, config: Config, settings: OpenvinoSettings) -> tuple[Any, set[str]]:
    """(the model as config.pbtxt asks for it, its inputs that are scalars); ValueError when the two disagree."""
    model = read(file, settings)
    fit(model, config, settings)
    model = convert(model, config)
    inputs, outputs = tensors(model.inputs, config["input"]), tensors(model.outputs, config["output"])
    for tensor in (*inputs.values(), *outputs.values()):
        tensor.datatype  # noqa: B018  # ValueError for strings
    table.check(config, inputs, outputs, batch=config["max_batch_size"] if settings.fixed_batch else -1)
    return model, {name for name, tensor in inputs.items() if not tensor.shape}


def complete(config: Config, file: Path) -> None:
    """Fills inputs, outputs and max_batch_size in place; ValueError when the model does not allow it."""
    settings = replace(OpenvinoSettings.from_config(config), fixed_batch=False)
    model = read(file, settings)
    fit(model, config, settings)
    table.complete(config, tensors(model.inputs, config["input"]), tensors(model.outputs, config["output"]))
