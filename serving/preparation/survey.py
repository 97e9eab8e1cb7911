"""Find the models to serve and what is wrong with the repositories: `python -m serving.preparation.survey`.

`serve` runs it before anything else, because PID 1 has the standard library only and reading config.pbtxt takes
protobuf. The environment has the settings; it prints the JSON of repository/layout.py. With `stage` it also stages the
models for tritonserver.
"""

import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from serving.errors import ConfigError
from serving.host.tritonserver import backend_directory
from serving.model_status.shared_files import Table
from serving.model_status.table import Entry, Models, Rejection
from serving.repository.engines import Choice, Engines, choice_lines
from serving.repository.layout import (
    CLIENTS,
    CONFIG,
    Facts,
    LayoutError,
    ModelFacts,
    folders_in,
    has_a_model,
    is_model,
    versions,
)
from serving.repository.model_config import (
    ENSEMBLE,
    ModelConfig,
    Unreadable,
    backend_of,
    parts_of,
    read_config,
    shared_clients,
)
from serving.repository.store import Store, copy_model, signature
from serving.settings.table import Settings

LISTED = 8  # names in a message
STAGE = "stage"  # the argument that also has the models staged


def survey(settings: Settings, backends: Path, stages: bool = False) -> Facts:
    """Return what a start needs to know, mistakes included. Also stage the models if asked to. Raise OSError."""
    try:
        found = served(settings.model_repositories, settings.default_model, settings.load_models, settings.device)
    except LayoutError as err:
        return Facts(mistakes=err.mistakes)
    engines, unreadable = Engines(settings, backends), dict(found.unreadable)
    configs, choices = dict(found.configs), dict[str, Choice]()
    for name in [name for name in found.models if name not in unreadable]:
        try:
            configs[name], choice = engines.made(found.models[name], configs[name])
            choices |= {name: choice} if choice else {}
        except Unreadable as err:
            unreadable[name] = str(err)
    if stages and (settings.reloads or not unreadable):
        stage(settings, backends, found.models, configs, unreadable)
    goes_on = stages and settings.reloads
    left_out = [f"{text}; the start goes on without it" for text in unreadable.values()] if goes_on else []
    return Facts(
        folders=tuple(map(str, found.folders)),
        models={name: ModelFacts(tuple(parts_of(each)), backend_of(each)) for name, each in found.configs.items()},
        default=found.default,
        engines=tuple(choice_lines(choices, refused=False)),
        warnings=(*found.warnings, *choice_lines(choices, refused=True), *left_out),
        unreadable=() if goes_on else tuple(unreadable.values()),
    )


def stage(
    settings: Settings, backends: Path, folders: Mapping[str, Path], configs: Mapping[str, Any], refused: dict[str, str]
) -> None:
    """Stage every model that is not `refused`, and write the first table. tritonserver loads all that is staged at each
    of its starts; from then on only the model manager changes it. Add models that cannot be staged to `refused`. Raise
    OSError."""
    store, entries, signatures = Store(settings.staged_folder, settings, backends), dict[str, Entry](), dict[str, str]()
    for column, (name, folder) in enumerate(folders.items()):
        load, copied, config = secrets.token_hex(8), folder, configs[name]
        clients = shared_clients(folder, config) if settings.reloads else None
        signatures[name] = signature(folder, clients) if settings.reloads else ""
        if name in refused:
            continue
        if settings.reloads:
            copy_model(folder, copied := settings.copies_folder / load / name, clients)
            config = None  # the copy's is read: the folder may have changed
        try:
            store.stage(copied, name, config=config)
        except ConfigError as err:
            refused[name] = str(err).replace(str(copied), str(folder))
            continue
        source = str(folder) if settings.reloads else ""
        parts = tuple(parts_of(configs[name]))
        entries[name] = Entry(
            name, name, str(copied), load, column, parts=parts, signature=signatures[name], source=source
        )
    rejected = tuple(Rejection({name: signatures[name]}, [text]) for name, text in refused.items())
    Table(settings.table_file).write(Models(entries, rejected))


@dataclass(frozen=True)
class Served:
    """What is served: the repositories' final folders, and by name the folder and the configuration of each model that
    is loaded. `default` answers requests that name no model ("": none does); `unreadable` says why a configuration
    cannot be used."""

    folders: tuple[Path, ...]
    models: Mapping[str, Path]
    configs: Mapping[str, Any]
    default: str
    warnings: tuple[str, ...]
    unreadable: Mapping[str, str]


def served(folders: Sequence[Path], default: str = "", load: Sequence[str] = (), device: str = "") -> Served:
    """Return what is served from `folders`. Raise LayoutError with every mistake.

    If `default` or `load` names models, only these and the parts of their ensembles are loaded; else all are.
    """
    _refuse(_mistakes_of_permission(folders))
    warnings: list[str] = []
    final = tuple(_entered(folder, warnings) for folder in folders)
    shape = _example(final[0])
    models = _collect(final, warnings, shape)
    named = [*load, *([default] if default else [])]
    where = f"there is no folder of that name in {', '.join(map(str, final))}; its models are: {_list(models)}"
    variables = {default: "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME"} | dict.fromkeys(load, "SERVE_LOAD_MODELS")
    _refuse(f"{variables[name]} names '{name}', and {where}" for name in dict.fromkeys(named) if name not in models)
    if not default and len(models) == 1:
        default = next(iter(models))
        warnings.append(
            f"no SAGEMAKER_TRITON_DEFAULT_MODEL_NAME is set: '{default}', the only model, answers what names none"
        )
    unreadable: dict[str, str] = {}
    configs = _with_parts(named or sorted(models), models, device, unreadable)
    _refuse(_mistakes_of_loaded(configs, models), shape)
    loaded = {name: models[name] for name in configs}
    return Served(final, loaded, configs, default, tuple(warnings), unreadable)


def _refuse(mistakes: Iterable[str], example: str = "") -> None:
    if found := list(mistakes):
        raise LayoutError([*found, *([example] if example else [])])


def _example(folder: Path) -> str:
    """Return a repository as it should be, for a message."""
    return (
        "a model repository has a folder for each model, and in that one for each version:\n"
        f"  {folder}/\n    resnet/\n      {CONFIG}\n      1/\n        model.onnx\n"
        "a model.tar.gz of it: tar czf model.tar.gz -C REPOSITORY resnet"
    )


def _mistakes_of_permission(folders: Iterable[Path]) -> Iterator[str]:
    """Files that may not be read: an image's process is not root's, and an archive keeps its files' permissions."""
    for folder in folders:
        paths = [folder, *folder.rglob("*")] if folder.exists() else []
        if closed := [str(path) for path in paths if not _may_read(path)]:
            yield f"the user of this process, {os.geteuid()}, may not read {_list(closed)}: chmod -R a+rX {folder}"


def _may_read(path: Path) -> bool:
    return os.access(path, os.R_OK) and (not path.is_dir() or os.access(path, os.X_OK))


def _entered(folder: Path, warnings: list[str]) -> Path:
    """Return the folder, or the only one in it if that is the repository (tar czf model.tar.gz model_repository)."""
    try:
        inner = folders_in(folder)
        if not is_model(folder) and len(inner) == 1 and not is_model(inner[0]) and has_a_model(inner[0]):
            warnings.append(f"{folder} has no model but the folder '{inner[0].name}' of them: that is served")
            return inner[0]
    except OSError:
        pass  # _collect reports it
    return folder


def _collect(folders: Sequence[Path], warnings: list[str], example: str) -> dict[str, Path]:
    """Return the folders of all models by name. Raise LayoutError."""
    models: dict[str, Path] = {}
    mistakes: list[str] = []
    for folder in folders:
        try:
            mistakes += _mistakes_at_root(folder)
            found = [] if mistakes else folders_in(folder)
            named = {path.name: path for path in found if is_model(path)}
        except OSError as err:
            mistakes.append(f"the model repository {folder} cannot be read: {err.strerror}")
            continue
        warnings += [f"{path} is ignored: it is not a model" for path in found if path.name not in {*named, CLIENTS}]
        mistakes += [f"two repositories have a model '{n}': {models[n]} and {named[n]}" for n in named if n in models]
        models = named | models
    if not models and not mistakes:
        mistakes = [f"there is no model in {folder}: found {_found(folder)}" for folder in folders]
    _refuse(mistakes, example)
    return models


def _mistakes_at_root(folder: Path) -> Iterator[str]:
    if not folder.exists():
        yield f"there is no model repository {folder}"
    elif is_model(folder):
        files = " ".join(sorted(path.name for path in folder.iterdir() if not path.name.startswith(".")))
        name = _config_or_empty(folder, "", {}).name or folder.resolve().name or "MODEL"
        yield (
            f"a model lies at the root of the model repository {folder} (found {_found(folder)}), and it must be in "
            f"a folder of its own, whose name is the model's: mkdir {name} && mv {files} {name}/"
        )


def _with_parts(
    names: Iterable[str], models: Mapping[str, Path], device: str, unreadable: dict[str, str]
) -> dict[str, Any]:
    """Return the configurations of these models and of all that they call; None for a model that is not there."""
    configs: dict[str, Any] = {}
    left = list(names)
    while left:
        name = left.pop(0)
        if name not in configs:
            configs[name] = _config_or_empty(models[name], device, unreadable) if name in models else None
            left += parts_of(configs[name]) if name in models else []
    return configs


def _config_or_empty(model: Path, device: str, unreadable: dict[str, str]) -> Any:
    try:
        return read_config(model, device)
    except Unreadable as err:
        unreadable[model.name] = str(err)
        return ModelConfig()


def _mistakes_of_loaded(configs: Mapping[str, Any], models: Mapping[str, Path]) -> Iterator[str]:
    for name, config in configs.items():
        if config is None:
            user = next(user for user, other in configs.items() if other is not None and name in parts_of(other))
            yield f"the model '{user}' calls '{name}', and there is no such model; there are {_list(models)}"
        elif not versions(models[name]):
            folder, expected = models[name], "with the model file in it"
            expected = "that may be empty" if backend_of(config) == ENSEMBLE else expected
            found = f"found {_found(folder)} in {folder}; expected a folder named by a number from 1"
            yield f"the model '{name}' has no version: {found} {expected}"


def _found(folder: Path) -> str:
    return _list(path.name + ("/" if path.is_dir() else "") for path in sorted(folder.iterdir()))


def _list(names: Iterable[str]) -> str:
    found = sorted(names)
    return ", ".join(found[:LISTED]) + (f" and {len(found) - LISTED} more" if len(found) > LISTED else "") or "nothing"


if __name__ == "__main__":
    sys.stdout.write(survey(Settings.from_env(os.environ), backend_directory(), STAGE in sys.argv[1:]).to_json())
