"""`archive`: a model as SageMaker takes it, NAME.tar.gz with the folder NAME in it, an ensemble with all its parts.

The same model gives the same bytes: entries are sorted, without times and owners. Copies are for multi-model endpoints:
each has its own name, its parts as well, for a part that two loaded ensembles share by name cannot be called.
"""

import io
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from tqdm import tqdm

from build_engines.errors import BuildError
from build_engines.model_folder.config import render
from build_engines.model_folder.stored import open_model
from serving.inference.registry import families
from serving.repository.layout import versions
from serving.repository.model_config import parse_config

GZIP = 16 + zlib.MAX_WBITS
BLOCK = 2**20  # bytes compressed at once
_SKIPPED = re.compile(r"(^|/)(\.|__pycache__(/|$))|\.(pyc|part|partial)$")


def archive(name: str, repository: Path, out: Path, copies: int = 0) -> list[Path]:
    """OUT/NAME.tar.gz, or NAME-0.tar.gz with the folder NAME_0 … for copies.

    BuildError when the model or a part of it is not there.
    """
    folders = with_parts(name, repository)
    for folder in folders:
        if not versions(folder):
            raise BuildError(f"{folder} has no version with a model file in it: build it first")
    out.mkdir(parents=True, exist_ok=True)
    endings = [""] if not copies else [f"-{number}" for number in range(copies)]
    return [_write(out / f"{name}{ending}.tar.gz", folders, ending) for ending in endings]


def with_parts(name: str, repository: Path) -> list[Path]:
    """The model's folder and, of an ensemble, those of all its parts."""
    wanted: dict[str, Path] = {}
    left = [name]
    while left:
        part = left.pop(0)
        if part not in wanted:
            stored = open_model(part, repository, "")
            wanted[part] = stored.folder
            left += [step.model_name for step in stored.config.ensemble_scheduling.step]
    return list(wanted.values())


def _write(target: Path, folders: list[Path], ending: str) -> Path:
    """Writes the archive under a temporary name, then renames it."""
    total = sum(path.stat().st_size for folder in folders for path in folder.rglob("*") if path.is_file())
    handle, part = tempfile.mkstemp(prefix=f".{target.name}-", dir=target.parent)
    try:
        with (
            os.fdopen(handle, "wb") as raw,
            tqdm(desc=target.name, total=total, unit="B", unit_scale=True, disable=None, leave=False) as bar,
            _Packed(raw) as packed,
            tarfile.open(fileobj=packed, mode="w|", bufsize=BLOCK, format=tarfile.GNU_FORMAT) as tar,
        ):
            names = {folder.name: f"{folder.name}{ending.replace('-', '_')}" for folder in folders}
            for folder in folders:
                for size in _add(tar, folder, names):
                    bar.update(size)
        Path(part).chmod(0o644)
        Path(part).replace(target)
    except BaseException:
        Path(part).unlink(missing_ok=True)
        raise
    return target


class _Packed(io.BufferedIOBase):
    """Writes a gzip file without a time.

    Weights hardly repeat: only runs of one byte are looked for (Z_RLE). An archive is at most 5 % larger than by a
    search for repetitions, and made in less than half of the time.
    """

    def __init__(self, raw: BinaryIO) -> None:
        self._raw, self._packer = raw, zlib.compressobj(wbits=GZIP, strategy=zlib.Z_RLE)

    def write(self, data: Any) -> int:
        self._raw.write(self._packer.compress(data))
        return len(data)

    def close(self) -> None:
        if not self.closed:
            self._raw.write(self._packer.flush())
        super().close()


def _add(tar: tarfile.TarFile, folder: Path, names: Mapping[str, str]) -> Iterator[int]:
    """Adds the folder under its new name; yields the size of each file after it is added."""
    tar.addfile(_entry(names[folder.name], tarfile.DIRTYPE))
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder).as_posix()
        if _SKIPPED.search(name):
            continue
        if path.is_dir():
            tar.addfile(_entry(f"{names[folder.name]}/{name}", tarfile.DIRTYPE))
            continue
        entry = _entry(f"{names[folder.name]}/{name}", tarfile.REGTYPE)
        with _contents(path, folder, names) as file:
            entry.size = file.seek(0, io.SEEK_END)
            file.seek(0)
            tar.addfile(entry, file)
        yield entry.size


def _entry(name: str, kind: bytes) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(name)
    entry.type, entry.mode = kind, 0o755 if kind == tarfile.DIRTYPE else 0o644
    return entry  # times and owners are 0 and "" by default


def _contents(path: Path, folder: Path, names: Mapping[str, str]) -> Any:
    """The open file; a copy's configuration with the copy's names."""
    if path.suffix == ".pbtxt" and names[folder.name] != folder.name:
        return io.BytesIO(renamed(path.read_text(encoding="utf-8"), folder.name, names).encode())
    return path.open("rb")


def renamed(text: str, name: str, names: Mapping[str, str]) -> str:
    """The config.pbtxt of model `name` for its copy: its own name, those of its steps, and the client that
    the old name stood for."""
    config = parse_config(text)
    if config.name:
        config.name = names[name]
    for step in config.ensemble_scheduling.step:
        step.model_name = names.get(step.model_name, step.model_name)
    if "client" not in config.parameters and name in families():
        config.parameters["client"].string_value = name
    comments = [line.removeprefix("#").strip() for line in text.splitlines() if line.startswith("#")]
    return render(
        config, "\n".join(comments[1:] if comments[:1] == ["Written by python -m build_engines."] else comments)
    )
