"""Builds a model from a user's own TorchScript file. The inputs come from flags, and the outputs
from runs on random tensors. torch is imported only when it is used."""

import re
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from build_engines import onnx_reader
from build_engines.errors import BuildError, UsageError
from build_engines.families.family import Family
from build_engines.families.own_file import MAX_BATCH_SIZE, finished, run_random_rows
from build_engines.model_spec import TORCHSCRIPT, ModelSpec
from build_engines.request import Request
from build_engines.runners import example_feed
from build_engines.weights import Weights
from clients.base import Tensors, TensorSpec
from serving.triton.tensors import Tensor

_INPUT = re.compile(r"(?:([^:]+):)?([A-Z0-9]+):((?:-?\d+(?:,-?\d+)*)?)")


def write_model(family: Family, weights: Weights, request: Request, folder: Path) -> ModelSpec:
    """Copy the file to 1/model.pt, and return its ModelSpec. Raise UsageError for a missing or
    invalid --input, and BuildError if the file cannot be served with these inputs."""
    batch = MAX_BATCH_SIZE if request.max_batch_size < 0 else request.max_batch_size
    path = weights.path
    module = _read(path)
    inputs = parse_inputs(request.inputs)
    outputs = _output_specs(request, module, inputs, batching=batch > 0)
    shutil.copyfile(path, folder / "1" / "model.pt")
    spec = ModelSpec(inputs=inputs, outputs=outputs, max_batch_size=batch, platform=TORCHSCRIPT)
    findings = run_random_rows(family, partial(_run, module), spec)
    if batch and findings.mixes_rows:
        raise BuildError(
            f"{path}: rows have other answers together than alone, so the first dimension is not "
            "a batch: build it with --max-batch-size 0, and with all dimensions in --input"
        )
    return finished(family, request, folder, spec, findings)


def _run(module: Any, feed: Tensors) -> Tensors:
    """Run the module, and return its outputs, named OUTPUT__0 …."""
    import torch

    with torch.inference_mode():
        outputs = module(*map(torch.from_numpy, feed.values()))
    tensors = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    return {f"OUTPUT__{number}": tensor.numpy() for number, tensor in enumerate(tensors)}


def parse_inputs(texts: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Parse the inputs, each written as [NAME:]DATATYPE:DIMS, such as FP32:3,224,224, with -1 for a
    variable dimension. An input without a NAME is called INPUT__ and its index, as in Triton. Raise
    UsageError if a text is invalid, or if there are none."""
    if not texts:
        raise UsageError(
            "a TorchScript file does not declare its inputs: add --input FP32:3,224,224 for "
            "each of them (DATATYPE:DIMS, without the batch dimension)"
        )
    return tuple(_parse_input(text, number) for number, text in enumerate(texts))


def _parse_input(text: str, number: int) -> TensorSpec:
    match = _INPUT.fullmatch(text)
    if not match or match[2] not in onnx_reader.DATATYPES.values():
        raise UsageError(
            f"--input {text}: it is [NAME:]DATATYPE:DIMS, for example FP32:3,224,224 or INT64:-1"
        )
    dims = tuple(map(int, filter(None, match[3].split(","))))
    if any(size < 1 and size != -1 for size in dims):
        raise UsageError(f"--input {text}: a dimension is at least 1, or -1 if it varies")
    return TensorSpec(match[1] or f"INPUT__{number}", match[2], dims)


def _read(path: Path) -> Any:
    """Load the module. Raise BuildError if that fails, or if its forward() requires an argument
    that is not a tensor."""
    import torch

    try:
        module: Any = torch.jit.load(str(path), map_location="cpu").eval()
        arguments = module.forward.schema.arguments[1:]
    except (RuntimeError, AttributeError) as err:
        raise BuildError(
            f"{path} is not a TorchScript file with a forward: {str(err).strip().splitlines()[-1]}"
        ) from err
    for each in arguments:
        if "Tensor" not in str(each.type) and not each.has_default_value():
            raise BuildError(
                f"{path}: its forward takes '{each.name}' as {each.type}, but Triton only sends "
                "tensors: script a module around it in which that is a constant, or build "
                "its ONNX file"
            )
    return module


def _output_specs(
    request: Request, module: Any, inputs: tuple[TensorSpec, ...], batching: bool
) -> tuple[TensorSpec, ...]:
    """Run the module on random tensors, and return the specs of its outputs. A dimension is
    variable if it differs between two runs with different sizes. Raise BuildError if the module
    fails, or if `batching` is true and an output has no batch dimension."""
    model = ModelSpec(inputs=inputs, max_batch_size=int(batching))
    try:
        one = _run(module, example_feed(model, 2, 16))
        other = _run(module, example_feed(model, 3, 24))
    except (RuntimeError, ValueError, TypeError, AttributeError) as err:
        reason = str(err).strip().splitlines()[-1]
        raise BuildError(
            f"--input {' '.join(request.inputs)}: the file does not run on such tensors: {reason}"
        ) from err
    return tuple(_output_spec(name, one[name], other[name], batching) for name in one)


def _output_spec(name: str, one: Any, other: Any, batching: bool) -> TensorSpec:
    pairs = zip(one.shape, other.shape, strict=True)
    shape = tuple(a if a == b else -1 for a, b in pairs)
    if batching and shape[:1] != (-1,):
        raise BuildError(
            f"output '{name}' has no batch dimension; build it with --max-batch-size 0"
        )
    return TensorSpec(name, Tensor.of(name, one).datatype, shape[int(batching) :])
