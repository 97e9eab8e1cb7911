"""Quantizes a model to INT8 for a CPU, with ONNX Runtime's quantizer.

In families with `static_int8`, convolutions become static INT8 (QDQ, per channel, calibrated). A
detector's last convolutions, and the decoding after them, stay in fp32: boxes and scores share one
tensor there, and a common scale would lower mAP50-95 by 0.05. For ONNX Runtime, the operators
between convolutions become INT8 too. For OpenVINO they stay in fp32, because OpenVINO fuses a
convolution, its activation and the quantization of the next convolution's input only if nothing
between them is quantized.

In other models, ONNX Runtime's quantizer makes every operator that it supports, mainly the matrix
products, dynamic INT8. For OpenVINO, which has no fast kernel for dynamic INT8, MatMul becomes
static, calibrated INT8.

Weights have 7 bits (the quantizer's `reduce_range`). A processor without VNNI adds two products of
UINT8 and INT8 in an INT16, which 8-bit weights can overflow: 2 * 255 * 127 is more than 32,767.
"""

import logging
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path
from typing import Any

import onnx
from onnxruntime.quantization import (
    CalibrationDataReader,
    QuantFormat,
    QuantType,
    quantize_dynamic,
    quantize_static,
)
from onnxruntime.quantization.shape_inference import quant_pre_process

from build_engines.engines.calibration import calibration_batches, client_in
from build_engines.errors import BuildError
from build_engines.families.find_family import by_client
from build_engines.model_spec import ModelSpec
from build_engines.onnx_reader import external_files
from build_engines.request import Request
from build_engines.runners import OnnxFile
from serving.repository.cpu_engine import ONNX_RUNTIME, OPENVINO

CONVOLUTIONS_AND_BETWEEN = (
    "Conv",
    "Relu",
    "Sigmoid",
    "Mul",
    "Add",
    "Concat",
    "MaxPool",
    "Resize",
    "GlobalAveragePool",
)
MATRICES = ("MatMul",)
OPERATORS = {ONNX_RUNTIME: CONVOLUTIONS_AND_BETWEEN, OPENVINO: ("Conv",)}


def quantize(
    model_spec: ModelSpec, folder: Path, request: Request, engine: str = ONNX_RUNTIME
) -> None:
    """Quantize `folder`/1/model.onnx in place for `engine`, ONNX_RUNTIME or OPENVINO. Raise
    BuildError if the model has no operator to quantize, if it cannot be calibrated, or if the
    result cannot be loaded."""
    file = folder / "1" / "model.onnx"
    _embed_weights(file)
    with tempfile.TemporaryDirectory() as scratch, _only_errors_logged():
        prepared, target = Path(scratch) / "prepared.onnx", Path(scratch) / "int8.onnx"
        quant_pre_process(str(file), str(prepared), skip_symbolic_shape=True)
        client = client_in(folder, model_spec)
        family = by_client(model_spec.client)
        if client and (family.static_int8 or engine == OPENVINO):
            batches = calibration_batches(client, request)
            operators = OPERATORS[engine] if family.static_int8 else MATRICES
            _static(prepared, target, batches, family.fp32_head, operators)
        elif engine == OPENVINO:
            raise BuildError(
                "INT8 for OpenVINO is calibrated on instances that a client reads: name one "
                "with --client"
            )
        else:
            _dynamic(prepared, target)
        shutil.copyfile(target, file)
    _remove_unused_opsets(file)
    OnnxFile(file)  # raises BuildError if the file cannot be loaded


def _embed_weights(path: Path) -> None:
    """Move weights that are in other files into the ONNX file, because the quantizer does not find
    them."""
    files = external_files(onnx.load(path, load_external_data=False), path.parent)
    if files:
        onnx.save(onnx.load(path), path)
    for file in files:
        file.unlink()


def _static(
    source: Path,
    target: Path,
    batches: CalibrationDataReader,
    fp32_head: bool,
    operators: Sequence[str],
) -> None:
    """Quantize `source` statically, and write it to `target`. Quantize the nodes of the types
    `operators`, except those before the first node of type `operators[0]` and, if `fp32_head` is
    true, the `_head_nodes`. If there is only one type, which is the case for OpenVINO, quantize
    only the inputs of its nodes, not their outputs. Raise BuildError if there is no node of type
    `operators[0]`."""
    graph = onnx.load(source, load_external_data=False).graph
    if not any(node.op_type == operators[0] for node in graph.node):
        raise BuildError(f"INT8 quantizes {operators[0]}, and this model has no such operator")
    excluded = _nodes_before(graph, operators[0])
    if fp32_head:
        excluded += _head_nodes(graph)
    inputs_only = list(operators) if len(operators) == 1 else []
    quantize_static(
        str(source),
        str(target),
        batches,
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        op_types_to_quantize=list(operators),
        nodes_to_exclude=excluded,
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,  # x86 multiplies UINT8 by INT8 fastest
        reduce_range=True,  # 7-bit weights
        extra_options={"OpTypesToExcludeOutputQuantization": inputs_only},
    )


def _nodes_before(graph: Any, first: str) -> list[str]:
    """Return the names of the nodes before the first node of the type `first`, in the graph's
    order. The nodes before the first convolution normalize pixels, where INT8 would lose precision
    and save no time."""
    return [node.name for node in takewhile(lambda node: node.op_type != first, graph.node)]


def _head_nodes(graph: Any) -> list[str]:
    """Return the names of the head's nodes: the convolutions that no other convolution depends on,
    and all nodes that depend on them."""
    before: set[str] = set()  # tensors from which a convolution is computed
    for node in reversed(graph.node):
        if node.op_type == "Conv" or before.intersection(node.output):
            before.update(node.input)
    behind: set[str] = set()  # tensors computed from the last convolutions
    names = []
    for node in graph.node:
        is_last = node.op_type == "Conv" and not before.intersection(node.output)
        if is_last or behind.intersection(node.input):
            behind.update(node.output)
            names.append(node.name)
    return names


def _dynamic(source: Path, target: Path) -> None:
    """Quantize `source` dynamically, and write it to `target`. `source` itself is changed by
    `_copy_shared_matrices`. Raise BuildError if it has no matrix product."""
    graph = onnx.load(source, load_external_data=False).graph
    if not any(node.op_type in ("MatMul", "Gemm") for node in graph.node):
        raise BuildError(
            "dynamic INT8 quantizes matrix products, and this model has none; with --client "
            "image-classification or object-detection its convolutions are quantized"
        )
    _copy_shared_matrices(source)
    quantize_dynamic(str(source), str(target), per_channel=True, reduce_range=True)


def _copy_shared_matrices(path: Path) -> None:
    """Give each Gemm a copy of its matrix if other nodes read the matrix too, because the quantizer
    transposes a Gemm's matrix in place. BERT's word embeddings, for example, are also the last
    matrix of its language model."""
    model = onnx.load(path)
    uses = Counter(name for node in model.graph.node for name in node.input)
    matrices = {tensor.name: tensor for tensor in model.graph.initializer}
    for node in model.graph.node:
        if node.op_type != "Gemm":
            continue
        name = node.input[1]
        if name in matrices and uses[name] > 1:
            copy = model.graph.initializer.add()
            copy.CopyFrom(matrices[name])
            copy.name = f"{name}.{node.name}"
            node.input[1] = copy.name
    onnx.save(model, path)


def _remove_unused_opsets(path: Path) -> None:
    """Remove the operator sets that no node uses, because older runtimes may not know them."""
    model = onnx.load(path)
    used = {node.domain for node in model.graph.node} | {""}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    onnx.save(model, path)


@contextmanager
def _only_errors_logged() -> Iterator[None]:
    """Log only errors in this context. Otherwise the quantizer would recommend preprocessing the
    model, although that has been done."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
