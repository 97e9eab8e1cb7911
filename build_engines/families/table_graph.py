"""Builds an ONNX graph node by node."""

from collections.abc import Collection
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ML = "ai.onnx.ml"  # the operators of scikit-learn's models; no GPU computes them
# the newest that all of skl2onnx's converters support; Triton 23.01 runs them
OPSETS = {"": 17, ML: 3}
IR_VERSION = 8  # of ONNX 1.12, which the ONNX Runtime of Triton 23.01 reads
INPUT_TYPES = {
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "INT64": TensorProto.INT64,
    "BOOL": TensorProto.BOOL,
    "BYTES": TensorProto.STRING,
}


def free_name(name: str, taken: Collection[str]) -> str:
    """Return the name, with underscores appended as long as it is taken."""
    while name in taken:
        name += "_"
    return name


class Graph:
    """Collects nodes and constants. Inputs have the names of columns, which may be any, so other
    tensors avoid these names."""

    def __init__(self) -> None:
        self.inputs: list[onnx.ValueInfoProto] = []
        self._columns: set[str] = set()
        self._nodes: list[onnx.NodeProto] = []
        self._constants: list[onnx.TensorProto] = []

    def input(self, name: str, datatype: str, width: int) -> str:
        """Add an input [rows, width]. All inputs come before the first node."""
        kind = INPUT_TYPES[datatype]
        self.inputs.append(helper.make_tensor_value_info(name, kind, [None, width]))
        self._columns.add(name)
        return name

    def add(self, operator: str, *inputs: Any, domain: str = "", **attributes: Any) -> str:
        """Add a node, whose inputs are names of tensors, or arrays. Return the name of its
        output."""
        names = [each if isinstance(each, str) else self._constant(each) for each in inputs]
        output = free_name(f"{operator}_{len(self._nodes)}", self._columns)
        self._nodes.append(helper.make_node(operator, names, [output], domain=domain, **attributes))
        return output

    def cast(self, tensor: str, kind: int) -> str:
        return self.add("Cast", tensor, to=kind)

    def _constant(self, value: Any) -> str:
        name = free_name(f"constant_{len(self._constants)}", self._columns)
        self._constants.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def model(self, outputs: dict[str, str]) -> onnx.ModelProto:
        """Return the model. `outputs` has the tensor of each output's name; a name that a column
        has is changed. The outputs have no types yet; those come from a run (table_onnx.mend)."""
        outputs = {free_name(name, self._columns): tensor for name, tensor in outputs.items()}
        named = [helper.make_node("Identity", [tensor], [name]) for name, tensor in outputs.items()]
        graph = helper.make_graph(
            [*self._nodes, *named],
            "table",
            self.inputs,
            [onnx.ValueInfoProto(name=name) for name in outputs],
            self._constants,
        )
        opsets = [helper.make_opsetid(domain, version) for domain, version in OPSETS.items()]
        return helper.make_model(graph, opset_imports=opsets, ir_version=IR_VERSION)
