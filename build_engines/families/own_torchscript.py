"""Builds a model from a user's own TorchScript file. The user describes the inputs with --input.
Runs on random tensors show what the outputs are. torch is imported only when it is used."""

import re
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from build_engines import onnx_reader
from build_engines.errors import BuildError, UsageError
from build_engines.families.family import Family
from build_engines.families.own_file import MAX_BATCH_SIZE, finish_model, run_random_rows
from build_engines.model_spec import TORCHSCRIPT, ModelSpec
from build_engines.request import Request
from build_engines.runners import example_feed
from build_engines.weights import Weights
from clients.base import Tensors, TensorSpec
from serving.triton.tensors import Tensor

# [NAME:]DATATYPE:DIMS
_INPUT = re.compile(r"(?:([^:]+):)?([A-Z0-9]+):((?:-?\d+(?:,-?\d+)*)?)")


def write_model(family: Family, weights: Weights, request: Request, folder: Path) -> ModelSpec:
    """Copy the file to 1/model.pt, and add the files of `finish_model`. Return the ModelSpec. Raise
    UsageError for a missing or invalid --input, and BuildError if the file cannot be served with
    these inputs."""
    largest_batch = request.max_batch_size
    if largest_batch < 0:  # the user did not set it
        largest_batch = MAX_BATCH_SIZE
    path = weights.path
    module = _read(path)
    inputs = parse_inputs(request.inputs)
    outputs = _output_specs(request, module, inputs, has_batches=largest_batch > 0)
    shutil.copyfile(path, folder / "1" / "model.pt")
    spec = ModelSpec(
        inputs=inputs, outputs=outputs, max_batch_size=largest_batch, platform=TORCHSCRIPT
    )
    findings = run_random_rows(family, partial(_run, module), spec)
    if findings.mixes_rows:
        raise BuildError(
            f"{path}: rows have other answers together than alone, so the first dimension is not "
            "a batch: build it with --max-batch-size 0, and with all dimensions in --input"
        )
    return finish_model(family, request, folder, spec, findings)


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
    name, datatype, dims = match.groups()
    sizes = dims.split(",") if dims else []  # a scalar has no dimensions
    shape = tuple(map(int, sizes))
    if any(size < 1 and size != -1 for size in shape):
        raise UsageError(f"--input {text}: a dimension is at least 1, or -1 if it varies")
    return TensorSpec(name or f"INPUT__{number}", datatype, shape)


def _read(path: Path) -> Any:
    """Load the module. Raise BuildError if that fails, or if its forward() requires an argument
    that is not a tensor."""
    import torch

    try:
        module: Any = torch.jit.load(str(path), map_location="cpu").eval()
        arguments = module.forward.schema.arguments[1:]  # without self
    except (RuntimeError, AttributeError) as err:
        raise BuildError(
            f"{path} is not a TorchScript file with a forward: {_reason(err)}"
        ) from err
    for argument in arguments:
        if "Tensor" not in str(argument.type) and not argument.has_default_value():
            raise BuildError(
                f"{path}: its forward takes '{argument.name}' as {argument.type}, but Triton only "
                "sends tensors: script a module around it in which that is a constant, or build "
                "its ONNX file"
            )
    return module


def _reason(err: Exception) -> str:
    """Return the last line of torch's error. The lines before it are TorchScript's traceback."""
    return str(err).strip().splitlines()[-1]


def _output_specs(
    request: Request, module: Any, inputs: tuple[TensorSpec, ...], has_batches: bool
) -> tuple[TensorSpec, ...]:
    """Run the module on random tensors, and return the specs of its outputs. A dimension is
    variable if it differs between two runs with different sizes. Raise BuildError if the module
    fails, or if `has_batches` is true and an output has no batch dimension."""
    # `example_feed` reads from max_batch_size only whether there are batches
    model = ModelSpec(inputs=inputs, max_batch_size=int(has_batches))
    try:
        small = _run(module, example_feed(model, 2, 16))
        large = _run(module, example_feed(model, 3, 24))
    except (RuntimeError, ValueError, TypeError, AttributeError) as err:
        raise BuildError(
            f"--input {' '.join(request.inputs)}: the file does not run on such tensors: "
            f"{_reason(err)}"
        ) from err
    if [array.ndim for array in small.values()] != [array.ndim for array in large.values()]:
        raise BuildError(
            "how many outputs the file has, or how many dimensions they have, depends on the sizes "
            "of its inputs, which Triton cannot serve: script a module around it"
        )
    return tuple(_output_spec(name, small[name], large[name], has_batches) for name in small)


def _output_spec(name: str, small: Any, large: Any, has_batches: bool) -> TensorSpec:
    """Return the spec of an output, without the batch dimension if `has_batches`. `small` and
    `large` are the output of two runs with different sizes. Raise BuildError if the output should
    have a batch dimension, but its first dimension did not vary."""
    sizes = zip(small.shape, large.shape, strict=True)
    shape = tuple(size if size == other else -1 for size, other in sizes)
    if has_batches and shape[:1] != (-1,):
        raise BuildError(
            f"output '{name}' has no batch dimension; build it with --max-batch-size 0"
        )
    if has_batches:
        shape = shape[1:]
    return TensorSpec(name, Tensor.of(name, small).datatype, shape)
