"""Engines for a CPU, by ONNX Runtime: fp32 as it is, INT8 where that keeps the accuracy.

Images: static INT8 (QDQ, per channel, calibrated) of the convolutions and of what lies between them. A detector's last
convolutions and the decoding behind them stay in fp32: boxes and scores share one tensor there, and one scale for both
costs 0.05 of mAP50-95. Texts: dynamic INT8 of the matrices. fp16 is no faster than fp32 on any CPU that was measured.
"""

import logging
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_dynamic, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from build_engines import running, samples, verification
from build_engines.draft import ONNX, TORCHSCRIPT, BuildError, Draft, Engine, UsageError
from build_engines.progress import over
from build_engines.recipes import Request
from clients.base import Model, ModelClient, Tensors
from serving.inference.registry import make_client

BETWEEN = ("Conv", "Relu", "Sigmoid", "Mul", "Add", "Concat", "MaxPool", "Resize", "GlobalAveragePool")
STATIC = {"resnet", "yolov5"}  # clients of images
KEEPS_HEAD = {"yolov5"}  # clients whose models' last convolutions stay in fp32
FASTER = 1.2  # how much faster INT8 must be, for auto to take it
NO_FP16 = "fp16 is no faster than fp32 on a CPU (ONNX Runtime computes it in fp32): take fp32, int8, or --for tensorrt"


def build(draft: Draft, folder: Path, request: Request) -> Engine:
    """Leaves 1/model.onnx in the precision that is asked for."""
    if request.precision == "fp16":
        raise UsageError(NO_FP16)
    facts = {"onnxruntime": onnxruntime.__version__}
    if draft.platform == TORCHSCRIPT:
        if request.precision == "int8":
            raise UsageError("a TorchScript file is served as it is: quantise it in torch, or export it as ONNX")
        return Engine(TORCHSCRIPT, "fp32")
    if request.precision == "int8":
        model = quantized(draft, folder, request)
        model.replace(folder / "1" / "model.onnx")
        return Engine(ONNX, "int8", facts, cpu_only=True)
    if request.precision == "auto":
        return _faster(draft, folder, request, facts)
    return Engine(ONNX, "fp32")


def bound_to() -> dict[str, str]:
    """What of the machine decides whether an engine is up to date: nothing."""
    return {}


def _faster(draft: Draft, folder: Path, request: Request, facts: dict[str, str]) -> Engine:
    """INT8 where it is faster here and keeps within the family's limits, else fp32; says why."""
    reference = folder / "1" / "model.onnx"
    try:
        model = quantized(draft, folder, request)
    except BuildError as err:
        print(f"auto: fp32, for INT8 is not possible: {err}", flush=True)
        return Engine(ONNX, "fp32")
    client, described = client_of(draft, folder), model_of(draft, folder)
    runs = [running.onnx_runner(path) for path in (reference, model)]
    feed = running.example_feed(described, batch=1, length=min(draft.lengths[1], 128))
    fp32, int8 = running.latencies([lambda run=run: run(feed) for run in runs])  # type: ignore[misc]
    scores = verification.compare(described, client, runs[1], runs[0], count=100)
    failed = [str(score) for score in scores if not score.passed]
    print(f"auto: fp32 {fp32:.2f} ms, int8 {int8:.2f} ms; {'; '.join(map(str, scores))}", flush=True)
    if failed or fp32 < FASTER * int8:
        model.unlink()
        return Engine(ONNX, "fp32")
    model.replace(reference)
    return Engine(ONNX, "int8", facts, cpu_only=True)


def model_of(draft: Draft, folder: Path) -> Model:
    """The draft as clients see a model."""
    settings = {"client": draft.client} if draft.client else {}
    return Model(
        folder.name, folder, draft.inputs, draft.outputs, draft.max_batch_size, settings | dict(draft.settings)
    )


def client_of(draft: Draft, folder: Path) -> ModelClient | None:
    """Its client, with the files that lie in the folder; BuildError where they do not fit together."""
    try:
        return make_client(model_of(draft, folder), own_clients=False) if draft.client else None
    except Exception as err:  # a client's code may raise anything
        raise BuildError(f"the client '{draft.client}' cannot be made for this model: {err}") from err


def quantized(draft: Draft, folder: Path, request: Request) -> Path:
    """1/model.int8.onnx, made from 1/model.onnx."""
    source, target = folder / "1" / "model.onnx", folder / "1" / "model.int8.onnx"
    with tempfile.TemporaryDirectory() as scratch, _quiet():
        prepared = Path(scratch) / "prepared.onnx"
        quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
        client = client_of(draft, folder)
        if client and draft.client in STATIC:
            batches = samples.calibration(client, draft.client, request.calibration)
            _static(prepared, target, over(batches, "calibrating"), draft.client in KEEPS_HEAD)
        else:
            _dynamic(prepared, target)
    _tidy(target)
    running.onnx_runner(target)  # can it be loaded?
    return target


class _Batches(CalibrationDataReader):  # type: ignore[misc]
    """An iterator as ONNX Runtime wants calibration data."""

    def __init__(self, batches: Iterable[Tensors]) -> None:
        self.batches = iter(batches)

    def get_next(self) -> Tensors | None:
        return next(self.batches, None)


def _static(source: Path, target: Path, batches: Iterable[Tensors], keeps_head: bool) -> None:
    graph = onnx.load(source, load_external_data=False).graph
    if not any(node.op_type == "Conv" for node in graph.node):
        raise BuildError("INT8 of an image model is that of its convolutions, and this one has none")
    quantize_static(
        str(source),
        str(target),
        _Batches(batches),
        quant_format=QuantFormat.QDQ,
        per_channel=True,
        op_types_to_quantize=list(BETWEEN),
        nodes_to_exclude=heads(graph) if keeps_head else [],
        activation_type=QuantType.QUInt8,
        weight_type=QuantType.QInt8,  # the pair that x86 multiplies fastest
    )


def heads(graph: Any) -> list[str]:
    """The names of the last convolutions (no other is behind them) and of all that is computed from them."""
    consumers: dict[str, list[Any]] = {}
    for node in graph.node:
        for name in node.input:
            consumers.setdefault(name, []).append(node)
    behind: dict[str, set[str]] = {}
    for node in reversed(graph.node):  # topologically sorted, so what is behind a node is known by then
        following = [n for output in node.output for n in consumers.get(output, [])]
        behind[node.name] = {n.name for n in following}.union(*(behind[n.name] for n in following))
    convolutions = {node.name for node in graph.node if node.op_type == "Conv"}
    last = {name for name in convolutions if not behind[name] & convolutions}
    return sorted(last.union(*(behind[name] for name in last)))


def _dynamic(source: Path, target: Path) -> None:
    graph = onnx.load(source, load_external_data=False).graph
    if not any(node.op_type in ("MatMul", "Gemm") for node in graph.node):
        raise BuildError(
            "dynamic INT8 is that of matrix products, and this model has none; with --client resnet or "
            "yolov5 its convolutions are calibrated"
        )
    _untie(source)
    quantize_dynamic(str(source), str(target), per_channel=True)


def _untie(path: Path) -> None:
    """Gives each Gemm a matrix of its own: the quantiser transposes it in place, whoever else reads it.

    So it is with BERT's word embeddings, which are its language model's last matrix too.
    """
    model = onnx.load(path)
    uses = Counter(name for node in model.graph.node for name in node.input)
    matrices = {tensor.name: tensor for tensor in model.graph.initializer}
    shared = [n for n in model.graph.node if n.op_type == "Gemm" and uses[n.input[1]] > 1 and n.input[1] in matrices]
    for node in shared:
        copy = model.graph.initializer.add()
        copy.CopyFrom(matrices[node.input[1]])
        copy.name = node.input[1] = f"{copy.name}.{node.name}"
    if shared:
        onnx.save(model, path)


def _tidy(path: Path) -> None:
    """Takes out the operator sets that no node uses: older runtimes need not know them."""
    model = onnx.load(path)
    used = {node.domain for node in model.graph.node} | {""}
    kept = [entry for entry in model.opset_import if entry.domain in used]
    del model.opset_import[:]
    model.opset_import.extend(kept)
    onnx.save(model, path)


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the quantiser's advice to prepare the model, which is done, on the root logger."""
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(logging.NOTSET)
