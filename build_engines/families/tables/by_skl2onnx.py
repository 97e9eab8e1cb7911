"""Converts one step or model with skl2onnx, and adds its nodes to the graph of a tabular model."""

import re
from copy import copy
from typing import Any

from onnx import TensorProto

from build_engines.errors import BuildError, brief
from build_engines.families.tables.columns import models_within
from build_engines.families.tables.repair import INSTEAD, cut_zip_map
from build_engines.families.tables.trees import kind_of
from build_engines.onnx_writer import OPSETS, Graph

IF_UNIMPORTANT = "if that does not matter, convert the model with skl2onnx and build the ONNX file"


class TableGraph(Graph):
    """The graph of a tabular model. `skl2onnx_parts` are the class names of the steps and models
    that skl2onnx converted. `datatype` is the type in which these compute: FP64 or FP32."""

    def __init__(self, datatype: str) -> None:
        super().__init__()
        self.datatype = datatype
        self.skl2onnx_parts: list[str] = []


def insert(graph: TableGraph, model: Any, cells: str, width: int) -> dict[str, str]:
    """Add the nodes that compute the results of a step or model for `cells`, an FP64 matrix with
    `width` columns. Return {name of an output: its tensor}. The names are skl2onnx's, except that
    scores that are not probabilities are called "scores". Raise BuildError if skl2onnx cannot
    convert the model, or if there are trees inside it: skl2onnx rounds their numbers to FP32, in
    which ONNX Runtime then adds up their votes."""
    from skl2onnx import to_onnx
    from skl2onnx.common.data_types import DoubleTensorType, FloatTensorType

    _add_missing_zipmap_option()
    name = type(model).__name__
    if any(map(kind_of, models_within(model))):
        raise BuildError(
            f"trees inside a {name} are not converted exactly, and rounding can decide at a "
            f"threshold or between equal votes: {IF_UNIMPORTANT}; otherwise, {INSTEAD}"
        )
    graph.skl2onnx_parts.append(name)
    tensor_type = DoubleTensorType
    if graph.datatype == "FP32":
        tensor_type = FloatTensorType
        cells = graph.cast(cells, TensorProto.FLOAT)
    types = [("cells", tensor_type([None, width]))]
    try:
        part = to_onnx(_convertible(model), initial_types=types, target_opset=OPSETS)
    except Exception as err:  # the converters' errors have no common base class
        # two forms of skl2onnx's message name the class of a model that it cannot convert
        unknown = re.search(r"(?:^|for type ')<class '[\w.]*\.(\w+)'>", str(err))
        reason = f"skl2onnx does not know {unknown[1]}" if unknown else brief(err)
        raise BuildError(f"a {name} cannot be converted to ONNX: {reason}; {INSTEAD}") from err
    cut_zip_map(part.graph)
    outputs = graph.insert(part, cells)
    if hasattr(model, "predict_proba"):
        return outputs
    return {"scores" if "prob" in key else key: tensor for key, tensor in outputs.items()}


def _convertible(model: Any) -> Any:
    """Return a copy of the model, with the options replaced that skl2onnx does not convert
    correctly. This does not change the results that are served."""
    copied = copy(model)
    # an option of VotingClassifier.transform, which is not served
    if hasattr(copied, "flatten_transform"):
        copied.flatten_transform = False
    if getattr(copied, "encode", "") == "onehot":  # an option of KBinsDiscretizer
        copied.encode = "onehot-dense"
    return copied


def _add_missing_zipmap_option() -> None:
    """Add the option zipmap to the converter of LinearSVC, the only converter of a classifier that
    lacks it. skl2onnx sets this option for every classifier in a pipeline."""
    from skl2onnx.common._registration import get_converter

    get_converter("SklearnLinearSVC")._options["zipmap"] = [True, False, "columns"]
