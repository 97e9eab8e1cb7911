"""Which tensor of config.pbtxt is which argument and which result of TorchScript's forward().

The rules are those of NVIDIA's backend (triton-inference-server/pytorch_backend, src/libtorch.cc):

- inputs that are all named as arguments of forward() are those arguments;
- else, when all are named NAME__INDEX, the index decides (INPUT__0, OUTPUT__0);
- else the order in config.pbtxt does;
- a forward() that takes one dictionary of tensors gets it with the inputs' names as its keys.
"""

from collections.abc import Sequence
from typing import Any

Config = dict[str, Any]

DATATYPES = ("BOOL", "UINT8", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64", "STRING")


def input_places(names: Sequence[str], arguments: Sequence[str]) -> dict[str, int]:
    """Input -> the position of its argument; ValueError where they cannot be all of forward()'s arguments."""
    if set(names) <= set(arguments):
        places = {name: arguments.index(name) for name in names}
    else:
        places = _by_index(names) or {name: place for place, name in enumerate(names)}
    if sorted(places.values()) != list(range(len(arguments))):
        raise ValueError(
            f"the configuration has the inputs {', '.join(names)}, the model's forward takes {len(arguments)}: "
            f"{', '.join(arguments)}; name them so, or INPUT__0, INPUT__1, …"
        )
    return places


def output_places(names: Sequence[str]) -> dict[str, int]:
    """Output -> its position among what forward() returns."""
    return _by_index(names) or {name: place for place, name in enumerate(names)}


def _by_index(names: Sequence[str]) -> dict[str, int]:
    """Nothing unless every name has an index."""
    found = {name: name.partition("__")[2] for name in names}
    return {name: int(index) for name, index in found.items()} if all(map(str.isdecimal, found.values())) else {}


def input_names(config: Config) -> list[str]:
    """Those of config.pbtxt, and the control tensors of its sequence batching."""
    controls = config.get("sequence_batching", {}).get("control_input", [])
    return [entry["name"] for entry in (*config["input"], *controls)]


def check(config: Config) -> None:
    """ValueError where config.pbtxt has no inputs or outputs, or one that PyTorch cannot have."""
    for side in ("input", "output"):
        if not config[side]:
            raise ValueError(
                f"config.pbtxt must say at least one {side}, for TorchScript does not name them: "
                f'{side} {{ name: "{side.upper()}__0" data_type: TYPE_FP32 dims: [ … ] }}'
            )
        for entry in config[side]:
            _check_entry(side, entry, config["max_batch_size"] > 0)


def _check_entry(side: str, entry: Config, batching: bool) -> None:
    datatype = entry["data_type"].removeprefix("TYPE_")
    if datatype not in DATATYPES:
        raise ValueError(f"{side} '{entry['name']}' is {datatype}, which is none of: {', '.join(DATATYPES)}")
    dims = entry["reshape"].get("shape", []) if "reshape" in entry else entry["dims"]
    if datatype == "STRING" and len(dims) + batching != 1:
        raise ValueError(
            f"{side} '{entry['name']}' is a list of strings, which has one dimension, and not {len(dims) + batching}: "
            "write dims: [ 1 ] reshape { shape: [ ] } for a model with batches"
        )
