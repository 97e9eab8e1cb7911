"""Writes ONNX graphs with onnx's helpers, without torch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

Array = NDArray[Any]

OPSET = 17  # the first with LayerNormalization
IR_VERSION = 8  # opset 17's own: older runtimes read it too


class Graph:
    """Collects nodes and initializers. Every method returns the name of the tensor that it adds."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: dict[str, onnx.TensorProto] = {}

    def add(self, operator: str, *inputs: str, output: str = "", **attributes: Any) -> str:
        output = output or f"{operator}_{len(self.nodes)}"
        self.nodes.append(
            helper.make_node(operator, list(inputs), [output], name=output, **attributes)
        )
        return output

    def constant(self, name: str, value: Any) -> str:
        """Add an initializer; only once, even if it is used several times."""
        if name not in self.initializers:
            self.initializers[name] = numpy_helper.from_array(np.asarray(value, order="C"), name)
        return name

    def model(
        self,
        name: str,
        inputs: Sequence[onnx.ValueInfoProto],
        outputs: Sequence[onnx.ValueInfoProto],
    ) -> onnx.ModelProto:
        """Return the whole model."""
        graph = helper.make_graph(
            self.nodes, name, inputs, outputs, list(self.initializers.values())
        )
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(
            graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="build_engines"
        )


class ImageGraph(Graph):
    """A convolutional network that takes `images`, UINT8 RGB [n, 3, side, side]; `x` is (pixel -
    mean) · scale."""

    def __init__(self, side: int, mean: float, scale: float) -> None:
        super().__init__()
        self.input = helper.make_tensor_value_info(
            "images", TensorProto.UINT8, ["batch", 3, side, side]
        )
        pixels = self.add("Cast", "images", to=TensorProto.FLOAT)
        self.x = self.add(
            "Mul",
            self.add("Sub", pixels, self.value(np.float32(mean))),
            self.value(np.float32(scale)),
        )

    def value(self, value: Any) -> str:
        """Add a constant under a name of its own."""
        return self.constant(f"constant_{len(self.initializers)}", value)

    def split(self, x: str, sizes: Sequence[int], axis: int) -> list[str]:
        """Cut `x` along the axis into parts of these sizes, and return their names."""
        parts = [f"Split_{len(self.nodes)}_{index}" for index in range(len(sizes))]
        lengths = self.value(np.array(sizes, np.int64))
        self.nodes.append(helper.make_node("Split", [x, lengths], parts, name=parts[0], axis=axis))
        return parts

    def save(self, path: Path, output: str, shape: Sequence[int]) -> None:
        """Write the file; `output` is the tensor that the network returns, `shape` its shape
        without the batch."""
        last = helper.make_tensor_value_info(output, TensorProto.FLOAT, ["batch", *shape])
        model = self.model("network", [self.input], [last])
        onnx.checker.check_model(model, full_check=True)
        onnx.save(model, path)


def folded(weights: Array, norm: Mapping[str, Array], epsilon: float) -> tuple[Array, Array]:
    """Return the weights and the bias of a convolution that computes its batch norm too."""
    gain = norm["gamma"] / np.sqrt(norm["variance"] + epsilon)
    return weights * gain[:, None, None, None], norm["beta"] - norm["mean"] * gain
