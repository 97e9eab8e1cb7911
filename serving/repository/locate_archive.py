"""Finds the models in an unpacked archive.

An archive contains either one model or an ensemble and its parts. A single model is at the root, if
there is a config.pbtxt, or else in the only model folder. An ensemble and its parts each have their
own folder. Other folders are ignored.
"""

import os
import re
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from serving.errors import ConfigError, InvalidRequest
from serving.repository.ensembles import check_ensemble, contents, names_of
from serving.repository.layout import CONFIG, folders_in, is_model, is_name
from serving.repository.model_config import (
    ENSEMBLE,
    LARGEST_CONFIG,
    backend_of,
    parts_of,
    read_file,
)
from serving.repository.paths import check_entries, real_path

EXAMPLE = (
    "an archive holds one model (config.pbtxt and 1/model.onnx at its root, or "
    "resnet/config.pbtxt and resnet/1/model.onnx), or an ensemble and its parts, each in a folder; "
    "example: tar czf resnet.tar.gz -C model_repository resnet"
)
_NAME = "[0-9A-Za-z._]{1,255}"  # Linux does not allow longer file names
_BELOW_ROOT = re.compile(f"/{_NAME}/model(/{_NAME})?")


@dataclass(frozen=True)
class Archive:
    """The models that were found in an archive or, in on-demand mode, in a repository. `folder` is
    the folder of the model or the ensemble. `parts` are all folders that Triton must load,
    including `folder`. `root` is the folder of the unpacked archive or the repository; links must
    not lead out of it."""

    folder: Path
    parts: tuple[Path, ...]
    root: Path


def locate(url: str, root: Path) -> Archive:
    """Return the archive at `url`, a folder ROOT/ID/model or ROOT/ID/model/SUB. Raise
    InvalidRequest if the URL is invalid or the folder does not exist, and ConfigError if the
    archive is invalid."""
    path = Path(os.path.normpath(url))
    below = str(path).removeprefix(str(root))
    if not path.is_relative_to(root) or not _BELOW_ROOT.fullmatch(below):
        expected = (
            f"{root}/ID/model or {root}/ID/model/FOLDER, with at most 255 letters, digits, . and "
            "_ in ID and FOLDER"
        )
        raise InvalidRequest(f"'url' must be {expected}; got '{url}'")
    if not path.is_dir():
        raise InvalidRequest(f"there is no folder {path}")
    identifier, model, *_ = path.relative_to(root).parts
    # Links must not lead out of this folder, because Triton would load any file that they point to,
    # and quote it in errors.
    unpacked = real_path(root / identifier / model, real_path(root))
    return archive_in(path, unpacked)


def archive_in(path: Path, root: Path) -> Archive:
    """Return the unpacked archive in the folder `path`. Raise ConfigError if it is invalid, or if
    a link leads out of `root`."""
    check_entries(path, root)
    if (path / CONFIG).is_file():
        archive = Archive(path, (path,), root)
    else:
        archive = _archive_of_subfolders(path, root)
    check_ensemble(archive.folder, archive.parts)
    return archive


def model_in(folder: Path, root: Path) -> Archive:
    """Return the model in a folder of a repository, with the models beside it that it calls at any
    depth. Raise ConfigError if one of them is invalid, or if a link leads out of `root`."""
    models = [folder]
    for model in models:  # the loop itself appends to this list
        check_entries(model, root)
        for name in parts_of(read_file(model / CONFIG)):
            part = folder.parent / name
            is_beside = part.parent == folder.parent  # false for a name such as a/b
            if is_beside and is_name(name) and part.is_dir() and part not in models:
                models.append(part)
    archive = Archive(folder, tuple(models), root)
    check_ensemble(archive.folder, archive.parts)
    return archive


def _archive_of_subfolders(path: Path, root: Path) -> Archive:
    """Return the archive whose models are the subfolders of `path`. Raise ConfigError if they are
    neither one model nor one ensemble and its parts."""
    models = [folder for folder in folders_in(path) if is_model(folder)]
    if len(models) == 1:
        return Archive(models[0], (models[0],), root)
    files = [folder / CONFIG for folder in models]
    total = sum([file.stat().st_size for file in files if file.is_file()])
    if total > LARGEST_CONFIG:
        problem = f"has {CONFIG} files of {total} bytes in all, at most {LARGEST_CONFIG} are read"
        raise ConfigError(path, problem, "shorten them")
    configs = {folder: read_file(folder / CONFIG) for folder in models}
    ensembles = [folder for folder, config in configs.items() if backend_of(config) == ENSEMBLE]
    called = set(chain.from_iterable(map(parts_of, configs.values())))
    outermost = [folder for folder in ensembles if folder.name not in called]
    if len(outermost) == 1:
        return Archive(outermost[0], tuple(models), root)
    if outermost:
        problem = f"several ensembles ({names_of(outermost)}), of which one must be the outermost"
    elif models:
        problem = f"several models ({names_of(models)}) and no ensemble of them"
    elif deeper := sorted(path.glob("*/*/config.pbtxt")):
        problem = f"its models one folder too deep: {deeper[0].relative_to(path)}"
    else:
        problem = f"no config.pbtxt but {contents(path)}"
    raise ConfigError(path, f"holds {problem}", EXAMPLE)
