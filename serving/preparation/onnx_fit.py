"""Does a config.pbtxt fit its ONNX file? The rules are those of Triton's ONNX Runtime backend.

backends/_shared/tensors.py has them for a load, where the first misfit ends it; here each is told, with what to write.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from serving.named_value import nearest
from serving.repository.model_config import datatype_name
from serving.repository.onnx_header import DATATYPES, Header, Port

Misfit = tuple[str, str]  # what is wrong, what to do


def misfits(config: Any, file: Header) -> Iterator[Misfit]:
    """One for each tensor, or one for the whole batching."""
    if batching := _batching(config, file):
        yield batching
        return
    named = {tensor.name for tensor in config.input} | _made_by_triton(config)
    if config.input:
        for name in file.inputs.keys() - named:
            yield f"the file has the input '{name}' and it has not", f"add {_entry('input', file.inputs[name], config)}"
    for tensor in config.input:
        yield from _tensor("input", tensor, config, {**file.optional, **file.inputs})
    for tensor in config.output:
        yield from _tensor("output", tensor, config, file.outputs)


def _made_by_triton(config: Any) -> set[str]:
    """Inputs that no caller sends."""
    sequences = config.sequence_batching
    made = {control.name for control in sequences.control_input} | {state.input_name for state in sequences.state}
    return made | {name for each in config.batch_input for name in each.target_name}


def _batching(config: Any, file: Header) -> Misfit | None:
    """Where max_batch_size and the first dimensions of the file's tensors do not go together."""
    ports = [*file.inputs.values(), *file.outputs.values()]
    fixed = [port for port in ports if port.shape is not None and port.shape[:1] != (-1,)]
    if config.max_batch_size > 0 and fixed:
        what = f"max_batch_size is {config.max_batch_size}, and the file's '{fixed[0].name}' is {_shape(fixed[0])}"
        return what, "say max_batch_size: 0 and whole dims, or export it with a first dimension that varies (dynamic)"
    given = {tensor.name: tuple(tensor.dims) for tensor in (*config.input, *config.output) if not _reshaped(tensor)}
    known = [(port, given[port.name]) for port in ports if port.name in given and port.shape is not None]
    without = [port for port, dims in known if port.shape is not None and _fits(dims, port.shape[1:])]
    if known and not config.max_batch_size and not fixed and len(without) == len(known):
        return f"its dims are without the first dimension of the file's {_shape(known[0][0])}", "say max_batch_size: 8"
    return None


def _tensor(way: str, tensor: Any, config: Any, found: Mapping[str, Port]) -> Iterator[Misfit]:
    place = f"{way} '{tensor.name}'"
    port = found.get(tensor.name)
    if port is None:
        near = nearest(tensor.name, found)
        remedy = f"did you mean '{near}'?" if near else f"it has {', '.join(sorted(found)) or 'none'}"
        yield f"the file has no {place}", remedy
        return
    datatype = datatype_name(tensor.data_type)
    if port.datatype not in DATATYPES.values():
        yield f"the file's {place} is a {port.datatype}, which Triton has not", _remedy(port)
    elif datatype != port.datatype:
        yield f"{place} is {datatype}, and the file's is {port.datatype}", f"say data_type: {_written(port.datatype)}"
    dims = tuple(tensor.reshape.shape if _reshaped(tensor) else tensor.dims)
    shape = (-1, *dims) if config.max_batch_size else dims
    if port.shape and not _fits(shape, port.shape):
        yield f"{place} has the dims {list(dims)}, and the file's is {_shape(port)}", f"say {_dims(port, config)}"


def _remedy(port: Port) -> str:
    if port.datatype == "sequence":  # of maps, from a classifier of scikit-learn
        return "convert it with zipmap off: to_onnx(…, options={'zipmap': False})"
    return "export it with tensors only"


def _fits(dims: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """A variable dimension of the file takes any size, a fixed one its own."""
    return len(dims) == len(shape) and all(theirs in (-1, ours) for ours, theirs in zip(dims, shape, strict=True))


def _reshaped(tensor: Any) -> bool:
    return bool(tensor.HasField("reshape"))


def _written(datatype: str) -> str:
    return f"TYPE_{datatype.replace('BYTES', 'STRING')}"


def _shape(port: Port) -> str:
    return str(list(port.shape or ()))


def _dims(port: Port, config: Any) -> str:
    shape = port.shape or ()
    return f"dims: {list(shape[1:] if config.max_batch_size else shape) or [1]}"


def _entry(way: str, port: Port, config: Any) -> str:
    return f'{way} {{ name: "{port.name}" data_type: {_written(port.datatype)} {_dims(port, config)} }}'
