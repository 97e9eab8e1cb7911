"""The models of a server whose model folders may change while it serves (SERVE_RELOAD). Standard library only.

    model folder --copy--> copies/LOAD/NAME --links, configuration--> served/TRITON_NAME --> Triton, clients

A table says which copy each model is served from, and by which name Triton knows it: `serve` writes the first one, the
process of serving/reload/ all others, and the workers read it. A call holds its copy until it ends.
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
    """Triton's name of it, the copy that it is served from, the folder that was copied and its signature then, and the
    models that it calls."""

    triton_name: str
    load: str
    source: str
    signature: str
    parts: tuple[str, ...] = ()


@dataclass(frozen=True)
class Refusal:
    """A change of these models' folders (name -> signature) that is not served, and why, a line for each mistake."""

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
    """The files in `folder`; safe to share between threads and processes, of which one writes."""

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
        """Copies these folders, and serves them under their own names; `configs` has a configuration for some of the
        folders, `parts` what an ensemble calls. Raises OSError."""
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
        """Copies its folder; what is changed since its signature was taken is another change. Raises OSError."""
        copy(Path(model.source), self.copy_of(name, model))

    def copy_of(self, name: str, model: LiveModel) -> Path:
        return self.copies_of(model) / name

    def copies_of(self, model: LiveModel) -> Path:
        """A repository of what was copied together."""
        return self.folder / "copies" / model.load

    def show(self, name: str, model: LiveModel, config: str = "") -> None:
        """Puts the copy into Triton's repository, with another configuration where one is given."""
        link_entries(self.copy_of(name, model), self.path(model))
        if config:
            replace_config(self.path(model), config)

    def path(self, model: LiveModel) -> Path:
        """Where Triton and the model's client read it."""
        return self.repository / model.triton_name

    def table(self) -> Table:
        """As it is now."""
        found = self._file.stat()
        version = (found.st_ino, found.st_mtime_ns)
        if self._read[0] != version:
            self._read = (version, _parsed(self._file.read_bytes()))
        return self._read[1]

    def write(self, table: Table) -> None:
        replace_file(self._file, json.dumps(asdict(table)).encode())

    @contextmanager
    def using(self, name: str) -> Iterator[LiveModel | None]:
        """The model, whose copy stays as long as the context; None when there is none of that name."""
        while (model := self.table().models.get(name)) is not None:
            with _held(self.path(model), fcntl.LOCK_SH):
                if self.table().models.get(name) == model:  # else it has just been replaced
                    yield model
                    return
        yield None

    def leftovers(self) -> list[str]:
        """Triton's names of copies that are served no more."""
        return sorted({path.name for path in self.repository.iterdir()} - self.table().triton_names)

    def is_used(self, triton_name: str) -> bool:
        """Whether a call that began before still holds it."""
        with _held(self.repository / triton_name, fcntl.LOCK_EX) as is_held:
            return not is_held

    def hide(self, triton_name: str) -> None:
        """Takes it out of Triton's repository."""
        shutil.rmtree(self.repository / triton_name, ignore_errors=True)

    def remove_copies(self) -> None:
        """Those that nothing is served from."""
        needed = {model.load for model in self.table().models.values()}
        for path in (self.folder / "copies").iterdir():
            if path.name not in needed:
                shutil.rmtree(path, ignore_errors=True)


def new_load() -> str:
    """The name of a folder of copies."""
    return secrets.token_hex(8)


@contextmanager
def _held(folder: Path, kind: int) -> Iterator[bool]:
    """Whether the folder could be locked at once, for the time of the context; a lock ends with its process."""
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
    """Another one as soon as a file in the folder is another one; "" where there is no folder."""
    try:
        rows = [_row(folder, path) for path in _entries(folder)]
    except FileNotFoundError:  # removed while we looked
        rows = []
    return digest("\n".join(rows)) if rows else ""


def copy(folder: Path, target: Path) -> None:
    """Makes `target` with the same files. One larger than LARGEST_COPY is the same file under another name (a hard
    link), or where that cannot be, as on another file system, a symbolic link. Raises OSError."""
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
    """All files and folders in it, the folders first; links are followed, but not in a circle."""
    above = (*above, os.path.realpath(folder))
    for path in sorted(folder.iterdir()):
        if path.name.startswith(".") or path.name in IGNORED or os.path.realpath(path) in above:
            continue
        with suppress(FileNotFoundError):
            if path.is_dir() or path.stat():
                yield path
        if path.is_dir():
            yield from _entries(path, above)
