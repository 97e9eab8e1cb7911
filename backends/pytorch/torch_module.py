"""A TorchScript file: loaded, its forward() described, its weights shared between instances."""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

TAKEN = "one dictionary of tensors, or tensors and lists of strings"


@dataclass(frozen=True)
class Forward:
    """The arguments of forward(); `takes_dictionary` when it is one dictionary of tensors."""

    arguments: tuple[str, ...]
    takes_dictionary: bool

    @classmethod
    def of(cls, module: Any) -> "Forward":
        """ValueError where there is an argument that Triton has no tensor for."""
        arguments = module.forward.schema.arguments[1:]  # the first is self
        kinds = [argument.type.kind() for argument in arguments]
        if kinds == ["DictType"]:
            return cls((), takes_dictionary=True)
        for argument, kind in zip(arguments, kinds, strict=True):
            if kind not in ("TensorType", "ListType"):
                raise ValueError(
                    f"argument '{argument.name}' of the model's forward is {argument.type}; it takes {TAKEN}"
                )
        return cls(tuple(argument.name for argument in arguments), takes_dictionary=False)


def load(path: Path, device: Any) -> Any:
    """The module in evaluation mode as it was saved; ValueError or FileNotFoundError says what is wrong."""
    if not path.is_file():
        raise FileNotFoundError(f"unable to find '{path}'")
    try:
        return torch.jit.load(str(path), map_location=device)
    except Exception as err:  # RuntimeError, and what the zip reader raises
        raise ValueError(
            f"PyTorch cannot load '{path}' as TorchScript: {str(err).splitlines()[0]}; "
            "write it with torch.jit.trace(…).save(…) or torch.jit.script(…).save(…)"
        ) from err


def share_weights(module: Any, path: Path) -> tuple[int, int]:
    """Puts the weights on the file's own pages, which all processes share: bytes shared, bytes of all weights.

    A weight is recognised by its bytes, so that nothing can change but where it lies. Weights that
    torch.jit.freeze made constants of the code are not found.
    """
    pages = torch.from_file(str(path), shared=False, size=path.stat().st_size, dtype=torch.uint8)
    records: dict[int, list[int]] = {}
    for start, size in _records(path):
        records.setdefault(size, []).append(start)
    shared = total = 0
    for tensor in (*module.parameters(), *module.buffers()):
        storage = tensor.untyped_storage()
        total += storage.nbytes()
        for start in records.get(storage.nbytes(), ()):
            if _move(tensor, pages, start):
                shared += storage.nbytes()
                break
    return shared, total


def _move(tensor: Any, pages: Any, start: int) -> bool:
    """Onto the bytes from `start` on, when they are the same."""
    size = tensor.untyped_storage().nbytes()
    own = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    if start % tensor.element_size() or not torch.equal(own, pages[start : start + size]):
        return False
    place = start // tensor.element_size() + tensor.storage_offset()
    with torch.no_grad():
        tensor.set_(pages.untyped_storage(), place, tensor.shape, tensor.stride())
    return True


def _records(path: Path) -> Iterator[tuple[int, int]]:
    """(first byte, size) of each file in the archive that is not compressed, as PyTorch writes weights."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            if info.compress_type == zipfile.ZIP_STORED and info.file_size:
                file.seek(info.header_offset + 26)  # the lengths of name and extra field (APPNOTE.TXT, 4.3.7)
                lengths = file.read(4)
                name, extra = int.from_bytes(lengths[:2], "little"), int.from_bytes(lengths[2:], "little")
                yield info.header_offset + 30 + name + extra, info.file_size
