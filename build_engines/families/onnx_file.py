"""A user's own ONNX file as a model folder: the configuration follows from its tensors, the client from a flag."""

import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from build_engines.errors import UsageError
from build_engines.model_folder.labels import write_labels
from build_engines.model_folder.spec import ModelSpec
from build_engines.request import REPOSITORY, Request
from build_engines.weights import onnx_files
from serving.inference.registry import families

MAX_BATCH_SIZE = 8
LABELS = "labels.txt"


def export(request: Request, path: Path, folder: Path) -> ModelSpec:
    """Copies the file, and the files with its weights, as 1/model.onnx."""
    model = onnx_files.read(path)
    shutil.copyfile(path, folder / "1" / "model.onnx")
    for file in onnx_files.external_files(model, path.parent):
        target = folder / "1" / file.relative_to(path.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return with_tensors(request, folder, spec_of_flags(request, folder, onnx_files.names_of(model)))


def spec_of_flags(request: Request, folder: Path, names: Sequence[str] = ()) -> ModelSpec:
    """Writes the labels, where no flag names any those of a detector's file, and the client's example; the ModelSpec,
    still without tensors."""
    client = client_of(request)
    labels = write_labels(folder / LABELS, names if client == "yolov5" else (), request.labels)
    for example in sorted((REPOSITORY / client).glob("example.*")) if client else ():
        shutil.copyfile(example, folder / example.name)
    return ModelSpec(
        client=client,
        max_batch_size=MAX_BATCH_SIZE,
        settings={"task": request.task} if request.task else {},
        labels=LABELS if labels and client == "resnet" else "",
    )


def client_of(request: Request) -> str:
    """The client of the flag, else of the recipe, else none; UsageError for an unknown one."""
    client = request.client or (request.recipe.client if request.recipe else "")
    if client and client not in families():
        raise UsageError(
            f"--client {client}: the clients are {', '.join(families())}; without one the model takes tensors"
        )
    return client


def with_tensors(request: Request, folder: Path, model_spec: ModelSpec) -> ModelSpec:
    """The ModelSpec with the tensors of its 1/model.onnx, and its batching.

    A model takes batches when the first dimension of all its tensors is variable; `max_batch_size` is the request's,
    else the ModelSpec's. Other models take no batches.
    """
    inputs, outputs = onnx_files.specs(onnx_files.read(folder / "1" / "model.onnx"))
    fixed = [spec for spec in (*inputs, *outputs) if spec.shape[:1] != (-1,)]
    if request.max_batch_size > 0 and fixed:
        raise UsageError(
            f"--max-batch-size {request.max_batch_size}: tensor '{fixed[0].name}' {list(fixed[0].shape)} has a fixed "
            "first dimension; export the model with a dynamic batch dimension, or leave the flag out"
        )
    batch = model_spec.max_batch_size if request.max_batch_size < 0 else request.max_batch_size
    if fixed or not batch:
        return _with_controls(request, replace(model_spec, inputs=inputs, outputs=outputs, max_batch_size=0))
    inputs, outputs = onnx_files.without_batch(inputs), onnx_files.without_batch(outputs)
    return _with_controls(request, replace(model_spec, inputs=inputs, outputs=outputs, max_batch_size=batch))


def _with_controls(request: Request, model_spec: ModelSpec) -> ModelSpec:
    """Removes the inputs that sequence batching fills from the callers' inputs."""
    given = dict(text.partition("=")[::2] for text in request.controls)
    inputs = {spec.name: spec for spec in model_spec.inputs}
    for kind, name in given.items():
        if kind not in ("start", "end", "ready", "corrid") or name not in inputs:
            raise UsageError(
                f"--sequence-control {kind}={name}: it is start, end, ready or corrid = one of {', '.join(inputs)}"
            )
    controls = {kind: inputs[name] for kind, name in given.items()}
    left = tuple(spec for spec in model_spec.inputs if spec not in controls.values())
    return replace(model_spec, inputs=left, controls=controls)
