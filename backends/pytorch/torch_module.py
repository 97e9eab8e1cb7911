"""Loads a TorchScript file, describes its forward() and shares its weights between instances."""

import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SUPPORTED = "one dictionary of tensors, or tensors and lists of strings"


@dataclass(frozen=True)
class Forward:
    """The arguments of forward(); `takes_dictionary` when its one argument is a dictionary of tensors."""

    arguments: tuple[str, ...]
    takes_dictionary: bool

    @classmethod
    def of(cls, module: Any) -> "Forward":
        """ValueError when an argument's type does not exist in Triton."""
        arguments = module.forward.schema.arguments[1:]  # the first is self
        kinds = [argument.type.kind() for argument in arguments]
        if kinds == ["DictType"]:
            return cls((), takes_dictionary=True)
        for argument, kind in zip(arguments, kinds, strict=True):
            if kind not in ("TensorType", "ListType"):
                raise ValueError(
                    f"argument '{argument.name}' of the model's forward is {argument.type}; supported: {SUPPORTED}"
                )
        return cls(tuple(argument.name for argument in arguments), takes_dictionary=False)


def load(path: Path, device: Any) -> Any:
    """The saved module, in the mode it was saved in; ValueError or FileNotFoundError says what is wrong."""
    if not path.is_file():
        raise FileNotFoundError(f"unable to find '{path}'")
    try:
        return torch.jit.load(str(path), map_location=device)
    except Exception as err:  # RuntimeError, or any error of the zip reader
        raise ValueError(
            f"PyTorch cannot load '{path}' as TorchScript: {str(err).splitlines()[0]}; "
            "write it with torch.jit.trace(…).save(…) or torch.jit.script(…).save(…)"
        ) from err


def share_weights(module: Any, path: Path) -> tuple[int, int]:
    """Maps the weights onto the pages of the file, which all processes share; (bytes shared, bytes of all weights).

    A weight is found by its bytes, so its value cannot change. Weights that torch.jit.freeze turned into constants
    of the code are not found.
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
    """Maps the tensor onto the file's bytes from `start` on; False when they differ from its own."""
    size = tensor.untyped_storage().nbytes()
    own = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
    if start % tensor.element_size() or not torch.equal(own, pages[start : start + size]):
        return False
    place = start // tensor.element_size() + tensor.storage_offset()
    with torch.no_grad():
        tensor.set_(pages.untyped_storage(), place, tensor.shape, tensor.stride())
    return True


def _records(path: Path) -> Iterator[tuple[int, int]]:
    """(first byte, size) of each uncompressed file in the archive; PyTorch writes weights uncompressed."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        for info in archive.infolist():
            if info.compress_type == zipfile.ZIP_STORED and info.file_size:
                file.seek(info.header_offset + 26)  # the lengths of the name and the extra field (APPNOTE.TXT, 4.3.7)
                lengths = file.read(4)
                name, extra = int.from_bytes(lengths[:2], "little"), int.from_bytes(lengths[2:], "little")
                yield info.header_offset + 30 + name + extra, info.file_size
