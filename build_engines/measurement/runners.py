"""Runs a model's file in this process: ONNX Runtime, torch, or trtexec for a TensorRT plan."""

from collections.abc import Callable
from pathlib import Path

import onnxruntime

from build_engines.errors import BuildError, first_line
from build_engines.measurement.plan_runner import run_plan
from build_engines.measurement.timing import threads
from build_engines.model_folder.spec import ONNX, PLAN, TORCHSCRIPT
from build_engines.model_folder.stored import StoredModel
from clients.base import Model, Tensors

Runner = Callable[[Tensors], Tensors]


def onnx_runner(path: Path, count: int = 0) -> Runner:
    """An ONNX file on ONNX Runtime's CPU provider, with the backend's options; `count` threads, 0: `threads()`."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = count or threads()
    options.add_session_config_entry("session.intra_op.spin_duration_us", "20")
    options.log_severity_level = 3  # errors
    try:
        session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as err:  # ONNX Runtime's exceptions have no base of their own
        raise BuildError(f"ONNX Runtime cannot load {path}: {first_line(err)}") from err
    inputs = {node.name for node in session.get_inputs()}
    names = [node.name for node in session.get_outputs()]
    return lambda feed: dict(
        zip(names, session.run(names, {k: v for k, v in feed.items() if k in inputs}), strict=True)
    )


def row_of(model: Model, rows: Tensors) -> Tensors:
    """What a client has made of one instance, as the model's file takes it: without rows where it takes no batches."""
    return rows if model.max_batch_size else {spec.name: rows[spec.name][0] for spec in model.inputs}


def rows_of(model: Model, outputs: Tensors) -> Tensors:
    """What the file has answered to it, as its client takes it."""
    return outputs if model.max_batch_size else {name: array[None] for name, array in outputs.items()}


def torch_runner(path: Path) -> Runner:
    """A TorchScript file on torch's CPU; inputs by their order, outputs as OUTPUT__0 …"""
    import torch

    try:
        module = torch.jit.load(str(path), map_location="cpu").eval()
    except (RuntimeError, ValueError) as err:
        raise BuildError(f"torch cannot load {path}: {first_line(err)}") from err

    def run(feed: Tensors) -> Tensors:
        with torch.inference_mode():
            outputs = module(*(torch.from_numpy(array) for array in feed.values()))
        found = [outputs] if isinstance(outputs, torch.Tensor) else outputs
        return {f"OUTPUT__{number}": tensor.numpy() for number, tensor in enumerate(found)}

    return run


def plan_runner(path: Path) -> Runner:
    """A TensorRT plan, through trtexec."""
    return lambda feed: run_plan(path, feed)


RUNNERS: dict[str, Callable[[Path], Runner]] = {ONNX: onnx_runner, TORCHSCRIPT: torch_runner, PLAN: plan_runner}


def runner_of(stored: StoredModel) -> Runner:
    """Runs the model's newest version; BuildError for a platform that only Triton runs."""
    platform = stored.config.platform
    if platform not in RUNNERS:
        raise BuildError(
            f"{stored.folder.name} is of platform '{platform or stored.config.backend}', "
            f"which this command does not run; it runs {', '.join(RUNNERS)}"
        )
    return RUNNERS[platform](stored.file)
