"""Finds the models to serve, and mistakes in the repositories: `python -m
serving.preparation.survey`.

`serve` runs this first. It is a separate process because reading config.pbtxt needs protobuf, and
process 1 uses only the standard library. It reads the settings from the environment, and prints the
Survey (repository/layout.py) as JSON. With the argument `stage` it also stages the models for
tritonserver.
"""

import json
import os
import secrets
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from serving.errors import ConfigError
from serving.host.tritonserver import backend_directory
from serving.model_status.models import Entry, Models, Rejection
from serving.model_status.shared_files import MODELS, ModelsFile
from serving.repository.cpu_engine import Choice, choice_lines, served_config, this_processor
from serving.repository.ensembles import at_root, contents, listed, missing_part, no_version
from serving.repository.layout import (
    CLIENTS,
    CONFIG,
    LayoutError,
    Survey,
    folders_in,
    has_model_folders,
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
from serving.repository.paths import with_sources
from serving.repository.staging import Store, copy_model, signature
from serving.settings.settings import Settings


def survey(settings: Settings, backends: Path, stages: bool = False) -> Survey:
    """Return the Survey of the repositories. Mistakes in their layout are part of the Survey. If
    `stages` is true, also stage the models. Raise OSError if a file cannot be read or written."""
    try:
        chosen = choose_models(
            settings.model_repositories,
            settings.default_model,
            settings.load_models,
            settings.device,
        )
    except LayoutError as err:
        return Survey(mistakes=err.mistakes)
    if len(chosen.models) > MODELS:
        problem = f"{len(chosen.models)} models are to be loaded, and {MODELS} is the maximum"
        return Survey(mistakes=[f"{problem}: set SERVE_LOAD_MODELS, or SERVE_MODELS=on-demand"])
    prepare = _stage if stages else _choose_engines
    choices = prepare(settings, backends, chosen)
    warnings = [*chosen.warnings, *choice_lines(choices, refused=True)]
    unreadable = list(chosen.unreadable.values())
    if stages and settings.policy.copied:
        warnings += [f"{text}; the start goes on without it" for text in unreadable]
        unreadable = []
    return Survey(
        folders=list(map(str, chosen.folders)),
        models=list(chosen.models),
        default=chosen.default,
        warnings=warnings,
        engines=choice_lines(choices, refused=False),
        unreadable=unreadable,
    )


@dataclass(frozen=True)
class Chosen:
    """The models to serve. `folders` are the repositories, as `_actual_repository` returns them;
    `models` and `configs` map each model's name to its folder and its configuration; `default` is
    the model for requests that name none, or ""; `unreadable` maps the names of those of `models`
    that cannot be served to the reasons, and grows while the models are prepared."""

    folders: tuple[Path, ...]
    models: Mapping[str, Path]
    configs: Mapping[str, Any]
    default: str
    warnings: Sequence[str]
    unreadable: dict[str, str]


def _choose_engines(settings: Settings, backends: Path, chosen: Chosen) -> dict[str, Choice]:
    """Return the engine choices, keyed by model name. Add models whose configuration cannot be used
    to `chosen.unreadable`."""
    processor = this_processor(backends)
    choices: dict[str, Choice] = {}
    for name, folder in chosen.models.items():
        if name in chosen.unreadable:
            continue
        try:
            _, choice = served_config(folder, settings, processor)
            if choice:
                choices[name] = choice
        except Unreadable as err:
            chosen.unreadable[name] = str(err)
    return choices


def _stage(settings: Settings, backends: Path, chosen: Chosen) -> dict[str, Choice]:
    """Stage every model that is not in `chosen.unreadable`, from a copy of its folder if the policy
    requires that, and write the first table of models. Add models that cannot be staged to
    `chosen.unreadable`. Return the engine choices, keyed by model name. Raise OSError if a file
    cannot be read or written.

    tritonserver loads all staged models whenever it starts. After startup, only the model manager
    changes the staged models and the table.
    """
    store = Store(settings.staged_folder, settings, backends)
    entries: dict[str, Entry] = {}
    signatures: dict[str, str] = {}
    choices: dict[str, Choice] = {}
    for column, (name, folder) in enumerate(chosen.models.items()):
        load_id = secrets.token_hex(8)
        served_from = folder
        clients = shared_clients(folder, chosen.configs[name])
        signatures[name] = signature(folder, clients)  # a rejected model needs one too
        if name in chosen.unreadable:
            continue
        if settings.policy.copied:
            served_from = settings.copies_folder / load_id / name
            copy_model(folder, served_from, clients)
        try:
            choice = store.stage(served_from, name)
            if choice:
                choices[name] = choice
        except ConfigError as err:
            chosen.unreadable[name] = with_sources(str(err), {served_from: folder})
            continue
        entries[name] = Entry(
            name=name,
            triton_name=name,
            folder=str(served_from),
            load_id=load_id,
            column=column,
            parts=tuple(parts_of(chosen.configs[name])),
            signature=signatures[name],
            source=str(folder),
        )
    rejected = tuple(
        Rejection({name: signatures[name]}, [text]) for name, text in chosen.unreadable.items()
    )
    ModelsFile(settings.models_file).write(Models(entries, rejected))
    return choices


def choose_models(
    folders: Sequence[Path], default: str = "", load: Sequence[str] = (), device: str = ""
) -> Chosen:
    """Return the models to serve from the repositories `folders`: the ones that `default` and
    `load` name, with the parts of their ensembles, or all models if both are empty. A model whose
    config.pbtxt cannot be read is among them, and `unreadable`. Configurations may depend on
    `device`, the setting SERVE_DEVICE. Raise LayoutError if there are mistakes in the layout."""
    _raise_any(_mistakes_of_permission(folders))
    warnings: list[str] = []
    repositories = tuple(_actual_repository(folder, warnings) for folder in folders)
    example = (
        "a model repository has a folder for each model, which has a folder for each version:\n"
        f"  {repositories[0]}/\n    resnet/\n      {CONFIG}\n      1/\n        model.onnx\n"
        "a model.tar.gz of it: tar czf model.tar.gz -C REPOSITORY resnet"
    )
    models = _collect_models(repositories, warnings, example)
    named_by = dict.fromkeys(load, "SERVE_LOAD_MODELS")  # model -> the variable that names it
    if default:
        named_by.setdefault(default, "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME")
    _raise_any(_unknown_names(named_by, models, repositories))
    names = list(named_by) or sorted(models)
    configs, unreadable = _read_configs(models, names, device, example)
    if not default and len(models) == 1:
        default = next(iter(models))
        warnings.append(
            f"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME is not set: '{default}', the only model, "
            "is the default"
        )
    chosen = {name: models[name] for name in configs}
    return Chosen(repositories, chosen, configs, default, warnings, unreadable)


def _unknown_names(
    named_by: Mapping[str, str], models: Mapping[str, Path], folders: Sequence[Path]
) -> Iterator[str]:
    """Yield a message for each key of `named_by` that is not the name of a model in `folders`, the
    repositories. The value of a key is the environment variable that contains the name."""
    repositories = ", ".join(map(str, folders))
    for name, variable in named_by.items():
        if name not in models:
            yield (
                f"{variable} names '{name}', and there is no folder of that name in "
                f"{repositories}; its models are: {listed(models)}"
            )


def _read_configs(
    models: Mapping[str, Path], names: Sequence[str], device: str, example: str
) -> tuple[dict[str, Any], dict[str, str]]:
    """Return two dictionaries, keyed by model name. The first contains the configurations of the
    named models and of the models that they call; those that cannot be read are empty. The second
    contains the reasons why they cannot be read. Raise LayoutError if a model that is called does
    not exist, or if a model has no version."""
    mistakes: list[str] = []
    unreadable: dict[str, str] = {}
    configs: dict[str, Any] = {}
    pending = [(name, "") for name in names]  # pairs of a model and the one that calls it
    for name, caller in pending:  # the loop itself appends to this list
        if name in configs:
            continue
        if name not in models:
            mistakes.append(missing_part(models[caller], name, list(models)))
            continue
        try:
            configs[name] = read_config(models[name], device)
        except Unreadable as err:
            configs[name] = ModelConfig()
            unreadable[name] = str(err)
        pending += [(part, name) for part in parts_of(configs[name])]
        if not versions(models[name]):
            is_ensemble = backend_of(configs[name]) == ENSEMBLE
            mistakes.append(no_version(models[name], is_ensemble))
    _raise_any(mistakes, example)
    return configs, unreadable


def _raise_any(mistakes: Iterable[str], *example: str) -> None:
    """Raise LayoutError if there are any mistakes. The lines of `example` follow the mistakes."""
    lines = list(mistakes)
    if lines:
        raise LayoutError([*lines, *example])


def _mistakes_of_permission(folders: Iterable[Path]) -> Iterator[str]:
    """Yield a message for each repository with files or folders that the current user may not read.
    This can happen because the image does not run as root, and archives preserve permissions."""
    for folder in folders:
        paths = [folder, *folder.rglob("*")] if folder.exists() else []
        closed = [str(path) for path in paths if _is_closed(path)]
        if closed:
            yield (
                f"the user of this process, {os.geteuid()}, may not read {listed(closed)}: chmod "
                f"-R a+rX {folder}"
            )


def _is_closed(path: Path) -> bool:
    """Return whether the current user lacks the right to read `path` or, if it is a folder, to
    enter it."""
    is_broken_link = not os.access(path, os.F_OK)
    # only root may read the folder lost+found, which a new file system contains
    if path.name == "lost+found" or is_broken_link:
        return False
    needed = os.R_OK | os.X_OK if path.is_dir() else os.R_OK
    return not os.access(path, needed)


def _actual_repository(folder: Path, warnings: list[str]) -> Path:
    """Return the folder. If its only subfolder is the actual repository, add a warning and return
    the subfolder instead. This happens if an archive was made with `tar czf model.tar.gz
    model_repository`."""
    with suppress(OSError):  # _collect_models will report the error
        subfolders = folders_in(folder)
        if is_model(folder) or len(subfolders) != 1:
            return folder
        (inner,) = subfolders
        if not is_model(inner) and has_model_folders(inner):
            warnings.append(
                f"{folder} has only the folder '{inner.name}', which contains models: serving these"
            )
            return inner
    return folder


def _collect_models(folders: Sequence[Path], warnings: list[str], example: str) -> dict[str, Path]:
    """Return the folders of all models, keyed by name. Add a warning for each other folder, except
    CLIENTS. Raise LayoutError if a repository is missing, cannot be read or is itself a model, if
    two repositories have a model of the same name, or if there is no model. `example` is added to
    the error."""
    models: dict[str, Path] = {}
    mistakes: list[str] = []
    for folder in folders:
        try:
            if mistake := _mistake_of_repository(folder):
                mistakes.append(mistake)
                continue
            children = folders_in(folder)
            named = {path.name: path for path in children if is_model(path)}
        except OSError as err:
            mistakes.append(f"the model repository {folder} cannot be read: {err.strerror}")
            continue
        for path in children:
            if path.name not in named and path.name != CLIENTS:
                warnings.append(f"{path} is ignored: it is not a model")
        for name, path in named.items():
            if name in models:
                mistakes.append(
                    f"two repositories have a model '{name}': {models[name]} and {path}"
                )
        models = named | models
    if not models and not mistakes:
        mistakes = [
            f"there is no model in {folder}: found {contents(folder)}" for folder in folders
        ]
        if any(any(folder.glob("*.tar.gz")) for folder in folders):
            mistakes.append("archives are served only with SERVE_MODELS=on-demand")
    _raise_any(mistakes, example)
    return models


def _mistake_of_repository(folder: Path) -> str:
    """Return the error message if the folder does not exist or is itself a model, else ""."""
    if not folder.exists():
        return f"there is no model repository {folder}"
    if not is_model(folder):
        return ""
    name = folder.resolve().name or "MODEL"
    with suppress(Unreadable):
        name = read_config(folder, "").name or name
    return at_root(folder, name)


if __name__ == "__main__":
    stages = "stage" in sys.argv[1:]
    result = survey(Settings.from_env(os.environ), backend_directory(), stages)
    json.dump(asdict(result), sys.stdout)
