"""Loads networks from transformers' folders, and exports torch networks to ONNX files in opset 17,
which Triton 24.10 can read.

torch's tracer turns some sizes and values into constants, so check_answers compares the ONNX file
with the network on inputs of other shapes.
"""

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from numpy.typing import NDArray

from build_engines.errors import BuildError, first_line, shortened

OPSET = 17
OFFLINE: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
NEVER = "(?!)"  # a pattern that nothing matches
Shape = tuple[int | str, ...]  # a string is the name of a dynamic dimension
Arrays = Sequence[NDArray[Any]]
Example = Mapping[str, torch.Tensor]  # {input's name: its tensor}


def load(
    loader: Any, checkpoint: Path, purpose: str, may_miss: str = NEVER, may_have: str = NEVER
) -> Any:
    """Load a network from a folder, in FP32. Weights that match the pattern `may_miss` may be
    missing, and weights that match `may_have` may be in the folder although the network does not
    use them. `purpose`, such as "for fill-mask", completes error messages.

    Raise BuildError if transformers cannot load the network, if another weight is missing (it would
    get random numbers), if the folder has another weight that the network does not use, or if a
    weight has the wrong shape.
    """
    try:
        network, info = loader.from_pretrained(
            checkpoint,
            dtype=torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # mismatched sizes are reported, and refused below
            **OFFLINE,
        )
    except Exception as err:  # each network raises exceptions of its own
        reason = first_line(err)
        if isinstance(err, ImportError):  # this error names the missing package on several lines
            reason = " ".join(str(err).split())
        raise BuildError(f"{checkpoint} cannot be loaded {purpose}: {reason}") from err
    missing = [name for name in info["missing_keys"] if not re.match(may_miss, name)]
    unexpected = [name for name in info["unexpected_keys"] if not re.match(may_have, name)]
    mismatched = [name for name, *_ in info["mismatched_keys"]]
    flaws = {
        "lacks": missing,
        "has what the network does not take:": unexpected,
        "has another shape of": mismatched,
    }
    for flaw, names in flaws.items():
        if names:
            raise BuildError(
                f"{checkpoint} {flaw} {shortened(sorted(map(str, names)))}; was it saved for "
                f"another task or network than {purpose}?"
            )
    return network.eval()


def export_onnx(
    module: torch.nn.Module,
    example: Example,
    shapes: Mapping[str, Shape],
    outputs: Sequence[str],
    path: Path,
    second: str = "",
) -> None:
    """Trace `module` on the `example`, and write it to `path`. `shapes` are the shapes of the
    inputs, and `outputs` the names of the outputs, which have the same first dimension. `second`
    names the second dimension of outputs with three dimensions; "" leaves it fixed. Raise
    BuildError if torch cannot export the module."""
    path.parent.mkdir(parents=True, exist_ok=True)
    first = next(iter(shapes.values()))[0]
    with warnings.catch_warnings(), torch.inference_mode():
        # torch warns about values that become constants, and that this exporter is the older one
        warnings.simplefilter("ignore")
        try:
            result = module.eval()(*example.values())
            tensors = result if isinstance(result, tuple) else (result,)
            output_shapes = [_output_shape(tensor, first, second) for tensor in tensors]
            all_shapes = {**shapes, **dict(zip(outputs, output_shapes, strict=True))}
            torch.onnx.export(
                module,
                tuple(example.values()),
                str(path),
                input_names=list(example),
                output_names=list(outputs),
                dynamic_axes={name: _dynamic_axes(shape) for name, shape in all_shapes.items()},
                opset_version=OPSET,
                dynamo=False,
            )
        except BuildError:  # from a Head's `read`
            raise
        except Exception as err:  # the tracer raises many kinds of exceptions
            raise BuildError(
                f"{_name(module)} cannot be exported to ONNX by torch's tracer: {first_line(err)}; "
                "export it by other means and build the ONNX file"
            ) from err
    _declare_shapes(path, all_shapes)


def _output_shape(tensor: torch.Tensor, first: int | str, second: str) -> Shape:
    """Return an output's shape with `first` as its first dimension. If there are three dimensions
    and `second` is not empty, `second` is the second one."""
    sizes = tuple(map(int, tensor.shape[1:]))
    if second and len(sizes) == 2:
        return (first, second, sizes[1])
    return (first, *sizes)


def _dynamic_axes(shape: Shape) -> dict[int, str]:
    """Return {index: name} for the dynamic dimensions."""
    return {index: size for index, size in enumerate(shape) if isinstance(size, str)}


def _declare_shapes(path: Path, shapes: Mapping[str, Shape]) -> None:
    """Write the `shapes`, with the names of dynamic dimensions, into the ONNX file's inputs and
    outputs. If ONNX's checker rejects the changed model, raise its error, and leave the file as it
    was."""
    model = onnx.load(path)
    for value in (*model.graph.input, *model.graph.output):
        kind = value.type.tensor_type.elem_type
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, shapes[value.name]))
    onnx.checker.check_model(model, full_check=True)
    onnx.save(model, path)


def check_answers(
    module: torch.nn.Module,
    path: Path,
    examples: Iterable[Example],
    same: Callable[[Arrays, Arrays, Example], bool],
    remedy: str = "",
) -> None:
    """Run the ONNX file at `path` and the `module` on the examples. Raise BuildError, with the
    `remedy`, if one of the two fails, or if their outputs have different shapes or are not the
    `same`."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    for example in examples:
        try:
            with torch.inference_mode():
                wanted = [tensor.numpy() for tensor in module(*example.values())]
            feed = {name: tensor.numpy() for name, tensor in example.items()}
            outputs = session.run(None, feed)
            shapes = [array.shape for array in outputs]
            wanted_shapes = [array.shape for array in wanted]
            is_same = shapes == wanted_shapes and same(outputs, wanted, example)
        except Exception:  # torch's and ONNX Runtime's exceptions have no common base class
            is_same = False
        if not is_same:
            name, tensor = next(iter(example.items()))
            raise BuildError(
                f"the ONNX file that torch makes of {_name(module)} does not compute what "
                f"the network does ({name} {list(tensor.shape)}): export it by other means "
                f"and build the ONNX file{remedy}"
            )


def _name(module: torch.nn.Module) -> str:
    """Return the class name of the network that `module` wraps, or else of `module` itself."""
    return type(getattr(module, "network", module)).__name__
