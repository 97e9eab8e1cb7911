"""A torch network -> one ONNX file, in opset 17, which Triton 24.10 reads."""

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx
import torch

from build_engines.errors import BuildError

OPSET = 17
Shape = tuple[int | str, ...]  # a dimension with a name is free
FREE = {"batch": 2, "height": 96, "width": 160}  # dimensions that may be free, and what they are while it is traced


def export_onnx(
    module: torch.nn.Module,
    image: tuple[int, ...],
    path: Path,
    names: tuple[str, ...],
    batching: bool,
    dtype: torch.dtype = torch.float32,
) -> None:
    """`module` of one image input as `path`; the batch dimension is free when `batching`, else 1.

    `image` is the input's shape without the batch, with a height and a width of -1 where they are free; `names` are the
    input's and the outputs'; the shapes that the exporter leaves open are written into the file.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    sides = (name if side == -1 else side for name, side in zip(("height", "width"), image[1:], strict=True))
    shape = ("batch" if batching else 1, image[0], *sides)
    example = torch.zeros([side if isinstance(side, int) else FREE[side] for side in shape], dtype=dtype)
    with warnings.catch_warnings(), torch.inference_mode():
        warnings.simplefilter(
            "ignore", torch.jit.TracerWarning
        )  # the exporter warns that sizes and anchors become constants, as they should
        warnings.simplefilter("ignore", UserWarning)  # of operators that fit some values only: what is made is compared
        warnings.simplefilter("ignore", DeprecationWarning)  # the older exporter: same graph, smaller, faster
        made = module.eval()(example)
        outputs = zip(names[1:], made if isinstance(made, tuple) else (made,), strict=True)
        shapes = {names[0]: shape} | {name: (shape[0], *tensor.shape[1:]) for name, tensor in outputs}
        _trace(module, example, path, shapes)
    name_shapes(path, shapes)


def _trace(module: torch.nn.Module, example: torch.Tensor, path: Path, shapes: Mapping[str, Shape]) -> None:
    inputs, *outputs = shapes
    torch.onnx.export(
        module,
        (example,),
        str(path),
        input_names=[inputs],
        output_names=outputs,
        dynamic_axes={
            name: {at: side for at, side in enumerate(shape) if isinstance(side, str)} for name, shape in shapes.items()
        },
        opset_version=OPSET,
        dynamo=False,
    )


def name_shapes(path: Path, shapes: Mapping[str, Shape]) -> None:
    """Writes each tensor's dimensions into the file."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        dimensions = value.type.tensor_type.shape
        del dimensions.dim[:]
        for size in shapes[value.name]:
            dimensions.dim.add(**({"dim_param": size} if isinstance(size, str) else {"dim_value": size}))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def check_whole(folder: Path, loading: Mapping[str, Any]) -> None:
    """`loading` is what from_pretrained says with output_loading_info; BuildError where a weight of the network is not
    in the folder, which transformers would make up, or one of the folder is not in the network."""
    for kind, what in (("missing_keys", "lacks"), ("unexpected_keys", "has what the network does not take:")):
        if names := sorted(loading[kind]):
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise BuildError(f"{folder} {what} {', '.join(names[:3])}{more}; was it saved for another task or network?")
