"""config.pbtxt and the ONNX file: the file fills what config.pbtxt leaves out, and the two must agree.

The rules are those of NVIDIA's backend (triton-inference-server/onnxruntime_backend, src/onnxruntime.cc).
`session` is an onnxruntime.InferenceSession, `config` the configuration as Triton hands it to a backend.
Every mistake is a ValueError that names the tensor, what the model expects and what the configuration says;
it fails the load.
"""

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Config = dict[str, Any]

INTEGERS = [f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)]
DATATYPES = {f"tensor({name})": f"TYPE_{name.upper()}" for name in INTEGERS} | {
    "tensor(bool)": "TYPE_BOOL",
    "tensor(float16)": "TYPE_FP16",
    "tensor(float)": "TYPE_FP32",
    "tensor(double)": "TYPE_FP64",
    "tensor(string)": "TYPE_STRING",
}
DEFAULT_MAX_BATCH_SIZE = 4  # Triton's own, of --backend-config=default-max-batch-size


@dataclass(frozen=True)
class Tensor:
    """An input or output as the ONNX file declares it; -1 where a dimension varies, () for a scalar."""

    name: str
    kind: str
    shape: tuple[int, ...]

    @property
    def datatype(self) -> str:
        """Triton's name; ValueError for what NumPy does not have (BF16) or Triton (maps, lists)."""
        if self.kind not in DATATYPES:
            raise ValueError(
                f"tensor '{self.name}' of the model is a {self.kind}, which this backend cannot serve; "
                f"it serves {', '.join(sorted(set(DATATYPES.values())))}"
            )
        return DATATYPES[self.kind]


def tensors(nodes: Iterable[Any]) -> dict[str, Tensor]:
    """The session's inputs or outputs by name."""
    shapes = {n.name: tuple(size if isinstance(size, int) else -1 for size in n.shape) for n in nodes}
    return {n.name: Tensor(n.name, n.type, shapes[n.name]) for n in nodes}


def complete(config: Config, session: Any) -> None:
    """Fills inputs, outputs and max_batch_size in place, by the rules of NVIDIA's backend.

    A model whose tensors all have a first dimension that varies can be batched; max_batch_size is then
    Triton's default where config.pbtxt gives none.
    """
    found = {"input": tensors(session.get_inputs()), "output": tensors(session.get_outputs())}
    fixed = [tensor for side in found.values() for tensor in side.values() if tensor.shape[:1] != (-1,)]
    if config["max_batch_size"] == 0 and not fixed:
        config["max_batch_size"] = default_max_batch_size()
    if config["max_batch_size"] > 0 and fixed:
        raise ValueError(
            f"model '{config['name']}', tensor '{fixed[0].name}': the configuration specifies max_batch_size "
            f"{config['max_batch_size']} but the model's shape {list(fixed[0].shape)} has no first dimension "
            "that varies; set max_batch_size 0 or export the model with a dynamic batch dimension"
        )
    for side, specs in found.items():
        config[side] = config[side] or [completed(spec, config["max_batch_size"] > 0) for spec in specs.values()]


def completed(tensor: Tensor, batching: bool) -> Config:
    """One entry of config.pbtxt; dims cannot be empty there, so a scalar is [1] to callers.

    Triton takes an empty `reshape` only for a model with batches; else the backend reshapes.
    """
    dims = list(tensor.shape[1:] if batching else tensor.shape)
    entry: Config = {"name": tensor.name, "data_type": tensor.datatype, "dims": dims or [1]}
    return entry if dims or not batching else entry | {"reshape": {"shape": []}}


def default_max_batch_size() -> int:
    """--backend-config=default-max-batch-size of the server, the parent process, or of the options that `serve` would
    give to it; Triton's own is 4."""
    command = Path(f"/proc/{os.getppid()}/cmdline").read_text(errors="replace")
    options = os.environ.get("SAGEMAKER_TRITON_ADDITIONAL_ARGS", "")
    given = re.findall(r"default-max-batch-size=(\d+)", f"{command} {options}")
    return max(1, int(given[-1])) if given else DEFAULT_MAX_BATCH_SIZE


def check(config: Config, session: Any) -> None:
    """ValueError when config.pbtxt and the ONNX file disagree: the tensor, expected and found."""
    inputs, outputs = tensors(session.get_inputs()), tensors(session.get_outputs())
    optional = tensors(session.get_overridable_initializers())
    controls = {c["name"] for c in config.get("sequence_batching", {}).get("control_input", [])}
    missing = inputs.keys() - {entry["name"] for entry in config["input"]} - controls
    if missing:
        raise ValueError(
            f"model '{config['name']}': the model has the input '{min(missing)}', the configuration has not"
        )
    for entry in config["input"]:
        check_tensor(config, "input", entry, inputs | optional)
    for entry in config["output"]:
        check_tensor(config, "output", entry, outputs)


def check_tensor(config: Config, side: str, entry: Config, found: Mapping[str, Tensor]) -> None:
    """One input or output of config.pbtxt against those of the file."""
    place = f"model '{config['name']}', {side} '{entry['name']}'"
    tensor = found.get(entry["name"])
    if tensor is None:
        raise ValueError(f"{place}: the model has no such {side}, only {', '.join(sorted(found))}")
    if tensor.datatype != entry["data_type"]:
        raise ValueError(
            f"{place}: the model expects {tensor.datatype} but the configuration specifies {entry['data_type']}"
        )
    shape = configured_shape(entry, config["max_batch_size"])
    if tensor.shape and not fits(shape, tensor.shape):
        batch = " (the first is the batch dimension of max_batch_size)" if config["max_batch_size"] else ""
        raise ValueError(
            f"{place}: the model expects shape {list(tensor.shape)} but the configuration specifies "
            f"{list(shape)}{batch}"
        )


def configured_shape(entry: Config, max_batch_size: int) -> tuple[int, ...]:
    """The whole shape that the model would see."""
    dims = entry["reshape"].get("shape", []) if "reshape" in entry else entry["dims"]
    return (*([-1] if max_batch_size else []), *map(int, dims))


def fits(configured: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    """A dimension that varies in the file takes any, a fixed one only itself."""
    same_rank = len(configured) == len(shape)
    return same_rank and all(b in (-1, a) for a, b in zip(configured, shape, strict=True))
