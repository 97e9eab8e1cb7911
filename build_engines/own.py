"""A user's own ONNX or TorchScript file as a model folder: its tensors tell the configuration, a flag the client."""

import re
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from build_engines import onnx_files
from build_engines.draft import TORCHSCRIPT, BuildError, Draft, UsageError
from build_engines.recipes import REPOSITORY, Request
from clients.base import TensorSpec
from serving.inference.registry import families
from serving.triton.tensors import numpy_dtype

MAX_BATCH_SIZE = 8
LABELS = "labels.txt"
_INPUT = re.compile(r"(?:([^:]+):)?([A-Z0-9]+):((?:-?\d+(?:,-?\d+)*)?)")


def onnx_draft(request: Request, path: Path, folder: Path) -> Draft:
    """Copies the file, and those that hold its weights, as 1/model.onnx."""
    model = onnx_files.read(path)
    shutil.copyfile(path, folder / "1" / "model.onnx")
    for file in onnx_files.external_files(model, path.parent):
        target = folder / "1" / file.relative_to(path.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    return describe(request, folder, _empty(request, folder))


def _empty(request: Request, folder: Path) -> Draft:
    """A draft without tensors: the client, its labels and its example."""
    client = client_of(request)
    labels = write_labels(folder / LABELS, (), request.labels)
    for example in sorted((REPOSITORY / client).glob("example.*")) if client else ():
        shutil.copyfile(example, folder / example.name)
    task = {"task": request.task} if request.task else {}
    return Draft(client, (), (), MAX_BATCH_SIZE, task, labels=LABELS if labels and client == "resnet" else "")


def client_of(request: Request) -> str:
    """The flag's, else the recipe's, else none; UsageError for an unknown one."""
    client = request.client or (request.recipe.client if request.recipe else "")
    if client and client not in families():
        raise UsageError(
            f"--client {client}: the clients are {', '.join(families())}; without one the model takes tensors"
        )
    return client


def describe(request: Request, folder: Path, draft: Draft) -> Draft:
    """The draft with the tensors of its 1/model.onnx, and its batching.

    `max_batch_size` of the request goes first; else a model whose tensors all have a free first dimension has the
    draft's, and another one none.
    """
    inputs, outputs = onnx_files.specs(onnx_files.read(folder / "1" / "model.onnx"))
    fixed = [spec for spec in (*inputs, *outputs) if spec.shape[:1] != (-1,)]
    if request.max_batch_size > 0 and fixed:
        raise UsageError(
            f"--max-batch-size {request.max_batch_size}: tensor '{fixed[0].name}' {list(fixed[0].shape)} has a fixed "
            "first dimension; export the model with a dynamic batch dimension, or leave the flag out"
        )
    batch = draft.max_batch_size if request.max_batch_size < 0 else request.max_batch_size
    if fixed or not batch:
        return _with_controls(request, replace(draft, inputs=inputs, outputs=outputs, max_batch_size=0))
    inputs, outputs = onnx_files.without_batch(inputs), onnx_files.without_batch(outputs)
    return _with_controls(request, replace(draft, inputs=inputs, outputs=outputs, max_batch_size=batch))


def _with_controls(request: Request, draft: Draft) -> Draft:
    """Takes the inputs that sequence batching fills out of the callers'."""
    given = dict(text.partition("=")[::2] for text in request.controls)
    inputs = {spec.name: spec for spec in draft.inputs}
    for kind, name in given.items():
        if kind not in ("start", "end", "ready", "corrid") or name not in inputs:
            raise UsageError(
                f"--sequence-control {kind}={name}: it is start, end, ready or corrid = one of {', '.join(inputs)}"
            )
    controls = {kind: inputs[name] for kind, name in given.items()}
    left = tuple(spec for spec in draft.inputs if spec not in controls.values())
    return replace(draft, inputs=left, controls=controls)


def torchscript_draft(request: Request, path: Path, folder: Path) -> Draft:
    """Copies the file as 1/model.pt; the inputs come from flags, the outputs from a run on zeros."""
    batch = MAX_BATCH_SIZE if request.max_batch_size < 0 else request.max_batch_size
    inputs = parse_inputs(request.inputs)
    outputs = _run_torchscript(path, inputs, batching=batch > 0)
    shutil.copyfile(path, folder / "1" / "model.pt")
    draft = replace(_empty(request, folder), inputs=inputs, outputs=outputs, max_batch_size=batch)
    return replace(draft, platform=TORCHSCRIPT)


def parse_inputs(texts: Sequence[str]) -> tuple[TensorSpec, ...]:
    """[NAME:]DATATYPE:DIMS as FP32:3,224,224, -1 where one varies; the names are Triton's INPUT__0 … without one."""
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
    """The outputs as OUTPUT__0 …; a dimension that differs between two runs of different sizes varies."""
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

    shape = (*([batch] if batch else []), *(length if size == -1 else size for size in spec.shape))
    return torch.zeros(shape, dtype=getattr(torch, numpy_dtype(spec.datatype).name))


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


def write_labels(target: Path, labels: Sequence[str], file: Path | None) -> bool:
    """One label a line, those of `file` first; whether there are any. BuildError when the file cannot be read."""
    if file:
        try:
            labels = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as err:
            raise UsageError(f"--labels {file}: {err}") from err
    if labels:
        target.write_text("".join(f"{label}\n" for label in labels), encoding="utf-8")
    return bool(labels)
