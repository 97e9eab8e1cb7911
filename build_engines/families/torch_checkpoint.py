"""Reads a torch.save file as a state_dict with torch's tensors-only loader, and puts it into a network."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from build_engines.errors import BuildError, first_line


def read_state(path: Path) -> Mapping[str, Any]:
    """{name: tensor}; empty when the file holds something else. BuildError when it cannot be read."""
    try:
        state = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as err:  # pickle's errors have no base of their own
        raise BuildError(f"{path} cannot be read as a file of tensors: {first_line(err)}") from err
    return state if isinstance(state, Mapping) else {}


def check_whole(folder: Path, loading: Mapping[str, Any]) -> None:
    """`loading` is what from_pretrained says with output_loading_info; BuildError where a weight of the network is not
    in the folder, which transformers would make up, or one of the folder is not in the network."""
    for kind, what in (("missing_keys", "lacks"), ("unexpected_keys", "has what the network does not take:")):
        if names := sorted(loading[kind]):
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise BuildError(f"{folder} {what} {', '.join(names[:3])}{more}; was it saved for another task or network?")


def load_state(network: torch.nn.Module, state: Mapping[str, Any], path: Path, structure: str) -> None:
    """Puts every tensor into its place; BuildError when one is missing, unknown or of another shape."""
    try:
        network.load_state_dict(state)
    except RuntimeError as err:
        raise BuildError(f"{path} does not fit {structure}: {' '.join(str(err).split())[:300]}") from err
