"""A user's own ONNX or TorchScript file as a model folder.

The tensors of an ONNX file are read from it. Those of a TorchScript file come from flags and from a
run on zeros.
"""

import re
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from build_engines.errors import BuildError, UsageError
from build_engines.families.text_folder import EXAMPLES, copy_tokenizer, write_example
from build_engines.model_folder import TORCHSCRIPT, ModelSpec, full_shape, write_labels
from build_engines.request import REPOSITORY, Request
from build_engines.runners import Runner, example_feed, onnx_runner
from build_engines.weights import onnx_files
from clients.base import Model, Tensors, TensorSpec
from serving.clients import TASKS, families, family, make_client
from serving.errors import ConfigError, InvalidRequest
from serving.triton.tensors import numpy_dtype

MAX_BATCH_SIZE = 8
LABELS = "labels.txt"
ROWS, LENGTHS, ALIKE = (
    3,
    (32, 1024),
    0.01,
)  # random rows that run together, their free sizes, how near they answer alone
DETECTOR, CLASSIFIER = "yolov5", "resnet"
GREY, PHOTOS = "resnet", {CLASSIFIER: "efficientnet", DETECTOR: "yolov4_tiny"}  # with examples
SIDE = 224  # pixels of a classifier's free sides
FEW_BOXES, LEAST_PIXELS = 1000, 32
_INPUT = re.compile(r"(?:([^:]+):)?([A-Z0-9]+):((?:-?\d+(?:,-?\d+)*)?)")
TEXTS = "bert"  # the client that reads a tokenizer
# Clients, and tasks of texts, that turn logits into scores -> whether they have the setting
# `activation`.
OF_LOGITS = {
    **dict.fromkeys(("resnet", "text-classification", "text-ranking"), True),
    **dict.fromkeys(
        ("zero-shot-classification", "token-classification", "fill-mask", "question-answering"),
        False,
    ),
    "detr": False,
}


def export(request: Request, path: Path, folder: Path) -> ModelSpec:
    """Copy the file as 1/model.onnx, with the files that hold its weights."""
    model = onnx_files.read(path)
    shutil.copyfile(path, folder / "1" / "model.onnx")
    for file in onnx_files.external_files(model, path.parent):
        target = folder / "1" / file.relative_to(path.parent)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    spec = spec_of_flags(request, folder, onnx_files.names_of(model))
    if spec.client == DETECTOR and (keypoints := onnx_files.keypoints_of(model)):
        spec = replace(spec, settings={**spec.settings, "keypoints": keypoints})
    whole = with_tensors(request, folder, spec)
    load = partial(onnx_runner, folder / "1" / "model.onnx")
    if whole.max_batch_size and _mixes_rows(load, whole):
        if request.max_batch_size > 0:
            raise UsageError(
                f"--max-batch-size {request.max_batch_size}: rows that run together answer "
                "as none does alone"
            )
        whole = with_tensors(replace(request, max_batch_size=0), folder, spec)
    spec = _with_size(request, whole, onnx_files.size_of(model))
    _check_boxes(load, spec)
    _copy_example(folder, spec)
    return _with_scores(request, folder, model, spec)


def _check_boxes(load: Callable[[], Runner], spec: ModelSpec) -> None:
    """Raise BuildError if the boxes of a random image are not in pixels: YOLOX's are offsets in
    cells of a grid. A file that does not run, or whose few boxes may be only those of detected
    objects, is accepted."""
    if spec.client != DETECTOR:
        return
    try:
        rows = load()(_random_feed(spec, 1, int(spec.settings.get("size", 640))))[
            spec.outputs[0].name
        ][0]
        boxes = np.abs(rows[:, :4] if len(rows) > rows.shape[1] else rows[:4].T)
    except Exception:  # ONNX Runtime's exceptions have no common base class
        return
    if len(boxes) > FEW_BOXES and 0 < boxes.max() < LEAST_PIXELS:
        raise BuildError(
            f"the boxes in '{spec.outputs[0].name}' are not in pixels (at most "
            f"{boxes.max():.1f}), as YOLOX's and normalized ones are: build it without "
            "--client, and decode them in a client of your own (docs/clients.md)"
        )


def _mixes_rows(load: Callable[[], Runner], spec: ModelSpec) -> bool:
    """Return whether random rows get other answers together than alone: then the first dimension is
    not a batch, although it varies, but time, for example. Return False if the file does not run on
    them."""
    for length in LENGTHS:
        with suppress(Exception):  # ONNX Runtime's and torch's have no common base class
            feed = _random_feed(spec, ROWS, length)
            run = load()
            together = run(feed)
            alone = [
                run({name: array[row : row + 1] for name, array in feed.items()})
                for row in range(ROWS)
            ]
            return not all(
                _alike(each, np.concatenate([row[name] for row in alone]))
                for name, each in together.items()
            )
    return False


def _alike(a: Any, b: Any) -> bool:
    """Return whether two arrays are the same, up to rounding, which can change a few of the
    integers that are computed from floats."""
    if a.shape != b.shape or a.dtype.kind != "f":
        return bool(a.shape == b.shape and np.count_nonzero(a != b) <= ALIKE * a.size)
    return np.allclose(a, b, rtol=0, atol=ALIKE * np.abs(b).max(initial=0))


def _with_size(request: Request, spec: ModelSpec, trained: int = 0) -> ModelSpec:
    """Return the ModelSpec with the setting `size`: of the flag, else the `trained` one of a
    detector's file, if the input's height and width are free. Raise UsageError for a flag without
    effect."""
    sides = spec.inputs[0].shape[-3:] if spec.inputs else ()
    takes_size = bool(spec.client) and any(
        each.name == "size" for each in family(spec.client).settings
    )
    is_free = takes_size and sides.count(-1) >= 2
    if request.size and not is_free and not (takes_size and sides.count(request.size) == 2):
        what = (
            "the network takes no image through a client"
            if not takes_size
            else f"its input is {list(sides)}"
        )
        raise UsageError(
            f"--size {request.size} has no effect: {what}; leave the flag out, or export "
            "another size"
        )
    size = request.size or (trained if spec.client == DETECTOR else 0)
    return (
        replace(spec, settings={**spec.settings, "size": str(size)}) if is_free and size else spec
    )


def _with_scores(
    request: Request, folder: Path, graph: onnx.ModelProto, spec: ModelSpec
) -> ModelSpec:
    """Return the ModelSpec with its output of scores first, and with `activation` none if the file
    makes scores of its logits itself. Raise BuildError if it does so and the client has no such
    setting."""
    settings = {**spec.settings, **request.settings}
    kind = settings.get("task", "") if spec.client == TEXTS else spec.client
    if kind not in OF_LOGITS:
        return spec
    try:
        client = make_client(
            Model(
                spec.client,
                folder,
                spec.inputs,
                spec.outputs,
                spec.max_batch_size,
                {**settings, "client": spec.client},
            )
        )
    except (ConfigError, InvalidRequest, OSError):  # the check of the finished folder says why
        return spec
    name = client.outputs[0] if client else ""
    spec = replace(spec, outputs=tuple(sorted(spec.outputs, key=lambda each: each.name != name)))
    operator = onnx_files.squashed_by(graph, name)
    if not operator or "activation" in settings:
        return spec
    if not OF_LOGITS[kind]:
        raise BuildError(
            f"the file's output '{name}' ends in {operator}, and {kind} computes its scores "
            f"from logits: export the network without its last {operator}"
        )
    return replace(spec, settings={**spec.settings, "activation": "none"})


def spec_of_flags(request: Request, folder: Path, names: Sequence[str] = ()) -> ModelSpec:
    """Write the labels (of the flag, else of the file), and a text client's tokenizer and example.
    Return the ModelSpec, still without tensors."""
    client = client_of(request)
    _copy_tokenizer(request, client, folder)
    names = names if client in (DETECTOR, CLASSIFIER) else ()
    labels = write_labels(folder / LABELS, names, request.labels)
    return ModelSpec(
        client=client,
        max_batch_size=MAX_BATCH_SIZE,
        settings=({"task": request.task} if request.task else {})
        | ({"labels": LABELS} if labels and client == TEXTS else {}),
        labels=LABELS if labels and client == CLASSIFIER else "",
    )


def _copy_example(folder: Path, spec: ModelSpec) -> None:
    """Copy the example of the client, or a photo if the network takes colours."""
    if spec.client in ("", TEXTS):
        return
    sides = spec.inputs[0].shape[-3:] if spec.inputs else ()
    is_grey = 1 in (*sides[:1], *sides[-1:])
    name = GREY if spec.client == CLASSIFIER and is_grey else PHOTOS.get(spec.client, spec.client)
    for example in (REPOSITORY / name).glob("example.*"):
        shutil.copyfile(example, folder / example.name)


def _copy_tokenizer(request: Request, client: str, folder: Path) -> None:
    """Copy the folder that --tokenizer names into the model's, and write an example. Raise
    UsageError if the flag is missing or not allowed."""
    if client != TEXTS:
        if request.tokenizer:
            raise UsageError(f"--tokenizer is for --client {TEXTS}")
        return
    if not request.tokenizer or not request.tokenizer.is_dir():
        raise UsageError(
            f"--client {TEXTS} takes --tokenizer FOLDER, the folder of the tokenizer's files"
        )
    if request.task and request.task not in EXAMPLES:
        raise UsageError(f"--task {request.task}: the tasks are {', '.join(EXAMPLES)}")
    copy_tokenizer(request.tokenizer, folder / "tokenizer")
    write_example(folder, request.task or "embedding")


def client_of(request: Request) -> str:
    """Return the client of the flag, else of the recipe, else none. Raise UsageError for an unknown
    one."""
    client = request.client or (request.recipe.client if request.recipe else "")
    if client and client not in families():
        names = ", ".join([*families(), *TASKS])
        raise UsageError(
            f"--client {client}: the clients are {names}; without one the model takes tensors"
        )
    return client


def with_tensors(request: Request, folder: Path, model_spec: ModelSpec) -> ModelSpec:
    """Return the ModelSpec with the tensors of its 1/model.onnx, and its batching.

    A model takes batches when the first dimension of all its tensors is variable; `max_batch_size`
    is the request's, else the ModelSpec's. Other models take no batches.
    """
    file = folder / "1" / "model.onnx"
    inputs, outputs = onnx_files.specs(onnx_files.read(file))
    outputs = onnx_files.computed(file, outputs)
    fixed = [spec for spec in (*inputs, *outputs) if spec.shape[:1] != (-1,)]
    if request.max_batch_size > 0 and fixed:
        raise UsageError(
            f"--max-batch-size {request.max_batch_size}: tensor '{fixed[0].name}' "
            f"{list(fixed[0].shape)} has a fixed first dimension; export the model with a "
            "dynamic batch dimension, or leave the flag out"
        )
    batch = model_spec.max_batch_size if request.max_batch_size < 0 else request.max_batch_size
    if fixed or not batch:
        return replace(model_spec, inputs=inputs, outputs=outputs, max_batch_size=0)
    inputs, outputs = onnx_files.without_batch(inputs), onnx_files.without_batch(outputs)
    return replace(model_spec, inputs=inputs, outputs=outputs, max_batch_size=batch)


def export_torchscript(request: Request, path: Path, folder: Path) -> ModelSpec:
    """Copy the file as 1/model.pt. The inputs come from flags, the outputs from a run on zeros."""
    batch = MAX_BATCH_SIZE if request.max_batch_size < 0 else request.max_batch_size
    module = _read_torchscript(path)
    inputs = parse_inputs(request.inputs)
    outputs = _run_torchscript(path, module, inputs, batching=batch > 0)
    shutil.copyfile(path, folder / "1" / "model.pt")
    model_spec = spec_of_flags(request, folder)
    spec = replace(
        model_spec, inputs=inputs, outputs=outputs, max_batch_size=batch, platform=TORCHSCRIPT
    )
    run = partial(_torch_outputs, module)
    if batch and _mixes_rows(lambda: run, spec):
        raise BuildError(
            f"{path}: rows that run together answer as none does alone, so the first "
            "dimension is no batch: build it with --max-batch-size 0, and with all "
            "dimensions in --input"
        )
    spec = _with_size(request, spec)
    _check_boxes(lambda: run, spec)
    _copy_example(folder, spec)
    if (
        spec.client == CLASSIFIER
        and "activation" not in request.settings
        and _makes_scores(module, run, spec)
    ):
        spec = replace(spec, settings={**spec.settings, "activation": "none"})
    return spec


def _makes_scores(module: Any, run: Runner, spec: ModelSpec) -> bool:
    """Return whether a classifier's scores sum to 1 for random images, or its last step is a
    sigmoid."""
    with suppress(Exception):  # torch's have no common base class
        (scores, *_) = run(_random_feed(spec, ROWS, SIDE)).values()
        if scores.min() >= 0 and np.allclose(scores.sum(-1), 1, atol=1e-3):
            return True
    graph = module.inlined_graph  # its nodes end with it
    return str(next(graph.outputs()).node().kind()) == "aten::sigmoid"


def _random_feed(spec: ModelSpec, rows: int, length: int) -> Tensors:
    return example_feed(
        Model("", Path(), spec.inputs, spec.outputs, spec.max_batch_size, {}), rows, length
    )


def _torch_outputs(module: Any, feed: Tensors) -> Tensors:
    import torch

    with torch.inference_mode():
        outputs = module(*map(torch.from_numpy, feed.values()))
    tensors = [outputs] if isinstance(outputs, torch.Tensor) else outputs
    return {f"OUTPUT__{number}": tensor.numpy() for number, tensor in enumerate(tensors)}


def parse_inputs(texts: Sequence[str]) -> tuple[TensorSpec, ...]:
    """Return the inputs that are written as [NAME:]DATATYPE:DIMS, such as FP32:3,224,224, with -1
    for a variable dimension; without a NAME they are Triton's INPUT__0 …"""
    if not texts:
        raise UsageError(
            "a TorchScript file does not say what it takes: add --input FP32:3,224,224 for "
            "each input (DATATYPE:DIMS, without the batch dimension)"
        )
    return tuple(_parse_input(text, number) for number, text in enumerate(texts))


def _parse_input(text: str, number: int) -> TensorSpec:
    match = _INPUT.fullmatch(text)
    if not match or match[2] not in onnx_files.DATATYPES.values():
        raise UsageError(
            f"--input {text}: it is [NAME:]DATATYPE:DIMS, for example FP32:3,224,224 or INT64:-1"
        )
    dims = tuple(int(size) for size in match[3].split(",") if size)
    if any(size < 1 and size != -1 for size in dims):
        raise UsageError(f"--input {text}: a dimension is a number from 1, or -1 where it varies")
    return TensorSpec(match[1] or f"INPUT__{number}", match[2], dims)


def _read_torchscript(path: Path) -> Any:
    """Return the module. Raise BuildError if its forward takes something other than tensors."""
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
                f"{path}: its forward takes '{each.name}' as {each.type}, and Triton sends "
                "tensors: script a module around it that has it as a constant, or build its "
                "ONNX file"
            )
    return module


def _run_torchscript(
    path: Path, module: Any, inputs: Sequence[TensorSpec], batching: bool
) -> tuple[TensorSpec, ...]:
    """Return the outputs as OUTPUT__0 …. A dimension is variable if it differs between two runs
    with different sizes."""
    import torch

    shapes = []
    try:
        for batch, length in ((2, 16), (3, 24)):
            feeds = [_zeros(spec, batch if batching else 0, length) for spec in inputs]
            with torch.inference_mode():
                outputs = module(*feeds)
            tensors = [outputs] if isinstance(outputs, torch.Tensor) else list(outputs)
            shapes.append([(tuple(tensor.shape), _datatype(tensor)) for tensor in tensors])
    except (RuntimeError, ValueError, TypeError, AttributeError) as err:
        reason = str(err).strip().splitlines()[-1]
        raise BuildError(
            f"{path} does not run on zeros of the inputs {_written(inputs)}: {reason}"
        ) from err
    pairs = enumerate(zip(*shapes, strict=True))
    return tuple(_output(number, one, other, batching) for number, (one, other) in pairs)


def _zeros(spec: TensorSpec, batch: int, length: int) -> object:
    import torch

    return torch.zeros(
        full_shape(spec, batch, length), dtype=getattr(torch, numpy_dtype(spec.datatype).name)
    )


def _datatype(tensor: object) -> str:
    names = {"float32": "FP32", "float64": "FP64", "float16": "FP16", "bfloat16": "BF16"}
    name = str(getattr(tensor, "dtype", "")).removeprefix("torch.")
    return names.get(name, name.upper())


def _output(
    number: int,
    one: tuple[tuple[int, ...], str],
    other: tuple[tuple[int, ...], str],
    batching: bool,
) -> TensorSpec:
    shape = tuple(a if a == b else -1 for a, b in zip(one[0], other[0], strict=True))
    if batching and shape[:1] != (-1,):
        raise BuildError(
            f"output {number} has no batch dimension; build it with --max-batch-size 0"
        )
    return TensorSpec(f"OUTPUT__{number}", one[1], shape[1:] if batching else shape)


def _written(inputs: Sequence[TensorSpec]) -> str:
    return ", ".join(f"{spec.datatype}:{','.join(map(str, spec.shape))}" for spec in inputs)
