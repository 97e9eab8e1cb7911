"""Finds mistakes in the folders of an ensemble and its parts, and describes them in error messages.
Used by the survey, and when an archive is loaded."""

from collections.abc import Iterable, Sequence
from pathlib import Path

from serving.errors import ConfigError
from serving.repository.layout import CONFIG, folders_in, is_model, versions
from serving.repository.model_config import ENSEMBLE, Unreadable, backend_of, parts_of, read_file

LISTED = 8  # the maximum number of names listed in a message


def check_ensemble(folder: Path, models: Sequence[Path]) -> None:
    """Raise ConfigError if the model in `folder` is an ensemble that has no version, or that has a
    part only inside its own folder. `models` are all model folders that were found, including
    `folder`."""
    try:
        config = read_file(folder / CONFIG)
    except Unreadable:  # reported when the model is staged
        return
    if backend_of(config) != ENSEMBLE:
        return
    names = [path.name for path in models]
    missing = [part for part in parts_of(config) if part not in names]
    below = _models_in(folder)
    inside = [part for part in missing if part in below]
    if inside and folder.name == "model":  # SageMaker's name for the root of every archive
        raise ConfigError("", at_root(folder, config.name or "ensemble"))
    if inside:
        raise ConfigError("", missing_part(folder, inside[0], names))
    if not versions(folder):
        raise ConfigError("", no_version(folder, is_ensemble=True))


def missing_part(folder: Path, part: str, names: Sequence[str]) -> str:
    """Return the error message for an ensemble in `folder` that calls the model `part`, which is
    not one of the models in `names`."""
    text = (
        f"the model '{folder.name}' calls '{part}', which does not exist; the models are: "
        f"{listed(names)}"
    )
    if part not in _models_in(folder):
        return text
    return f"{text}; put it beside '{folder.name}': mv {folder / part} {folder.parent}/"


def no_version(folder: Path, is_ensemble: bool) -> str:
    """Return the error message for a model in `folder` that has no version folder."""
    expected = "that may be empty" if is_ensemble else "with the model file in it"
    return (
        f"the model '{folder.name}' has no version: found {contents(folder)} in {folder}; expected "
        f"a folder named by a number from 1 {expected}"
    )


def at_root(folder: Path, name: str) -> str:
    """Return the error message for a model at the root of the repository `folder`. It includes
    commands that move the model into a folder `name` but leave other models where they are."""
    names = {path.name for path in folder.iterdir() if not path.name.startswith(".")}
    moved = " ".join(sorted(names - _models_in(folder)))
    return (
        f"a model is at the root of the model repository {folder} (found {contents(folder)}), but "
        f"it must be in a folder with the model's name: cd {folder} && mkdir {name} && "
        f"mv {moved} {name}/"
    )


def _models_in(folder: Path) -> set[str]:
    return {path.name for path in folders_in(folder) if is_model(path)}


def contents(folder: Path) -> str:
    """List the names in a folder, hidden ones too."""
    return names_of(folder.iterdir())


def names_of(paths: Iterable[Path]) -> str:
    """List the names of files and folders. The names of folders end with a slash."""
    return listed(f"{path.name}/" if path.is_dir() else path.name for path in paths)


def listed(names: Iterable[str]) -> str:
    """Join the first LISTED names, in alphabetical order, and say how many more there are."""
    ordered = sorted(names)
    text = ", ".join(ordered[:LISTED]) or "nothing"
    more = len(ordered) - LISTED
    return f"{text} and {more} more" if more > 0 else text
