"""python -m serving.preparation.survey: what lies in the model repositories, as the JSON of repository/facts.py.

`serve` runs it once, before all else: PID 1 has the standard library only, and config.pbtxt takes protobuf. The
environment has the settings.
"""

import os
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from serving.host.tritonserver import backend_directory, python_backends
from serving.repository.engines import Choice, Engines, told
from serving.repository.facts import Facts, ModelFacts
from serving.repository.layout import LayoutError, folders_in, is_model
from serving.repository.model_config import (
    ENSEMBLE,
    Unreadable,
    backend_of,
    is_complete,
    parts_of,
    read_config,
    written,
)
from serving.repository.served import Served, served
from serving.settings.table import Settings

CLIENTS = Path(__file__).resolve().parents[2] / "clients"


def survey(settings: Settings, backends: Path) -> Facts:
    """What a start needs to know; its mistakes end the start."""
    try:
        found = served(settings.model_repositories, settings.default_model, settings.load_models, settings.device)
    except LayoutError as err:
        return Facts(mistakes=err.mistakes)
    facts = Facts(
        folders=tuple(map(str, found.folders)),
        models=_models(found),
        default=found.default,
        warnings=found.warnings,
        unreadable=found.unreadable,
    )
    if facts.unreadable:
        return facts
    settings = replace(settings, model_repositories=found.folders, load_models=tuple(found.models))
    facts = with_configs(facts, settings, Engines(settings, backends))
    if facts.unreadable:
        return facts
    return replace(facts, complete=all_complete(settings, backends))


def _models(found: Served) -> Mapping[str, ModelFacts]:
    return {name: ModelFacts(tuple(parts_of(config)), backend_of(config)) for name, config in found.configs.items()}


def with_configs(facts: Facts, settings: Settings, engines: Engines) -> Facts:
    """The same with the configurations that are made for this machine, and what the log says of them."""
    configs: dict[str, str] = {}
    choices: dict[str, Choice] = {}
    unreadable: list[str] = []
    for folder in (path for repository in settings.model_repositories for path in folders_in(repository)):
        try:
            made, choice = engines.made(folder)
        except Unreadable as err:  # else it is not loaded now
            unreadable += [str(err)] if folder.name in settings.load_models else []
            continue
        if made is not None:
            configs[str(folder)] = written(made)
        if folder.name in settings.load_models:
            choices |= {folder.name: choice} if choice else {}
    return replace(
        facts,
        configs=configs,
        engines=tuple(told(choices, refused=False)),
        warnings=(*facts.warnings, *told(choices, refused=True)),
        unreadable=tuple(unreadable),
    )


def all_complete(settings: Settings, backends: Path) -> bool:
    """Whether Triton needs to complete nothing: all models that it could load are complete, and their backends are
    written in Python (others complete more than what is missing)."""
    if any("model-control-mode" in argument for argument in settings.additional_arguments):
        return False  # models may come later
    known = {ENSEMBLE, *python_backends(backends)}
    models = [model for folder in settings.model_repositories for model in folders_in(folder) if is_model(model)]
    return all(_is_complete(model, settings.device, known) for model in models)


def _is_complete(model: Path, device: str, backends: set[str]) -> bool:
    try:
        config = read_config(model, device)
    except Unreadable:  # of a model that is not loaded now
        return False
    return backend_of(config) in backends and is_complete(model, config)


if __name__ == "__main__":
    sys.stdout.write(survey(Settings.from_env(os.environ), backend_directory()).to_json())
