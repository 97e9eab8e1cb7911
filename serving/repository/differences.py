"""Where configs/cpu.pbtxt says something else than config.pbtxt that has nothing to do with the machine.

Only one of them counts at a time, so what is changed in one of two whole files has no effect on half of the machines.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from serving.repository.layout import CONFIG, config_file
from serving.repository.model_config import DataType, is_whole, read_file, read_merged

# What these parameters say depends on the machine, as do those in capital letters and those with a dot (session.*).
MACHINE = {
    *("cpu_engine", "enable_mem_arena", "enable_mem_pattern", "execution_mode", "inter_op_thread_count"),
    *("intra_op_thread_count", "separate_runs"),
}
TENSOR = ("data_type", "dims", "label_filename")  # fields that a client sees


def contradiction(model: Path, device: str) -> str:
    """A line for the log; "" where there is nothing to say. Raises Unreadable."""
    file = config_file(model, device)
    if file == model / CONFIG or not (model / CONFIG).is_file():
        return ""
    base, own = read_file(model / CONFIG), read_file(file)
    found = list(_differences(base, read_merged(model, file), whole=is_whole(own)))
    if not found:
        return ""
    name = file.relative_to(model)
    remedy = f"let {name} say only what differs between machines, the rest is taken from {CONFIG}"
    return f"{model.name}: {name} counts here, and {CONFIG} says something else: {'; '.join(found)}; {remedy}"


def _differences(base: Any, here: Any, whole: bool) -> Iterator[str]:
    """What both say differently and, where the other file is whole, what it leaves out."""
    for name, value in sorted(base.parameters.items()):
        if name.isupper() or "." in name or name in MACHINE:
            continue
        if name in here.parameters and here.parameters[name] != value:
            yield f"parameter {name} '{here.parameters[name].string_value}', there '{value.string_value}'"
        elif name not in here.parameters and whole:
            yield f"no parameter {name}, there '{value.string_value}'"
    for way in ("input", "output"):
        there = {tensor.name: tensor for tensor in getattr(here, way)}
        for tensor in getattr(base, way):
            if tensor.name not in there:
                yield f"no {way} {tensor.name}"
            elif any(getattr(there[tensor.name], field, "") != getattr(tensor, field, "") for field in TENSOR):
                yield f"{way} {tensor.name} {_shown(there[tensor.name])}, there {_shown(tensor)}"


def _shown(tensor: Any) -> str:
    labels = getattr(tensor, "label_filename", "")
    return f"{DataType.Name(tensor.data_type)} {list(tensor.dims)}" + (f" with {labels}" if labels else "")
