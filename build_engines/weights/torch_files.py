"""Reads the tensors and plain values of a file of torch.save without running any code of it.

A .pt file is a zip of a pickle and raw storages; before torch 1.6 it was several pickles, and the storages after them.
A pickle calls the functions and classes that it names. Here it gets only those below; every other class becomes a
Placeholder that keeps its state and does nothing.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from build_engines.errors import BuildError

Array = NDArray[Any]
STORAGES = {
    "DoubleStorage": "f8",
    "FloatStorage": "f4",
    "HalfStorage": "f2",
    "BFloat16Storage": "bf16",
    "LongStorage": "i8",
    "IntStorage": "i4",
    "ShortStorage": "i2",
    "CharStorage": "i1",
    "ByteStorage": "u1",
    "BoolStorage": "?",
}
ITEM_SIZES = {dtype: 2 if dtype == "bf16" else np.dtype(dtype).itemsize for dtype in STORAGES.values()}
LARGEST_PICKLE = 64 << 20  # bytes; that of YOLOv5x has 0.3 million
OLD_FORMAT = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2)  # how a file of torch before 1.6 begins


class Placeholder:
    """Stands for an object whose class is not loaded: its state and its constructor's arguments."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        self.state: dict[str, Any] = {}

    def __setstate__(self, state: Any) -> None:
        self.state = state if isinstance(state, dict) else {"state": state}

    def __setitem__(self, key: Any, value: Any) -> None:
        """Entries of an unknown mapping are dropped."""

    def append(self, value: Any) -> None:
        """Items of an unknown list are dropped."""

    def extend(self, values: Any) -> None:
        """As append."""


@dataclass(frozen=True)
class _Storage:
    """One raw storage, by its key in the file."""

    key: str
    dtype: str


def load(path: Path) -> Any:
    """Return the object that was saved: plain values, arrays for tensors, Placeholders for objects of classes.

    Raise BuildError if the file is not one of torch.save, or its tensors do not fit their storages.
    """
    try:
        with path.open("rb") as file:
            if file.read(len(OLD_FORMAT)) == OLD_FORMAT:
                return _load_old_format(file)
        with zipfile.ZipFile(path) as archive:
            return _load_zip(archive)
    except zipfile.BadZipFile as err:
        raise BuildError(f"{path} is not a file of torch.save; save the network again with torch.save") from err
    except (pickle.UnpicklingError, EOFError, KeyError, ValueError, TypeError, AttributeError, IndexError) as err:
        raise BuildError(f"{path} cannot be read as a checkpoint: {err}") from err


def _load_zip(archive: zipfile.ZipFile) -> Any:
    entry = next((info for info in archive.infolist() if info.filename.endswith("/data.pkl")), None)
    if entry is None:
        raise BuildError(f"{archive.filename} holds no data.pkl: torch.save did not write it")
    if entry.file_size > LARGEST_PICKLE:
        raise BuildError(f"{archive.filename}: its data.pkl has {entry.file_size} bytes, too many for a checkpoint")
    root = entry.filename.removesuffix("data.pkl")
    saved = _Unpickler(io.BytesIO(archive.read(entry))).load()
    return _resolved(saved, lambda tensor: _array(tensor, archive.read(f"{root}data/{tensor.storage.key}")), {})


def _load_old_format(file: IO[bytes]) -> Any:
    """Read pickles of the format's version, the machine, the object and the storages' keys; then each storage's length
    and its data."""
    _Unpickler(file).load(), _Unpickler(file).load()
    unpickler = _Unpickler(file)
    saved = unpickler.load()
    data = {}
    for key in _Unpickler(file).load():
        length = int.from_bytes(file.read(8), "little")
        data[key] = file.read(length * ITEM_SIZES[unpickler.storages[key]])
    return _resolved(saved, lambda tensor: _array(tensor, data[tensor.storage.key]), {})


class _Unpickler(pickle.Unpickler):
    """pickle's own machine, with nothing to name but what stands in `find_class`."""

    def __init__(self, file: IO[bytes]) -> None:
        super().__init__(file, encoding="utf-8")
        self.storages: dict[str, str] = {}  # key -> type

    def find_class(self, module: str, name: str) -> Any:
        """A tensor's rebuilding, an OrderedDict, a storage's type; else a class that does nothing."""
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        if module == "torch" and name in STORAGES:
            return STORAGES[name]
        return type(name, (Placeholder,), {"__module__": module})

    def persistent_load(self, pid: Any) -> _Storage:
        """("storage", type, key, location, size) as torch.save writes it."""
        kind, dtype, key, *_ = pid
        if kind != "storage" or dtype not in STORAGES.values():
            raise pickle.UnpicklingError(f"a storage of an unknown kind: {kind} {dtype}")
        self.storages[str(key)] = dtype
        return _Storage(str(key), dtype)


@dataclass(frozen=True)
class _Tensor:
    """A tensor as the pickle describes it; read later, so that no shape is trusted before it is checked."""

    storage: _Storage
    offset: int
    size: tuple[int, ...]
    stride: tuple[int, ...]


def _array(tensor: _Tensor, data: bytes) -> Array:
    """Return the tensor as an array of its own. Raise ValueError if it does not fit its storage, `data`."""
    storage, offset, size, stride = tensor.storage, tensor.offset, tensor.size, tensor.stride
    values = _widened(data) if storage.dtype == "bf16" else np.frombuffer(data, np.dtype(storage.dtype))
    last = offset + sum((n - 1) * step for n, step in zip(size, stride, strict=True))
    if min((offset, *size, *stride), default=0) < 0 or (0 not in size and last >= len(values)):
        raise ValueError(f"a tensor {size} goes beyond its storage of {len(values)}")
    steps = [step * values.itemsize for step in stride]
    view: Array = np.lib.stride_tricks.as_strided(values[offset:], size, steps) if 0 not in size else np.empty(size)
    return np.array(view)


def _rebuild_tensor(storage: Any, offset: Any, size: Any, stride: Any, *_: Any) -> _Tensor:
    """torch._utils._rebuild_tensor_v2."""
    return _Tensor(storage, int(offset), tuple(map(int, size)), tuple(map(int, stride)))


def _rebuild_parameter(data: Any, *_: Any) -> Any:
    """torch._utils._rebuild_parameter."""
    return data


def _size(values: Any = ()) -> tuple[Any, ...]:
    """torch.Size."""
    return tuple(values)


_ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): OrderedDict,
    ("torch._utils", "_rebuild_tensor_v2"): _rebuild_tensor,
    ("torch._utils", "_rebuild_parameter"): _rebuild_parameter,
    ("torch", "Size"): _size,
}


def _widened(raw: bytes) -> Array:
    """bfloat16 as float32: the upper half of its bits."""
    return (np.frombuffer(raw, np.uint16).astype(np.uint32) << 16).view(np.float32)


def _resolved(value: Any, array: Callable[[_Tensor], Array], seen: dict[int, Any]) -> Any:
    """The same object with arrays for tensors, in place for Placeholders; each object once."""
    if isinstance(value, _Tensor):
        return array(value)
    if id(value) in seen:
        return seen[id(value)]
    if isinstance(value, Placeholder):
        seen[id(value)] = value
        value.state = _resolved(value.state, array, seen)
    elif isinstance(value, dict):
        found: dict[Any, Any] = {}
        seen[id(value)] = found
        found.update({key: _resolved(each, array, seen) for key, each in value.items()})
        return found
    elif isinstance(value, list | tuple):
        return type(value)(_resolved(each, array, seen) for each in value)
    return value


def tensors_of(module: Placeholder, prefix: str = "") -> Iterator[tuple[str, Array]]:
    """(name, array) of every parameter and buffer of a torch module, named as its state_dict names them."""
    for kind in ("_parameters", "_buffers"):
        for name, value in _items(module.state.get(kind)):
            if isinstance(value, np.ndarray):
                yield f"{prefix}{name}", value
    for name, child in _items(module.state.get("_modules")):
        if isinstance(child, Placeholder):
            yield from tensors_of(child, f"{prefix}{name}.")


def _items(value: Any) -> Iterator[tuple[str, Any]]:
    return iter(value.items()) if isinstance(value, Mapping) else iter(())
