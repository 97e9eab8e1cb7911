"""Builds an ONNX graph node by node, without torch."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, compose, helper, numpy_helper

Array = NDArray[Any]
Shape = Sequence[int | str | None]

ML = "ai.onnx.ml"  # the domain of the operators for scikit-learn's models, which no GPU supports
# The newest opset of each domain that all of skl2onnx's converters support. Triton 23.01 runs both.
# 17 is the first opset with LayerNormalization.
OPSETS = {"": 17, ML: 3}
IR_VERSION = 8  # the IR version of ONNX 1.12, which the ONNX Runtime of Triton 23.01 reads
INPUT_TYPES = {
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "INT64": TensorProto.INT64,
    "UINT8": TensorProto.UINT8,
    "BOOL": TensorProto.BOOL,
    "BYTES": TensorProto.STRING,
}


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with underscores appended until it is not in `taken`."""
    while name in taken:
        name += "_"
    return name


class Graph:
    """Collects inputs, nodes, constants and outputs. Inputs may have any names, such as those of a
    table's columns. Outputs of nodes, and constants without a `name`, get names that no input
    has."""

    def __init__(self) -> None:
        self.inputs: dict[str, onnx.ValueInfoProto] = {}
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, onnx.TensorProto] = {}
        self.outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str, datatype: str, shape: Shape) -> str:
        """Add an input, and return its name. Add all inputs before the first node."""
        self.inputs[name] = helper.make_tensor_value_info(name, INPUT_TYPES[datatype], shape)
        return name

    def add(self, operator: str, *inputs: Any, output: str = "", **attributes: Any) -> str:
        """Add a node. Each of its inputs is the name of a tensor, or a constant, which is an array
        or a number. Numbers become INT64 or FP64. Return the name of the node's output."""
        names = [value if isinstance(value, str) else self.constant(value) for value in inputs]
        output = free_name(output or f"{operator}_{len(self.nodes)}", self.inputs)
        self.nodes.append(helper.make_node(operator, names, [output], name=output, **attributes))
        return output

    def insert(self, part: onnx.ModelProto, tensor: str) -> dict[str, str]:
        """Add the nodes and constants of `part`, a model with one input, and connect this input to
        `tensor`. Return {name of an output in `part`: name of its tensor in this graph}."""
        prefix = f"part_{len(self.nodes)}_"
        while any(name.startswith(prefix) for name in self.inputs):
            prefix += "_"
        graph = compose.add_prefix(part, prefix).graph  # a copy
        (only_input,) = graph.input
        self.add("Identity", tensor, output=only_input.name)
        self.nodes += graph.node
        self.constants |= {constant.name: constant for constant in graph.initializer}
        names = [value.name for value in part.graph.output]
        tensors = [value.name for value in graph.output]
        return dict(zip(names, tensors, strict=True))

    def cast(self, tensor: str, kind: int) -> str:
        return self.add("Cast", tensor, to=kind)

    def constant(self, value: Any, name: str = "") -> str:
        """Add a constant, unless one with this `name` has been added. Return its name."""
        name = name or free_name(f"constant_{len(self.constants)}", self.inputs)
        if name not in self.constants:
            self.constants[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def output(self, name: str, shape: Shape | None = None) -> None:
        """Declare a tensor as an output. With a `shape`, it is FP32. Without one, its type stays
        open, and set_shapes in tables/repair.py determines it by running the model."""
        value = onnx.ValueInfoProto(name=name)
        if shape is not None:
            value = helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
        self.outputs.append(value)

    def model(self, name: str) -> onnx.ModelProto:
        """Return the complete ONNX model."""
        graph = helper.make_graph(
            self.nodes,
            name,
            list(self.inputs.values()),
            self.outputs,
            list(self.constants.values()),
        )
        domains = sorted({"", *(node.domain for node in self.nodes)})
        # ONNX Runtime's own domain has version 1
        opsets = [helper.make_opsetid(domain, OPSETS.get(domain, 1)) for domain in domains]
        return helper.make_model(
            graph, opset_imports=opsets, ir_version=IR_VERSION, producer_name="build_engines"
        )


class ImageGraph(Graph):
    """Builds a convolutional network. Its input `images` is UINT8 RGB [n, 3, side, side], and `x`
    is the normalized input, (pixel - mean) · scale."""

    def __init__(self, side: int, mean: float, scale: float) -> None:
        super().__init__()
        images = self.input("images", "UINT8", ["batch", 3, side, side])
        pixels = self.cast(images, TensorProto.FLOAT)
        centred = self.add("Sub", pixels, np.float32(mean))
        self.x = self.add("Mul", centred, np.float32(scale))

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Cut `x` along the axis into parts of these sizes, and return their names."""
        first = f"Split_{len(self.nodes)}"
        parts = [f"{first}_{index}" for index in range(len(sizes))]
        inputs = [x, self.constant(np.array(sizes, np.int64))]
        self.nodes.append(helper.make_node("Split", inputs, parts, name=parts[0], axis=axis))
        return parts

    def save(self, path: Path, output: str, shape: Sequence[int]) -> None:
        """Write the file. `output` is the tensor that the network returns, and `shape` is its shape
        without the batch dimension."""
        self.output(output, ["batch", *shape])
        model = self.model("network")
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)


def folded(weights: Array, norm: Mapping[str, Array], epsilon: float) -> tuple[Array, Array]:
    """Fold a batch norm into the convolution before it, which must have no bias. Return the
    convolution's new weights and its new bias."""
    gain = norm["gamma"] / np.sqrt(norm["variance"] + epsilon)
    bias = norm["beta"] - norm["mean"] * gain
    return weights * gain[:, None, None, None], bias
