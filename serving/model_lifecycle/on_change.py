"""Replaces models whose folders change, without interrupting the others (SERVE_RELOAD).

The folders are compared every second. When a changed folder has stayed the same for a moment, it is
copied. The copy is checked as `serve --check` does, in a separate tritonserver. It is then staged,
and Triton loads the new model while it still serves the old one.

A call in flight may already reach the new model. Models that are connected by calls are checked
together and loaded one after another. A rejected folder is tried again when it changes.
"""

import logging
import os
import secrets
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from serving.errors import ConfigError, ServingError, TritonTimeout, TritonUnavailable
from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.policy import Policy
from serving.model_status.models import Entry, Rejection
from serving.model_status.states import UNLOADING, Event
from serving.repository import run_preparation
from serving.repository.layout import LayoutError, folders_in, is_model
from serving.repository.model_config import (
    ModelConfig,
    Unreadable,
    parts_of,
    read_config,
    shared_clients,
)
from serving.repository.paths import with_sources
from serving.repository.staging import copy_model, signature
from serving.settings.settings import Settings

log = logging.getLogger(__name__)
SETTLED_SECONDS = 0.9  # a folder counts as complete after this many seconds without a change
# Copies are kept for this time after they are no longer served, because a worker may still be
# creating a client from one of them.
KEPT_SECONDS = 60.0
ENDED = (
    "tritonserver ended while it loaded the model; correct it, or touch a file in it to try again"
)


class Rejected(Exception):
    """Raised if changed model folders cannot be served. `args` contains one line per mistake."""


@dataclass(frozen=True)
class ModelFolder:
    """A model folder. `signature` is a fingerprint of `folder` and `clients`. `parts` names the
    models that the model calls. `clients` is the repository's folder of shared clients if it
    contains the model's client, else None. `copy` is the copy from which a changed model is
    served."""

    folder: Path
    signature: str
    parts: tuple[str, ...]
    clients: Path | None
    copy: Path = Path()

    def entry(self, load_id: str, column: int) -> Entry:
        """Return the entry that the model gets in the table after it has been loaded from its
        copy."""
        return Entry(
            name=self.folder.name,
            triton_name=self.folder.name,
            folder=str(self.copy),
            load_id=load_id,
            column=column,
            parts=self.parts,
            began=time.monotonic(),
            answered=True,
            signature=self.signature,
            source=str(self.folder),
        )


class OnChange(Policy):
    """The policy that loads models when their folders change. Only `handle_failure` is
    thread-safe."""

    def __init__(self, manager: Manager) -> None:
        super().__init__(manager)
        # maps (name, signature) to the time at which the model was first seen with this signature
        self._since: dict[tuple[str, str], float] = {}
        self._seen: dict[str, ModelFolder] = {}  # what `_look` returned last

    def _look(self) -> dict[str, ModelFolder]:
        """Return the model folders, keyed by name, and update `_seen` and `_since`. Raise OSError
        if a repository cannot be read: its models must not be treated as removed."""
        paths: list[Path] = []
        for repository in self.settings.model_repositories:
            paths += folders_in(repository)
        folders: dict[str, ModelFolder] = {}
        # reversed, so that of models with the same name the first repository's is served
        for path in reversed(paths):
            try:
                if is_model(path):
                    folders[path.name] = self._read(path)
            except FileNotFoundError:
                continue  # the folder is being removed
            except OSError:  # if the folder cannot be read at the moment, keep its model unchanged
                if path.name in self._seen:
                    folders[path.name] = self._seen[path.name]
        self._seen = folders
        known = {name for name, _ in self._since}  # includes models that have just been removed
        signatures = _signatures(folders, folders.keys() | known)
        now = time.monotonic()
        self._since = {pair: self._since.get(pair, now) for pair in signatures.items()}
        return folders

    def _read(self, path: Path) -> ModelFolder:
        """Read a model folder. Raise OSError."""
        own_signature = signature(path)
        config = _config(path, own_signature, self.settings.device)
        clients = shared_clients(path, config)
        whole_signature = signature(path, clients) if clients else own_signature
        return ModelFolder(path, whole_signature, tuple(parts_of(config)), clients)

    def handle_failure(self, entry: Entry, reason: str) -> None:
        """Stop serving the model, and report it as rejected."""
        with self.manager.changing(entry.name):
            if self.manager.is_current(entry):
                self._reject({entry.name: entry.signature}, [reason], "it is not served")
                self.manager.drop(entry)

    def step(self) -> None:
        """Look for changed model folders, and serve those that have settled. Raise OSError,
        TritonUnavailable or TritonTimeout."""
        folders = self._look()
        self._remove_copies()
        # forget the rejections of folders that have changed since
        self._filter_rejections(
            lambda rejection: rejection.folders == _signatures(folders, rejection.folders)
        )
        wanted = _wanted(self.settings, folders)
        table = self.manager.models()
        rejected = [rejection.folders for rejection in table.rejected]
        units = [
            unit
            for unit in _changed_units(wanted, folders, table.entries)
            if _signatures(folders, unit) not in rejected
        ]
        changed = set().union(*units)
        new = (changed & wanted) - table.entries.keys()
        self.manager.write(lambda models: replace(models, checking=tuple(sorted(new))))
        for unit in units:
            signatures = _signatures(folders, unit)
            if not self._has_settled(signatures):
                continue
            try:
                self._change(unit, {name: folders[name] for name in unit & wanted})
            except Rejected as err:
                self._reject(signatures, err.args, "what was served before, if anything, stays")

    def _has_settled(self, signatures: Mapping[str, str]) -> bool:
        """Return whether all models have had these `signatures` for SETTLED_SECONDS."""
        last_change = max(self._since.get(pair, 0.0) for pair in signatures.items())
        return time.monotonic() >= last_change + SETTLED_SECONDS

    def _change(self, unit: Collection[str], folders: Mapping[str, ModelFolder]) -> None:
        """Check the models in `folders`, and serve them. Stop serving the other models of the
        `unit`, which were removed or are no longer wanted. Raise Rejected if a model cannot be
        served, or TritonUnavailable or TritonTimeout if Triton does not answer."""
        self.manager.gateway.is_live()  # raises an error if Triton does not answer
        if folders:
            load_id = secrets.token_hex(8)
            models = [self._with_copy(folders[name], load_id) for name in _parts_first(folders)]
            log.info("%s: changed or new; checking it", _joined_names(models))
            try:
                _copy(models)
                _check(self.settings, models)
                for model in models:
                    self._serve(model, load_id)
            except Rejected as err:
                # name the author's folders instead of the copies and the staged folders
                sources: dict[Path, Path] = {}
                for model in models:
                    sources[model.copy.parent] = model.folder.parent
                    sources[self.manager.store.path(model.folder.name)] = model.folder
                raise Rejected(*(with_sources(line, sources) for line in err.args)) from None
        self._retire(set(unit) - folders.keys())

    def _with_copy(self, model: ModelFolder, load_id: str) -> ModelFolder:
        """Return the model with the path of its copy. Models from the same repository are copied
        next to each other, because they share the repository's folder clients/."""
        repository = self.settings.model_repositories.index(model.folder.parent)
        copies = self.settings.copies_folder / f"{load_id}-{repository}"
        return replace(model, copy=copies / model.folder.name)

    def _remove_copies(self) -> None:
        """Remove the folders of copies from which no model has been served for KEPT_SECONDS."""
        entries = self.manager.models().entries.values()
        served = {Path(entry.folder).parent for entry in entries}
        for copies in self.settings.copies_folder.glob("*"):
            if copies in served:
                os.utime(copies)  # the modification time is when the copies were last served
            elif copies.stat().st_mtime < time.time() - KEPT_SECONDS:
                shutil.rmtree(copies, ignore_errors=True)

    def _retire(self, names: Collection[str]) -> None:
        """Unload the models `names`, ensembles before their parts. Raise TritonTimeout or
        TritonUnavailable."""
        calls = {name: entry.parts for name, entry in self.manager.models().entries.items()}
        for name in reversed([*TopologicalSorter(calls).static_order()]):
            entry = self.manager.get(name)
            if name in names and entry:
                with self.manager.changing(name):
                    self.manager.unload(entry)
                reason = "its folder was removed, or no model that is served calls it any more"
                log.info("%s: %s, so it is no longer served", name, reason)

    def _serve(self, model: ModelFolder, load_id: str) -> None:
        """Serve `model` in place of the model that has been served under its name, if there is one.
        If the manager is killed meanwhile, the next manager tries again. If the load fails, keep
        the old model and raise Rejected. If the load takes too long, also kill tritonserver."""
        manager = self.manager
        name = model.folder.name
        old = manager.get(name)
        with manager.changing(name):
            try:
                manager.store.stage(model.copy, name)
                column = old.column if old else manager.free_column()
                entry = model.entry(load_id, column)
                versions = manager.load(entry)
            except (ConfigError, ServingError) as err:
                self._restore(name, old)
                # the load may still finish and replace the served model
                if isinstance(err, TritonTimeout):
                    manager.kill_server(f"the load of '{name}' does not end")
                reason = ENDED if isinstance(err, TritonUnavailable) else err
                raise Rejected(f"{name}: {reason}") from err
            manager.move(entry, Event.SERVE, versions=versions)
            self._filter_rejections(lambda rejection: name not in rejection.folders)
        log.info("%s: the model in %s is now served", name, model.folder)

    def _restore(self, name: str, old: Entry | None) -> None:
        """Stage the old model again, so that a restarted tritonserver loads it instead of the
        rejected one. If there is no old model, unstage the rejected one."""
        if old:
            self.manager.store.stage(Path(old.folder), name)
        else:
            self.manager.store.remove(name)

    def _reject(self, signatures: dict[str, str], reasons: Sequence[str], outcome: str) -> None:
        """Log each of the `reasons`, followed by the `outcome` for what is served, and reject the
        models whose names and signatures are in `signatures`. This replaces their earlier
        rejections."""
        for reason in reasons:
            log.error("%s; %s", reason, outcome)
        self._filter_rejections(
            lambda rejection: signatures.keys().isdisjoint(rejection.folders),
            Rejection(signatures, list(reasons)),
        )

    def _filter_rejections(self, keep: Callable[[Rejection], bool], *new: Rejection) -> None:
        """Remove the rejections for which `keep` returns False, and add the `new` ones."""
        self.manager.write(
            lambda models: replace(models, rejected=(*filter(keep, models.rejected), *new))
        )


@lru_cache(maxsize=4096)
def _config(folder: Path, folder_signature: str, device: str) -> Any:
    """Return the configuration of a model folder. `folder_signature` is only part of the cache's
    key, so that a changed folder is read again."""
    try:
        return read_config(folder, device)
    except Unreadable:  # reported when the model is checked
        return ModelConfig()


def _signatures(folders: Mapping[str, ModelFolder], names: Iterable[str]) -> dict[str, str]:
    """Map each of the models `names` to its signature, or to "" if its folder no longer exists."""
    return {name: folders[name].signature if name in folders else "" for name in sorted(names)}


def _changed_units(
    wanted: set[str], folders: Mapping[str, ModelFolder], served: Mapping[str, Entry]
) -> Iterator[set[str]]:
    """Yield the units, the largest sets of models that are connected by calls, in which at least
    one model is new, has changed, was removed, is no longer wanted or is still being unloaded."""
    names = wanted | served.keys()
    # each group is a model and the models that it calls
    groups = [{name, *folders[name].parts} & names for name in wanted]
    groups += [{name, *entry.parts} & names for name, entry in served.items()]
    unchanged = set()
    for name in wanted & served.keys():
        folder = folders[name]
        entry = served[name]
        is_same = (entry.source, entry.signature) == (str(folder.folder), folder.signature)
        if is_same and entry.state != UNLOADING:
            unchanged.add(name)
    pending = names - unchanged
    while pending:
        unit = {pending.pop()}
        size = 0
        while len(unit) > size:  # add models that call a model in the unit or are called by one
            size = len(unit)
            unit.update(*(group for group in groups if not unit.isdisjoint(group)))
        pending -= unit
        yield unit


def _wanted(settings: Settings, folders: Mapping[str, ModelFolder]) -> set[str]:
    """Return the names of the models to serve: those that the settings name and the models that
    they call, or all models if the settings name none."""
    named = set(settings.load_models)
    if settings.default_model:
        named.add(settings.default_model)
    wanted = list((named or folders.keys()) & folders.keys())
    for name in wanted:  # the loop itself appends to this list
        parts = set(folders[name].parts) & folders.keys()
        wanted += parts - set(wanted)
    return set(wanted)


def _parts_first(folders: Mapping[str, ModelFolder]) -> list[str]:
    """Return the names of the models in topological order, each after those of the models that it
    calls. Raise Rejected if models call each other in a circle."""
    calls = {name: set(folders[name].parts) & folders.keys() for name in sorted(folders)}
    try:
        return list(TopologicalSorter(calls).static_order())
    except CycleError as err:
        circle = "these models call each other in a circle; remove one of the calls"
        raise Rejected(f"{', '.join(calls)}: {circle}") from err


def _joined_names(models: Iterable[ModelFolder]) -> str:
    return ", ".join(model.folder.name for model in models)


def _copy(models: Iterable[ModelFolder]) -> None:
    """Copy the model folders, because they may change while they are checked and served. Raise
    Rejected if that fails."""
    try:
        for model in models:
            copy_model(model.folder, model.copy, model.clients)
    except OSError as err:
        raise Rejected(f"{_joined_names(models)}: the folder cannot be copied: {err}") from err


def _check(settings: Settings, models: Iterable[ModelFolder]) -> None:
    """Check the copies as `serve --check` does. Raise Rejected if there are mistakes. Otherwise,
    log the notes of the survey."""
    names = tuple(model.copy.name for model in models)
    settings = replace(
        settings,
        model_repositories=tuple({model.copy.parent for model in models}),
        load_models=names,
        default_model=min(names),  # any of them, so that no warning says that none is set
        reload="false",
    )
    try:
        survey = run_preparation.survey(settings)
        reasons = survey.unreadable or run_preparation.mistakes(settings)
    except LayoutError as err:
        # an entry with several lines is not a mistake, but shows an example of a repository
        reasons = [line for line in err.mistakes if "\n" not in line]
    if reasons:
        raise Rejected(*reasons)
    for note in (*survey.warnings, *survey.engines):
        log.info(note)
