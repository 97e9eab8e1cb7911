"""Completes a ModelSpec with the tensors of an ONNX file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from build_engines import onnx_reader
from build_engines.errors import BuildError, UsageError
from build_engines.model_spec import ModelSpec
from build_engines.request import Request
from build_engines.runners import OnnxFile


def open_file(file: Path) -> OnnxFile | None:
    """Open the file in ONNX Runtime. Return None if that fails. If the build later loads the model
    in tritonserver, the error says why."""
    try:
        return OnnxFile(file)
    except BuildError:
        return None


def with_tensors(request: Request, folder: Path, model_spec: ModelSpec) -> ModelSpec:
    """Return `model_spec`, completed with the tensors of 1/model.onnx in `folder` and with the
    maximum batch size."""
    file = folder / "1" / "model.onnx"
    return with_tensors_of(request, onnx_reader.read(file), open_file(file), model_spec)


def with_tensors_of(
    request: Request, graph: Any, opened: OnnxFile | None, model_spec: ModelSpec
) -> ModelSpec:
    """Return `model_spec`, completed with the tensors of the `graph` and with the maximum batch
    size. If the graph leaves a size of an output open, it comes from `opened`, the same model in
    ONNX Runtime, which may compute it.

    A model takes batches if the first dimension of all its tensors is variable. Its
    `max_batch_size` comes from the request, or else from the ModelSpec. Other models take no
    batches: raise UsageError if the request has a `max_batch_size` above 0.
    """
    inputs, outputs = onnx_reader.specs(graph)
    if opened:
        outputs = onnx_reader.with_computed_sizes(opened.outputs, outputs)
    tensors = [*inputs, *outputs]
    fixed = [spec for spec in tensors if spec.shape[:1] != (-1,)]
    if request.max_batch_size > 0 and fixed:
        raise UsageError(
            f"--max-batch-size {request.max_batch_size}: tensor '{fixed[0].name}' "
            f"{list(fixed[0].shape)} has a fixed first dimension; export the model with a "
            "dynamic batch dimension, or leave the flag out"
        )
    largest_batch = request.max_batch_size
    if largest_batch < 0:  # the user did not set it
        largest_batch = model_spec.max_batch_size
    if fixed or not largest_batch:
        return replace(model_spec, inputs=inputs, outputs=outputs, max_batch_size=0)
    inputs, outputs = onnx_reader.without_batch(inputs), onnx_reader.without_batch(outputs)
    return replace(model_spec, inputs=inputs, outputs=outputs, max_batch_size=largest_batch)
