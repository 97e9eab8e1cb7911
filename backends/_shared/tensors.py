"""Completes config.pbtxt from the tensors of a model's file, and checks that the two agree.

The rules are the same as in NVIDIA's ONNX Runtime backend
(triton-inference-server/onnxruntime_backend, src/onnxruntime.cc). `config` is the configuration
that Triton passes to a backend. If the two disagree, a ValueError names the tensor, what the model
expects and what the configuration says, and the load fails. `backends.install` copies this file
into every backend's folder.
"""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Config = dict[str, Any]

DEFAULT_MAX_BATCH_SIZE = 4  # Triton's default for --backend-config=default-max-batch-size


@dataclass(frozen=True)
class Tensor:
    """Describes an input or output as the model's file declares it. A dynamic dimension is -1, and
    the shape of a scalar is ().

    `datatypes` maps the names of types in the file to Triton's names, for the types that the
    backend supports.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    datatypes: Mapping[str, str] = field(repr=False)

    @property
    def datatype(self) -> str:
        """Return Triton's name for the type. Raise ValueError if the backend does not support
        it."""
        if self.kind not in self.datatypes:
            raise ValueError(
                f"this backend cannot serve tensor '{self.name}' of the model, a {self.kind}; "
                f"it serves {', '.join(sorted(set(self.datatypes.values())))}"
            )
        return self.datatypes[self.kind]


def complete(config: Config, inputs: Mapping[str, Tensor], outputs: Mapping[str, Tensor]) -> None:
    """Fill in the missing inputs, outputs, max_batch_size and dynamic_batching of `config`, in
    place, following the rules of NVIDIA's backend.

    A model can be batched if the first dimension of each of its tensors is dynamic. max_batch_size
    is then Triton's default, unless config.pbtxt sets it. Raise ValueError if config.pbtxt sets it
    for a model that cannot be batched, or if the backend does not support a tensor's type.
    """
    tensors = {"input": inputs, "output": outputs}
    fixed = [
        tensor for tensor in (*inputs.values(), *outputs.values()) if tensor.shape[:1] != (-1,)
    ]
    if config["max_batch_size"] == 0 and not fixed:
        config["max_batch_size"] = default_max_batch_size()
    if config["max_batch_size"] > 0 and fixed:
        raise ValueError(
            f"model '{config['name']}', tensor '{fixed[0].name}': the configuration "
            f"specifies max_batch_size {config['max_batch_size']} but the model's shape "
            f"{list(fixed[0].shape)} has a fixed first dimension; set max_batch_size 0 or "
            "export the model with a dynamic batch dimension"
        )
    batching = config["max_batch_size"] > 0
    for side, specs in tensors.items():
        if not config[side]:
            config[side] = [config_entry(spec, batching) for spec in specs.values()]
    if config["max_batch_size"] > 1 and "sequence_batching" not in config:
        config.setdefault("dynamic_batching", {})


def config_entry(tensor: Tensor, batching: bool) -> Config:
    """Return the tensor's entry for config.pbtxt. `dims` cannot be empty there, so callers send a
    scalar as [1].

    Triton allows an empty `reshape` only for models with a batch dimension. For other models the
    backend reshapes the scalar.
    """
    dims = list(tensor.shape[1:] if batching else tensor.shape)
    entry: Config = {"name": tensor.name, "data_type": tensor.datatype, "dims": dims or [1]}
    if batching and not dims:
        entry["reshape"] = {"shape": []}
    return entry


def default_max_batch_size() -> int:
    """Return the default-max-batch-size that SAGEMAKER_TRITON_ADDITIONAL_ARGS passes to
    tritonserver, but at least 1, or else Triton's default of 4."""
    options = os.environ.get("SAGEMAKER_TRITON_ADDITIONAL_ARGS", "")
    values = re.findall(r"default-max-batch-size=(\d+)", options)
    return max(1, int(values[-1])) if values else DEFAULT_MAX_BATCH_SIZE


def check(
    config: Config,
    inputs: Mapping[str, Tensor],
    outputs: Mapping[str, Tensor],
    optional: Mapping[str, Tensor],
) -> None:
    """Raise ValueError if config.pbtxt and the file disagree about a tensor.

    config.pbtxt may omit `optional` inputs. A dynamic dimension of an output in config.pbtxt
    matches a fixed one in the file, because not all engines can infer its size before a run.
    """
    controls = config.get("sequence_batching", {}).get("control_input", [])
    known = {entry["name"] for entry in (*config["input"], *controls)}
    if missing := inputs.keys() - known:
        raise ValueError(
            f"model '{config['name']}': the model has the input '{min(missing)}', but the "
            "configuration does not"
        )
    for entry in config["input"]:
        check_tensor(config, "input", entry, {**inputs, **optional})
    for entry in config["output"]:
        check_tensor(config, "output", entry, outputs)


def check_tensor(config: Config, side: str, entry: Config, tensors: Mapping[str, Tensor]) -> None:
    """Compare one input or output of config.pbtxt with the tensor in the file. Raise ValueError if
    they disagree."""
    label = f"model '{config['name']}', {side} '{entry['name']}'"
    tensor = tensors.get(entry["name"])
    if tensor is None:
        raise ValueError(
            f"{label}: the model has no such {side}, only {', '.join(sorted(tensors))}"
        )
    if tensor.datatype != entry["data_type"]:
        raise ValueError(
            f"{label}: the model expects {tensor.datatype} but the configuration specifies "
            f"{entry['data_type']}"
        )
    batch = [-1] if config["max_batch_size"] else []
    dims = entry["reshape"].get("shape", []) if "reshape" in entry else entry["dims"]
    shape = [*batch, *map(int, dims)]
    # in an output, each dimension but the batch dimension may be dynamic
    checked = len(batch) if side == "output" else len(shape)
    # the shape of a scalar is not checked, because config.pbtxt has to declare it as [1]
    if tensor.shape and not accepts(tensor.shape, shape, checked):
        note = " (the first is the batch dimension of max_batch_size)" if batch else ""
        raise ValueError(
            f"{label}: the model expects shape {list(tensor.shape)} but the configuration "
            f"specifies {shape}{note}"
        )


def accepts(file_shape: Sequence[int], config_shape: Sequence[int], checked: int) -> bool:
    """Return whether the file's shape accepts the shape in config.pbtxt. A dynamic dimension of the
    file accepts any size. After the first `checked` dimensions, a dynamic dimension of config.pbtxt
    matches any size too."""
    if len(file_shape) != len(config_shape):
        return False
    for index, (in_file, in_config) in enumerate(zip(file_shape, config_shape, strict=True)):
        is_free = in_config == -1 and index >= checked
        if in_file not in (-1, in_config) and not is_free:
            return False
    return True
