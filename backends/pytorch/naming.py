"""Maps the tensors of config.pbtxt to the arguments and results of TorchScript's forward().

The rules are the same as in NVIDIA's backend (triton-inference-server/pytorch_backend,
src/libtorch.cc):

- If all input names are names of forward()'s arguments, inputs map to arguments by name.
- Otherwise, if all names have the form NAME__INDEX, the index decides (INPUT__0, OUTPUT__0).
- Otherwise the order in config.pbtxt decides.
- A forward() whose only argument is a dictionary of tensors gets one that is keyed by input name.
"""

from collections.abc import Sequence
from typing import Any

Config = dict[str, Any]

PARAMETERS = (  # the parameters in config.pbtxt, which torch_settings.py reads
    "DISABLE_CUDNN",
    "DISABLE_OPTIMIZED_EXECUTION",
    "ENABLE_CACHE_CLEANING",
    "ENABLE_JIT_EXECUTOR",
    "ENABLE_JIT_PROFILING",
    "ENABLE_TENSOR_FUSER",
    "INFERENCE_MODE",
    "INTER_OP_THREAD_COUNT",
    "INTRA_OP_THREAD_COUNT",
)
UNSUPPORTED = {  # NVIDIA's parameters that this backend does not support -> what to do instead
    "ENABLE_WEIGHT_SHARING": "take one instance with more threads (INTRA_OP_THREAD_COUNT), which "
    "has the weights once"
}
DATATYPES = ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING")


def input_positions(names: Sequence[str], arguments: Sequence[str]) -> dict[str, int]:
    """Return {input: position of its argument}, by the rules in this module's docstring. Raise
    ValueError if the inputs do not match the arguments of forward()."""
    if set(names) <= set(arguments):
        positions = {name: arguments.index(name) for name in names}
    else:
        positions = _by_index(names) or _by_order(names)
    if sorted(positions.values()) != list(range(len(arguments))):
        raise ValueError(
            f"the configuration has the inputs {', '.join(names)}, but the model's forward "
            f"takes {len(arguments)}: {', '.join(arguments)}; use these names, or INPUT__0, "
            "INPUT__1, …"
        )
    return positions


def output_positions(names: Sequence[str]) -> dict[str, int]:
    """Return {output: position in the results of forward()}, by the same rules, except that
    results have no names."""
    return _by_index(names) or _by_order(names)


def _by_index(names: Sequence[str]) -> dict[str, int]:
    """Return {name: the number after its first "__"}, or {} if a name has no such number."""
    texts = {name: name.partition("__")[2] for name in names}
    if not all(map(str.isdecimal, texts.values())):
        return {}
    return {name: int(text) for name, text in texts.items()}


def _by_order(names: Sequence[str]) -> dict[str, int]:
    return {name: position for position, name in enumerate(names)}


def input_names(config: Config) -> list[str]:
    """Return the names of the inputs in config.pbtxt, and of the control tensors of its sequence
    batching."""
    controls = config.get("sequence_batching", {}).get("control_input", [])
    return [entry["name"] for entry in (*config["input"], *controls)]


def check(config: Config) -> None:
    """Raise ValueError if config.pbtxt has no inputs or no outputs, if a tensor has a type that is
    not in DATATYPES, or if a tensor of strings does not have exactly one dimension, including the
    batch dimension."""
    for side in ("input", "output"):
        if not config[side]:
            raise ValueError(
                f"config.pbtxt must list at least one {side}, because TorchScript does not "
                "name them: "
                f'{side} {{ name: "{side.upper()}__0" data_type: TYPE_FP32 dims: [ … ] }}'
            )
        for entry in config[side]:
            _check_entry(side, entry, config["max_batch_size"] > 0)


def _check_entry(side: str, entry: Config, batching: bool) -> None:
    """Check one input or output of config.pbtxt. Raise ValueError as `check` does."""
    datatype = entry["data_type"].removeprefix("TYPE_")
    if datatype not in DATATYPES:
        raise ValueError(
            f"{side} '{entry['name']}' is {datatype}; it must be one of: {', '.join(DATATYPES)}"
        )
    dims = entry["reshape"].get("shape", []) if "reshape" in entry else entry["dims"]
    rank = len(dims) + 1 if batching else len(dims)
    if datatype == "STRING" and rank != 1:
        raise ValueError(
            f"{side} '{entry['name']}' is a list of strings, which has one dimension, not "
            f"{rank}: "
            "write dims: [ 1 ] reshape { shape: [ ] } for a model with batches"
        )
