"""Reads an ONNX file's inputs and outputs, its metadata, and the names of the other files that hold
its weights."""

import ast
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
from google.protobuf.message import DecodeError
from onnx import TensorProto

from build_engines.errors import BuildError
from clients.base import TensorSpec

LONGEST_ENTRY = 10**6  # maximum number of characters of a metadata entry that are parsed
TO_SCORES = ("Softmax", "Sigmoid", "HardSigmoid")  # operators that turn logits into scores
# operators that return scores if they are given scores
KEEPING_SCORES = (
    "Cast",
    "DequantizeLinear",
    "Dropout",
    "Flatten",
    "Gather",
    "Identity",
    "QuantizeLinear",
    "Reshape",
    "Slice",
    "Split",
    "Squeeze",
    "Transpose",
    "Unsqueeze",
)
DATATYPES = {
    **{getattr(TensorProto, kind): kind for kind in ("INT8", "INT16", "INT32", "INT64", "BOOL")},
    **{getattr(TensorProto, kind): kind for kind in ("UINT8", "UINT16", "UINT32", "UINT64")},
    TensorProto.FLOAT: "FP32",
    TensorProto.DOUBLE: "FP64",
    TensorProto.FLOAT16: "FP16",
    TensorProto.BFLOAT16: "BF16",
    TensorProto.STRING: "BYTES",
}


def read(path: Path) -> onnx.ModelProto:
    """Return the file's model, without weights from other files. Raise BuildError if the file
    cannot be read or is not an ONNX file."""
    try:
        model = onnx.load(path, load_external_data=False)
    except (DecodeError, OSError) as err:
        raise BuildError(f"{path} cannot be read as an ONNX file: {err}") from err
    if not model.graph.node:
        raise BuildError(f"{path} is not an ONNX file: it has no graph")
    return model


Specs = tuple[TensorSpec, ...]


def specs(model: onnx.ModelProto) -> tuple[Specs, Specs]:
    """Return the inputs, except weights, and the outputs as the file declares them, including their
    first dimension. A variable dimension is -1. Raise BuildError for a tensor without a shape, or
    of a type that Triton does not have."""
    weights = {tensor.name for tensor in model.graph.initializer}
    inputs = [value for value in model.graph.input if value.name not in weights]
    return _specs(inputs), _specs(model.graph.output)


def _specs(values: Iterable[onnx.ValueInfoProto]) -> tuple[TensorSpec, ...]:
    return tuple(_spec(value) for value in values)


def _spec(value: onnx.ValueInfoProto) -> TensorSpec:
    tensor = value.type.tensor_type
    if tensor.elem_type not in DATATYPES:
        raise BuildError(
            f"tensor '{value.name}' has a type that Triton does not have (ONNX type "
            f"{tensor.elem_type})"
        )
    if not tensor.HasField("shape"):
        raise BuildError(
            f"tensor '{value.name}' has no shape in the ONNX file; export it with shapes"
        )
    sizes = [dim.dim_value for dim in tensor.shape.dim]
    shape = tuple(size if size > 0 else -1 for size in sizes)
    return TensorSpec(value.name, DATATYPES[tensor.elem_type], shape)


def with_computed_sizes(
    shapes: Mapping[str, Sequence[object]], outputs: Iterable[TensorSpec]
) -> Specs:
    """Return the outputs. If the file declares a dimension as variable, but ONNX Runtime computes a
    size for it (in `shapes`), that size is used, because Triton's backend compares config.pbtxt
    with it."""
    return tuple(_with_sizes(spec, shapes[spec.name]) for spec in outputs)


def _with_sizes(spec: TensorSpec, computed: Sequence[object]) -> TensorSpec:
    if len(computed) != len(spec.shape):  # the file's shape is wrong
        return spec
    shape = list(spec.shape)
    for index, size in enumerate(computed):
        if shape[index] == -1 and isinstance(size, int):
            shape[index] = size
    return replace(spec, shape=tuple(shape))


def without_batch(tensors: Iterable[TensorSpec]) -> Specs:
    """Return the same tensors without their first dimension."""
    return tuple(replace(spec, shape=spec.shape[1:]) for spec in tensors)


def names_of(model: onnx.ModelProto) -> tuple[str, ...]:
    """Return the class names in the file's metadata, or () if there are none. Ultralytics' exporter
    writes them as {0: 'person', …}."""
    names = _metadata(model, "names")
    try:
        return tuple(str(names[index]) for index in range(len(names)))
    except (TypeError, KeyError):
        return ()


def keypoints_of(model: onnx.ModelProto) -> str:
    """Return the number of keypoints of a box and the number of values of a keypoint, such as
    "17,3", or "" if the file does not say. Ultralytics' exporter writes them as kpt_shape."""
    return ",".join(map(str, _integers(model, "kpt_shape")))


def size_of(model: onnx.ModelProto) -> int:
    """Return the longer side of the images for which a detector's file was exported, or 0 if the
    file does not say. Ultralytics' exporter writes it as imgsz."""
    return max(_integers(model, "imgsz"), default=0)


def _integers(model: onnx.ModelProto, key: str) -> list[int]:
    """Return the integers in a metadata entry, or [] if it is missing or contains anything else."""
    value = _metadata(model, key)
    values = list(value) if isinstance(value, list | tuple) else [value]
    are_integers = all(isinstance(number, int) for number in values)
    return values if are_integers else []


def _metadata(model: onnx.ModelProto, key: str) -> Any:
    """Return the value of a metadata entry, or None if it is missing or not a Python literal."""
    texts = [entry.value for entry in model.metadata_props if entry.key == key]
    if not texts:
        return None
    try:
        return ast.literal_eval(texts[0][:LONGEST_ENTRY])
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None


def makes_scores(model: onnx.ModelProto, output: str) -> bool:
    """Return whether the output comes from a softmax or a sigmoid, so that it holds scores rather
    than logits."""
    makers = {name: node for node in model.graph.node for name in node.output}
    node = makers.get(output)
    for _ in makers:  # limits the number of steps, because an invalid graph may have a cycle
        if node is None or node.op_type not in KEEPING_SCORES:
            break
        node = makers.get(node.input[0])
    return bool(node and node.op_type in TO_SCORES)


def external_files(model: onnx.ModelProto, folder: Path) -> list[Path]:
    """Return the files, other than the ONNX file itself, that hold the graph's weights. Raise
    BuildError if one is missing or outside of `folder`."""
    names = set()
    for tensor in model.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            names |= {entry.value for entry in tensor.external_data if entry.key == "location"}
    files = [folder / name for name in sorted(names)]
    for file in files:
        if not file.resolve().is_relative_to(folder.resolve()):
            raise BuildError(f"the ONNX file names weights outside of its folder: {file}")
        if not file.is_file():
            raise BuildError(
                f"the ONNX file has its weights in {file}, which does not exist; put it "
                "beside the file"
            )
    return files
