"""A multi-model archive as the platform unpacked it: which of its folders are models.

An archive holds one model, with its config.pbtxt at the root or in its only folder, or an ensemble
and its parts, each in a folder. Stray folders are ignored, and archives may be anywhere.
"""

import os
import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from serving.errors import ConfigError, InvalidRequest
from serving.repository.ensembles import check_parts
from serving.repository.layout import CONFIG, folders_in, is_model, versions
from serving.repository.model_config import ENSEMBLE, backend_of, parts_of, read_file

EXAMPLE = (
    "an archive holds one model (config.pbtxt and 1/model.onnx at its root, or "
    "resnet/config.pbtxt and resnet/1/model.onnx), or an ensemble and its parts, each in a folder; "
    "example: tar czf resnet.tar.gz -C model_repository resnet"
)
_BELOW_ROOT = re.compile(r"/[0-9A-Za-z._]+/model(/[0-9A-Za-z._]+)?")


@dataclass(frozen=True)
class Archive:
    """`folder` is the model's own, or the ensemble's; `parts` are all folders that Triton must see,
    it included."""

    folder: Path
    parts: tuple[Path, ...]

    def weight(self) -> int:
        """Return the bytes that are loaded: the files and the largest version of every folder."""
        total = 0
        for part in self.parts:
            numbered = versions(part)
            others = [entry for entry in part.iterdir() if entry not in numbered]
            total += max(map(_size, numbered), default=0) + sum(map(_size, others))
        return total


def locate(url: str, root: Path) -> Archive:
    """Return the archive at `url`, a folder ROOT/ID/model or ROOT/ID/model/SUB. Raise
    InvalidRequest for a wrong URL, and ConfigError."""
    path = Path(os.path.normpath(url))
    below = str(path).removeprefix(str(root))
    if not path.is_relative_to(root) or not _BELOW_ROOT.fullmatch(below):
        expected = (
            f"{root}/ID/model or {root}/ID/model/FOLDER, with letters, digits, . and _ in ID "
            "and FOLDER"
        )
        raise InvalidRequest(f"'url' must be {expected}; got '{url}'")
    if not path.is_dir():
        raise InvalidRequest(f"there is no folder {path}")
    _check_entries(path, root)
    archive = Archive(path, (path,)) if (path / CONFIG).is_file() else _of_folders(path)
    check_parts(archive.folder, archive.parts)
    return archive


def _check_entries(path: Path, root: Path) -> None:
    """Raise ConfigError when the folder, or a link in it, leads out of the root, because Triton
    would load files of the container and quote them in its errors; or when it holds a FIFO, socket
    or device, which ends tritonserver."""
    inside = os.path.realpath(root)
    entries = (
        Path(folder, name)
        for folder, *names in os.walk(path)
        for name in chain.from_iterable(names)
    )
    for entry in (path, *entries):
        target = os.path.realpath(entry)
        if (entry == path or entry.is_symlink()) and not Path(target).is_relative_to(inside):
            raise ConfigError(
                entry, f"leads to {target}, out of {root}", "put the file itself into the archive"
            )
        if not (entry.is_file() or entry.is_dir() or entry.is_symlink()):
            raise ConfigError(entry, "is neither a file nor a folder", "remove it from the archive")


def _of_folders(path: Path) -> Archive:
    models = [folder for folder in folders_in(path) if is_model(folder)]
    if len(models) == 1:
        return Archive(models[0], (models[0],))
    configs = {folder: read_file(folder / CONFIG) for folder in models}
    inner = {name for config in configs.values() for name in parts_of(config)}
    ensembles = [folder for folder, config in configs.items() if backend_of(config) == ENSEMBLE]
    outer = [folder for folder in ensembles if folder.name not in inner]
    if len(outer) == 1:
        return Archive(outer[0], tuple(models))
    if outer:
        contents = f"several ensembles ({_names(outer)}), of which one must be the outermost"
    elif models:
        contents = f"several models ({_names(models)}) and no ensemble of them"
    elif deeper := sorted(path.glob("*/*/config.pbtxt")):
        contents = f"its models one folder too deep: {deeper[0].relative_to(path)}"
    else:
        contents = f"no config.pbtxt but {_names(sorted(path.iterdir())) or 'nothing'}"
    raise ConfigError(path, f"holds {contents}", EXAMPLE)


def _names(paths: list[Path]) -> str:
    shown = [path.name + ("/" if path.is_dir() else "") for path in paths[:5]]
    return ", ".join(shown) + (", …" if len(paths) > 5 else "")


def _size(path: Path) -> int:
    """Return the bytes of a file, or of all files below a folder, without following links to
    folders."""
    if not path.is_dir():
        return path.stat().st_size if path.exists() else 0
    return sum(
        _size(entry) for entry in path.iterdir() if not (entry.is_dir() and entry.is_symlink())
    )
