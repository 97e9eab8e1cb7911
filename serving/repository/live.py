"""The models of a server whose folders may change while it serves (SERVE_RELOAD). Standard library only.

    model folder --copy--> copies/LOAD/NAME --links, configuration--> served/TRITON_NAME --> Triton, clients

A table says which copy each model is served from, and by which name Triton knows it. `serve` writes the first table,
the process of serving/reload/ all others, and the workers read it. A call holds a lock on its copy until it ends.
"""

import fcntl
import json
import os
import secrets
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from serving.host.files import digest, replace_file, try_lock
from serving.repository.layout import link_entries, replace_config

LARGEST_COPY = 16 * 2**20  # bytes; a larger file is linked, as it may be as large as the disk
IGNORED = ("__pycache__",)
SPARE = "__"  # no folder whose name begins so is a model (repository/layout.py)


@dataclass(frozen=True)
class LiveModel:
    """A model: its name in Triton, the load that its copy belongs to, the copied folder and its signature at that time,
    and the models that it calls."""

    triton_name: str
    load: str
    source: str
    signature: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """A change of these models' folders (name -> signature) that is not served; `reasons` has a line a mistake."""

    folders: dict[str, str]
    reasons: list[str]


@dataclass(frozen=True)
class Table:
    """The models by name."""

    models: Mapping[str, LiveModel] = field(default_factory=dict)
    refused: Sequence[Refusal] = ()

    @property
    def triton_names(self) -> set[str]:
        return {model.triton_name for model in self.models.values()}


class LiveModels:
    """The files in `folder`. Safe to share between threads and processes if only one of them writes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._read: tuple[object, Table] = (None, Table())

    @property
    def repository(self) -> Path:
        """Triton's."""
        return self.folder / "served"

    @property
    def _file(self) -> Path:
        return self.folder / "table.json"

    def begin(self, folders: Iterable[Path], configs: Mapping[str, str], parts: Mapping[str, Sequence[str]]) -> None:
        """Copy these folders and serve them under their own names. `configs` has a configuration for some folders,
        `parts` the models that an ensemble calls. Raise OSError."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self.repository.mkdir(parents=True)
        models = {}
        for folder in folders:
            name, called = folder.name, tuple(parts.get(folder.name, ()))
            models[name] = model = LiveModel(name, new_load(), str(folder), signature(folder), called)
            self.copy(name, model)
            self.show(name, model, configs.get(str(folder), ""))
        self.write(Table(models))

    def copy(self, name: str, model: LiveModel) -> None:
        """Copy the model's folder. A change since its signature was taken counts as another change. Raise OSError."""
        copy(Path(model.source), self.copy_of(name, model))

    def copy_of(self, name: str, model: LiveModel) -> Path:
        return self.copies_of(model) / name

    def copies_of(self, model: LiveModel) -> Path:
        """Return the repository of models that were copied together."""
        return self.folder / "copies" / model.load

    def show(self, name: str, model: LiveModel, config: str = "") -> None:
        """Put the copy into Triton's repository, with another configuration if one is given."""
        link_entries(self.copy_of(name, model), self.path(model))
        if config:
            replace_config(self.path(model), config)

    def path(self, model: LiveModel) -> Path:
        """Return the folder that Triton and the model's client read."""
        return self.repository / model.triton_name

    def table(self) -> Table:
        """Return the current table."""
        found = self._file.stat()
        version = (found.st_ino, found.st_mtime_ns)
        if self._read[0] != version:
            self._read = (version, _parsed(self._file.read_bytes()))
        return self._read[1]

    def write(self, table: Table) -> None:
        replace_file(self._file, json.dumps(asdict(table)).encode())

    @contextmanager
    def using(self, name: str) -> Iterator[LiveModel | None]:
        """Yield the model; its copy stays for the time of the context. Yield None if there is no such model."""
        while (model := self.table().models.get(name)) is not None:
            with _held(self.path(model), fcntl.LOCK_SH):
                if self.table().models.get(name) == model:  # else it has just been replaced
                    yield model
                    return
        yield None

    def leftovers(self) -> list[str]:
        """Return Triton's names of copies that are no longer served."""
        return sorted({path.name for path in self.repository.iterdir()} - self.table().triton_names)

    def is_used(self, triton_name: str) -> bool:
        """Return whether a call still holds it."""
        with _held(self.repository / triton_name, fcntl.LOCK_EX) as is_held:
            return not is_held

    def hide(self, triton_name: str) -> None:
        """Remove it from Triton's repository."""
        shutil.rmtree(self.repository / triton_name, ignore_errors=True)

    def remove_copies(self) -> None:
        """Remove the copies that nothing is served from."""
        needed = {model.load for model in self.table().models.values()}
        for path in (self.folder / "copies").iterdir():
            if path.name not in needed:
                shutil.rmtree(path, ignore_errors=True)


def new_load() -> str:
    """Return a new name for a folder of copies."""
    return secrets.token_hex(8)


@contextmanager
def _held(folder: Path, kind: int) -> Iterator[bool]:
    """Lock the folder for the time of the context; yield whether that worked. A lock ends with its process."""
    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    except FileNotFoundError:
        yield False
        return
    try:
        yield try_lock(descriptor, kind)
    finally:
        os.close(descriptor)


def _parsed(data: bytes) -> Table:
    found = json.loads(data)
    models = {name: LiveModel(**model | {"parts": tuple(model["parts"])}) for name, model in found["models"].items()}
    return Table(models, [Refusal(**each) for each in found["refused"]])


def signature(folder: Path) -> str:
    """Return a fingerprint that changes whenever a file in the folder changes; "" if there is no folder."""
    try:
        rows = [_row(folder, path) for path in _entries(folder)]
    except FileNotFoundError:  # removed while we looked
        rows = []
    return digest("\n".join(rows)) if rows else ""


def copy(folder: Path, target: Path) -> None:
    """Copy `folder` to `target`. A file larger than LARGEST_COPY becomes a hard link, or a symbolic link if it is on
    another file system. Raise OSError."""
    target.mkdir(parents=True)
    for path in _entries(folder):
        copied = target / path.relative_to(folder)
        if path.is_dir():
            copied.mkdir()
        elif path.stat().st_size > LARGEST_COPY:
            _link(path.resolve(), copied)
        else:
            shutil.copy(path, copied)


def _link(file: Path, target: Path) -> None:
    try:
        target.hardlink_to(file)
    except OSError:
        target.symlink_to(file)


def _row(folder: Path, path: Path) -> str:
    found, name = path.stat(), path.relative_to(folder)
    if path.is_dir():
        return f"{name}/"
    return f"{name} {found.st_dev} {found.st_ino} {found.st_size} {found.st_mtime_ns}"


def _entries(folder: Path, above: tuple[str, ...] = ()) -> Iterator[Path]:
    """Yield all files and folders below it, each folder before its contents. Follow links, but not in circles."""
    above = (*above, os.path.realpath(folder))
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in IGNORED or os.path.realpath(path) in above:
            continue
        with suppress(FileNotFoundError):
            if path.is_dir() or path.stat():
                yield path
        if path.is_dir():
            yield from _entries(path, above)
