"""A torch network -> one ONNX file. The only module that calls torch's exporter; opset 17, which Triton 24.10 reads."""

import warnings
from collections.abc import Mapping
from pathlib import Path

import onnx
import torch

OPSET = 17


def export_onnx(
    module: torch.nn.Module,
    image: tuple[int, ...],
    path: Path,
    names: tuple[str, ...],
    batching: bool,
    dtype: torch.dtype = torch.float32,
) -> None:
    """`module` of one image input as `path`; the batch dimension is free when `batching`, else 1.

    `image` is the input's shape without the batch, `names` are the input's and the
    outputs'; the shapes that the exporter leaves open are written into the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    example = torch.zeros(2 if batching else 1, *image, dtype=dtype)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter(
            "ignore", torch.jit.TracerWarning
        )  # the exporter warns that sizes and anchors become constants, as they should
        warnings.simplefilter("ignore", DeprecationWarning)  # the older exporter: same graph, smaller, faster
        made = module.eval()(example)
        _trace(module, example, path, names, batching)
    first = "batch" if batching else 1
    outputs = zip(names[1:], made if isinstance(made, tuple) else (made,), strict=True)
    name_shapes(path, {names[0]: (first, *image)} | {name: (first, *tensor.shape[1:]) for name, tensor in outputs})


def _trace(module: torch.nn.Module, example: torch.Tensor, path: Path, names: tuple[str, ...], batching: bool) -> None:
    torch.onnx.export(
        module,
        (example,),
        str(path),
        input_names=[names[0]],
        output_names=list(names[1:]),
        dynamic_axes={name: {0: "batch"} for name in names} if batching else None,
        opset_version=OPSET,
        dynamo=False,
    )


def name_shapes(path: Path, shapes: Mapping[str, tuple[int | str, ...]]) -> None:
    """Writes each tensor's dimensions into the file; one with a name is free."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        dimensions = value.type.tensor_type.shape
        del dimensions.dim[:]
        for size in shapes[value.name]:
            dimensions.dim.add(**({"dim_param": size} if isinstance(size, str) else {"dim_value": size}))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)
