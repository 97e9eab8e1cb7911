"""A user's own TorchScript file as a model folder: flags give its inputs, a run on zeros gives its outputs."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from build_engines.errors import BuildError, UsageError
from build_engines.families.onnx_file import MAX_BATCH_SIZE, spec_of_flags
from build_engines.model_folder.spec import TORCHSCRIPT, ModelSpec, full_shape
from build_engines.request import Request
from build_engines.weights import onnx_files
from clients.base import TensorSpec
from serving.triton.tensors import numpy_dtype

_INPUT = re.compile(r"(?:([^:]+):)?([A-Z0-9]+):((?:-?\d+(?:,-?\d+)*)?)")


def export(request: Request, path: Path, folder: Path) -> ModelSpec:
    """Copies the file as 1/model.pt; the inputs come from flags, the outputs from a run on zeros."""
    batch = MAX_BATCH_SIZE if request.max_batch_size < 0 else request.max_batch_size
    inputs = parse_inputs(request.inputs)
    outputs = _run_torchscript(path, inputs, batching=batch > 0)
    shutil.copyfile(path, folder / "1" / "model.pt")
    model_spec = spec_of_flags(request, folder)
    return replace(model_spec, inputs=inputs, outputs=outputs, max_batch_size=batch, platform=TORCHSCRIPT)


def parse_inputs(texts: Sequence[str]) -> tuple[TensorSpec, ...]:
    """The inputs from [NAME:]DATATYPE:DIMS, such as FP32:3,224,224, with -1 for a variable dimension; without a NAME,
    Triton's INPUT__0 …"""
    if not texts:
        raise UsageError(
            "a TorchScript file does not say what it takes: add --input FP32:3,224,224 for each input "
            "(DATATYPE:DIMS, without the batch dimension)"
        )
    return tuple(_parse_input(text, number) for number, text in enumerate(texts))


def _parse_input(text: str, number: int) -> TensorSpec:
    found = _INPUT.fullmatch(text)
    if not found or found[2] not in onnx_files.DATATYPES.values():
        raise UsageError(f"--input {text}: it is [NAME:]DATATYPE:DIMS, for example FP32:3,224,224 or INT64:-1")
    dims = tuple(int(size) for size in found[3].split(",") if size)
    if any(size < 1 and size != -1 for size in dims):
        raise UsageError(f"--input {text}: a dimension is a number from 1, or -1 where it varies")
    return TensorSpec(found[1] or f"INPUT__{number}", found[2], dims)


def _run_torchscript(path: Path, inputs: Sequence[TensorSpec], batching: bool) -> tuple[TensorSpec, ...]:
    """The outputs as OUTPUT__0 …; a dimension is variable if it differs between two runs with different sizes."""
    import torch

    shapes = []
    try:
        module = torch.jit.load(str(path), map_location="cpu").eval()
        for batch, length in ((2, 16), (3, 24)):
            feeds = [_zeros(spec, batch if batching else 0, length) for spec in inputs]
            with torch.inference_mode():
                outputs = module(*feeds)
            tensors = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
            shapes.append([(tuple(tensor.shape), _datatype(tensor)) for tensor in tensors])
    except (RuntimeError, ValueError, TypeError, AttributeError) as err:
        reason = str(err).strip().splitlines()[-1]
        raise BuildError(f"{path} does not run on zeros of the inputs {_written(inputs)}: {reason}") from err
    found = enumerate(zip(*shapes, strict=True))
    return tuple(_output(number, one, other, batching) for number, (one, other) in found)


def _zeros(spec: TensorSpec, batch: int, length: int) -> object:
    import torch

    return torch.zeros(full_shape(spec, batch, length), dtype=getattr(torch, numpy_dtype(spec.datatype).name))


def _datatype(tensor: object) -> str:
    names = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "bfloat16": "BF16"}
    name = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
    return names.get(name, name.upper())


def _output(
    number: int, one: tuple[tuple[int, ...], str], other: tuple[tuple[int, ...], str], batching: bool
) -> TensorSpec:
    shape = tuple(a if a == b else -1 for a, b in zip(one[0], other[0], strict=True))
    if batching and shape[:1] != (-1,):
        raise BuildError(f"output {number} has no batch dimension; build it with --max-batch-size 0")
    return TensorSpec(f"OUTPUT__{number}", one[1], shape[1:] if batching else shape)


def _written(inputs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.datatype}:{','.join(map(str, spec.shape))}" for spec in inputs)
