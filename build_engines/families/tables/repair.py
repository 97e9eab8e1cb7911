"""Repairs the ONNX graphs of tabular models so that Triton can serve them: all outputs become
tensors with a batch dimension."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from build_engines.errors import BuildError, UsageError, brief
from build_engines.onnx_writer import ML

BATCH_SIZE = 1024  # maximum number of rows in a batch; a row takes microseconds
INSTEAD = "a model.py for Triton's Python backend can serve the model itself"
EXPORT_REMEDY = (
    "export it for any number of rows: FloatTensorType([None, 1]) for each number, "
    "StringTensorType([None, 1]) for each text, and encoders with handle_unknown='ignore'"
)
ROWS = (2, 3)  # numbers of rows in the two runs that show which dimensions vary
Class = int | str
Feed = Mapping[str, Any]


def has_operators(model: onnx.ModelProto) -> bool:
    """Return whether the model has operators that only converters such as skl2onnx and onnxmltools
    write."""
    return any(node.domain == ML for node in model.graph.node)


def mend(model: onnx.ModelProto) -> list[Class]:
    """Remove ZipMap, make the first dimension of inputs variable if it is 1, and set the outputs'
    shapes. Return the classes that ZipMap listed, in the order of the probabilities, or [] without
    ZipMap. Raise UsageError if the model does not run on several rows."""
    classes = cut_zip_map(model.graph)
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if len(dims) and dims[0].dim_value == 1:
            dims[0].Clear()
    rows = {value.name: _blank_rows(value) for value in model.graph.input}
    set_shapes(model, rows, EXPORT_REMEDY)
    return classes


def drop_unused_inputs(model: onnx.ModelProto) -> list[int]:
    """Remove the inputs that no node reads. Return the indices of the others."""
    inputs = list(model.graph.input)
    read = {name for node in model.graph.node for name in node.input}
    kept = [index for index, value in enumerate(inputs) if value.name in read]
    del model.graph.input[:]
    model.graph.input.extend(inputs[index] for index in kept)
    return kept


def cut_zip_map(graph: onnx.GraphProto) -> list[Class]:
    """Remove ZipMap, which turns probabilities into dictionaries. The tensor of probabilities gets
    the name of ZipMap's output. Return the classes that ZipMap listed, or [] without ZipMap."""
    zip_map = next(
        (node for node in graph.node if node.op_type == "ZipMap" and node.domain == ML), None
    )
    if zip_map is None:
        return []
    outer = zip_map.output[0]
    graph.node.remove(zip_map)
    _rename(graph, zip_map.input[0], outer)
    for value in graph.output:
        if value.name == outer:
            value.ClearField("type")  # set_shapes sets the new type
    values = {
        attribute.name: helper.get_attribute_value(attribute) for attribute in zip_map.attribute
    }
    texts = [text.decode() for text in values.get("classlabels_strings", ())]
    return texts or [int(number) for number in values.get("classlabels_int64s", ())]


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def set_shapes(model: onnx.ModelProto, rows: Feed, remedy: str = INSTEAD) -> None:
    """Set the types and shapes of the outputs, because converters omit them or write the shapes for
    one row. To find them, run the model on the first two, and then on the first three, of the
    `rows`. Transpose an output that has the predictions for all rows in one row. Raise UsageError,
    with the `remedy`, if the model does not run."""
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.ClearField("type")
    runs = []
    for count in ROWS:
        first = {name: array[:count] for name, array in rows.items()}
        try:
            runs.append(run(model, first))
        except Exception as err:  # ONNX Runtime's exceptions have no common base class
            raise UsageError(f"the ONNX file does not run: {brief(err)}; {remedy}") from err
    for value, small, large in zip(model.graph.output, *runs, strict=True):
        if not isinstance(small, np.ndarray):
            continue  # dictionaries, which check_tensors refuses
        # skl2onnx's discriminant analysis returns all predictions in one row
        if [small.shape, large.shape] == [(1, count) for count in ROWS]:
            row = f"{value.name}_row"
            _rename(model.graph, value.name, row)
            model.graph.node.append(helper.make_node("Transpose", [row], [value.name]))
            small, large = small.T, large.T
        sizes = zip(small.shape, large.shape, strict=True)
        dims = [size if size == other else None for size, other in sizes]
        kind = TensorProto.STRING
        if small.dtype.kind not in "OSU":
            kind = helper.np_dtype_to_tensor_dtype(small.dtype)
        value.CopyFrom(helper.make_tensor_value_info(value.name, kind, dims))


def _blank_rows(value: onnx.ValueInfoProto) -> Any:
    """Return rows of zeros or empty strings for an input."""
    tensor = value.type.tensor_type
    shape = [dim.dim_value or 1 for dim in tensor.shape.dim]
    shape[:1] = [max(ROWS)]  # the number of rows, even if the input has no dimension
    if tensor.elem_type == TensorProto.STRING:
        return np.full(shape, "", object)
    return np.zeros(shape, helper.tensor_dtype_to_np_dtype(tensor.elem_type))


def run(model: onnx.ModelProto, feed: Mapping[str, Any]) -> Sequence[Any]:
    """Run the model on `feed`, and return all outputs."""
    options = onnxruntime.SessionOptions()
    # hide the warnings about wrong shapes of outputs, which `set_shapes` corrects
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    outputs: Sequence[Any] = session.run(None, dict(feed))
    return outputs


def check_tensors(model: onnx.ModelProto) -> None:
    """Raise BuildError if an output is not a tensor, but, for example, the dictionaries of a
    classifier with several labels."""
    for value in model.graph.output:
        if not value.type.HasField("tensor_type"):
            raise BuildError(
                f"output '{value.name}' is not a tensor, so Triton cannot serve it: export "
                "the model with options={'zipmap': False}"
            )
