"""What is mended in the graph of a table's model: Triton knows tensors with a batch dimension, and nothing else."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper

from build_engines.errors import BuildError, UsageError, brief

ML = "ai.onnx.ml"  # the operators of scikit-learn's models; no GPU computes them
INSTEAD = "a model.py for Triton's Python backend can serve the model itself"
ROWS = (2, 3)  # of the runs that tell which dimensions vary
Class = int | str
Feed = Mapping[str, Any]


def is_table(model: onnx.ModelProto) -> bool:
    """Whether it is a model as skl2onnx and onnxmltools write it."""
    return any(node.domain == ML for node in model.graph.node)


def mend(model: onnx.ModelProto, rows: Feed | None = None) -> list[Class]:
    """Cuts ZipMap off and makes the first dimension of every tensor the batch's; the classes that ZipMap named, in the
    order of the probabilities. `rows` are at least three that the model knows. Raises UsageError where a model does not
    run on several rows."""
    classes = _cut_zip_map(model.graph)
    for value in model.graph.input:
        dims = value.type.tensor_type.shape.dim
        if len(dims) and dims[0].dim_value == 1:
            dims[0].Clear()
    _set_shapes(model, rows)
    return classes


def answer_booleans(model: onnx.ModelProto) -> None:
    """Make the first output, the numbers 0 and 1 of classes that are booleans, booleans."""
    output = model.graph.output[0]
    _rename(model.graph, output.name, f"{output.name}_number")
    model.graph.node.append(helper.make_node("Cast", [f"{output.name}_number"], [output.name], to=TensorProto.BOOL))
    output.type.tensor_type.elem_type = TensorProto.BOOL


def drop_unused_inputs(model: onnx.ModelProto) -> list[int]:
    """The places of the inputs that stay: those that a node reads."""
    inputs = list(model.graph.input)
    read = {name for node in model.graph.node for name in node.input}
    kept = [place for place, value in enumerate(inputs) if value.name in read]
    del model.graph.input[:]
    model.graph.input.extend(inputs[place] for place in kept)
    return kept


def _cut_zip_map(graph: onnx.GraphProto) -> list[Class]:
    """A ZipMap makes dictionaries of the probabilities, which are no tensors: its input takes its output's name."""
    zip_map = next((node for node in graph.node if node.op_type == "ZipMap" and node.domain == ML), None)
    if zip_map is None:
        return []
    outer = zip_map.output[0]
    graph.node.remove(zip_map)
    _rename(graph, zip_map.input[0], outer)
    for value in graph.output:
        if value.name == outer:
            value.CopyFrom(onnx.ValueInfoProto(name=outer))
    values = {attribute.name: helper.get_attribute_value(attribute) for attribute in zip_map.attribute}
    texts = [text.decode() for text in values.get("classlabels_strings", ())]
    return texts or [int(number) for number in values.get("classlabels_int64s", ())]


def rename_output(model: onnx.ModelProto, part: str, name: str) -> None:
    """Gives the output whose name has that part another name."""
    for value in model.graph.output:
        if part in value.name:
            _rename(model.graph, value.name, name)
            value.name = name


def _rename(graph: onnx.GraphProto, old: str, new: str) -> None:
    for node in graph.node:
        for names in (node.input, node.output):
            names[:] = [new if name == old else name for name in names]


def _set_shapes(model: onnx.ModelProto, rows: Feed | None) -> None:
    """The types and shapes of the outputs as runs have them: converters leave them out, or write those of one row."""
    for value in model.graph.output:
        if value.type.HasField("tensor_type"):
            value.ClearField("type")
    one, other = (_outputs(model, count, rows) for count in ROWS)
    for value, small, large in zip(model.graph.output, one, other, strict=True):
        if isinstance(small, np.ndarray):
            if (small.shape, large.shape) == tuple((1, count) for count in ROWS):  # of a discriminant analysis
                _rename(model.graph, value.name, f"{value.name}_row")
                model.graph.node.append(helper.make_node("Transpose", [f"{value.name}_row"], [value.name]))
                small, large = small.T, large.T
            dims = [a if a == b else None for a, b in zip(small.shape, large.shape, strict=True)]
            text = small.dtype.kind in "OSU"
            kind = TensorProto.STRING if text else helper.np_dtype_to_tensor_dtype(small.dtype)
            value.CopyFrom(helper.make_tensor_value_info(value.name, kind, dims))


def _outputs(model: onnx.ModelProto, count: int, rows: Feed | None) -> Sequence[Any]:
    try:
        if rows is not None:
            return run(model, {name: array[:count] for name, array in rows.items()})
        return run(model, {value.name: _blank(value, count) for value in model.graph.input})
    except Exception as err:  # ONNX Runtime's exceptions have no common base class
        if rows is not None:
            raise UsageError(f"its ONNX file does not run: {brief(err)}; {INSTEAD}") from err
        raise UsageError(
            f"the ONNX file does not run on {count} rows of zeros and empty strings ({brief(err)}); export it for any "
            "number of rows: FloatTensorType([None, columns]), and encoders with handle_unknown='ignore'"
        ) from err


def _blank(value: onnx.ValueInfoProto, rows: int) -> Any:
    tensor = value.type.tensor_type
    dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
    shape = [rows, *(dim.dim_value or 1 for dim in list(tensor.shape.dim)[1:])]
    return np.full(shape, "", object) if tensor.elem_type == TensorProto.STRING else np.zeros(shape, dtype)


def run(model: onnx.ModelProto, feed: Mapping[str, Any]) -> Sequence[Any]:
    """All outputs."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # converters write shapes that outputs do not have, which is mended here
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    outputs: Sequence[Any] = session.run(None, dict(feed))
    return outputs


def check_tensors(model: onnx.ModelProto) -> None:
    """BuildError for an output that is no tensor, such as the dictionaries of a classifier of several labels."""
    for value in model.graph.output:
        if not value.type.HasField("tensor_type"):
            raise BuildError(
                f"output '{value.name}' is no tensor, so Triton cannot serve it: export the model with "
                "options={'zipmap': False}"
            )
