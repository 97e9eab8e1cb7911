"""The tensors of an ONNX file, and config.pbtxt completed by them and checked against them (_shared/tensors.py).

`session` is an onnxruntime.InferenceSession, `config` the configuration that Triton passes to a backend.
"""

from collections.abc import Iterable
from typing import Any

import tensors as table  # type: ignore[import-not-found]  # Triton's stub puts this folder on its path

Config = dict[str, Any]

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DATATYPES = {f"tensor({name})": f"TYPE_{name.upper()}" for name in INTEGERS} | {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}


def tensors(nodes: Iterable[Any]) -> dict[str, Any]:
    """The session's inputs or outputs by name."""
    shapes = {n.name: tuple(size if isinstance(size, int) else -1 for size in n.shape) for n in nodes}
    return {n.name: table.Tensor(n.name, n.type, shapes[n.name], DATATYPES) for n in nodes}


def complete(config: Config, session: Any) -> None:
    """Fills inputs, outputs and max_batch_size in place; ValueError when the file does not allow it."""
    table.complete(config, tensors(session.get_inputs()), tensors(session.get_outputs()))


def check(config: Config, session: Any) -> None:
    """ValueError when config.pbtxt and the ONNX file disagree."""
    optional = tensors(session.get_overridable_initializers())
    table.check(config, tensors(session.get_inputs()), tensors(session.get_outputs()), optional)
