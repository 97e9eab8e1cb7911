"""Model folders that change while the rest is served (SERVE_RELOAD).

    every second: signatures -> settled -> copy -> `--check` of the copy in its own tritonserver
        -> staged in place -> Triton loads it while the old one serves

A call in flight may reach the new model. Models that call each other are checked together, and
loaded one after the other. A rejected folder is tried again when it changes.
"""

import json
import logging
import os
import secrets
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Any

from serving.errors import ConfigError, ServingError, TritonTimeout, TritonUnavailable
from serving.model_lifecycle.manager import AtStart, Manager
from serving.model_status.table import READY, UNLOADING, Entry, Rejection
from serving.repository.layout import CLIENTS, Survey, folders_in, is_model
from serving.repository.model_config import (
    ModelConfig,
    Unreadable,
    parts_of,
    read_config,
    shared_clients,
)
from serving.repository.staging import copy_model, signature
from serving.settings.table import Settings

log = logging.getLogger(__name__)
ROOT = Path(__file__).resolve().parents[2]
SETTLED = 0.9  # seconds without a change
# seconds that the copy of a replaced model is kept: a worker may still be making its client from it
KEPT = 60.0


class Rejected(Exception):
    """The changed folders are not served; `args` has a line for each mistake."""


@dataclass(frozen=True)
class ModelFolder:
    """A model folder, its signature, the models that it calls, and the folder of its client if that
    is another one."""

    folder: Path
    signature: str
    parts: tuple[str, ...]
    clients: Path | None


class OnChange(AtStart):
    """The policy that loads models when their folders change. One thread uses it."""

    def __init__(self, manager: Manager) -> None:
        super().__init__(manager)
        self._configs: dict[tuple[Path, str], Any] = {}
        # the last change of each: its signature, when it was seen
        self._since: dict[str, tuple[str, float]] = {}
        self._old: list[tuple[float, Path]] = []
        self._seen: dict[str, ModelFolder] = {}

    def _look(self) -> dict[str, ModelFolder]:
        """Return the models by name. Raise OSError if a repository cannot be read: its models are
        not removed."""
        paths = [
            path
            for repository in self.settings.model_repositories
            for path in folders_in(repository)
        ]
        folders: dict[str, ModelFolder] = {}
        for path in reversed(paths):
            try:
                if is_model(path):
                    state = signature(path)
                    config = self._config(path, state)
                    clients = shared_clients(path, config)
                    state = signature(path, clients) if clients else state
                    folders[path.name] = ModelFolder(path, state, tuple(parts_of(config)), clients)
            except FileNotFoundError:
                continue  # being removed
            except OSError:  # it cannot be read now: its model stays as it is
                if path.name in self._seen:
                    folders[path.name] = self._seen[path.name]
        self._seen = folders
        for name in folders.keys() | self._since.keys():
            state = folders[name].signature if name in folders else ""
            if self._since.get(name, ("?", 0.0))[0] != state:
                self._since[name] = (state, time.monotonic())
        return folders

    def _config(self, folder: Path, state: str) -> Any:
        if (folder, state) not in self._configs:
            try:
                self._configs[folder, state] = read_config(folder, self.settings.device)
            except Unreadable:  # reported when the model is checked
                self._configs[folder, state] = ModelConfig()
        return self._configs[folder, state]

    def failed(self, entry: Entry, reason: str) -> None:
        """Go on without the model."""
        with self.manager.changing(entry.name):
            if self.manager.is_current(entry):
                self._reject({entry.name: entry.signature}, [reason], "it is not served")
                self.manager.drop(entry)

    def step(self) -> None:
        """Serve what has changed. Raise OSError, TritonUnavailable, TritonTimeout."""
        folders = self._look()
        while self._old and self._old[0][0] < time.monotonic() - KEPT:
            _remove(self._old.pop(0)[1])
        self._keep_rejected(
            lambda rejection: rejection.folders == _states(folders, rejection.folders)
        )
        wanted = _wanted(self.settings, folders)
        rejected = [rejection.folders for rejection in self.manager.models().rejected]
        units = [
            unit
            for unit in _units(wanted, folders, self.manager.models().entries)
            if _states(folders, unit) not in rejected
        ]
        new = set().union(*units) & wanted - self.manager.models().entries.keys()
        self.manager.write(lambda models: replace(models, checking=tuple(sorted(new))))
        for unit in units:
            state = _states(folders, unit)
            changed = max(
                (self._since[name][1] for name in unit if name in self._since), default=0.0
            )
            if time.monotonic() < changed + SETTLED:
                continue
            try:
                self._change(unit, {name: folders[name] for name in unit & wanted})
            except CycleError:
                circle = (
                    f"{', '.join(state)}: these models call each other in a circle; remove one "
                    "of the calls"
                )
                self._reject(state, [circle], "what was served before, if anything, stays")
            except Rejected as err:
                self._reject(state, err.args, "what was served before, if anything, stays")

    def _change(self, unit: Collection[str], folders: Mapping[str, ModelFolder]) -> None:
        """Check and serve the changed models of a unit. Raise Rejected, or TritonUnavailable before
        Triton runs."""
        self.manager.gateway.is_live()
        graph = {name: set(folders[name].parts) & folders.keys() for name in sorted(folders)}
        order = list(TopologicalSorter(graph).static_order())
        load = secrets.token_hex(8)
        copies = {}
        # models of one repository are copied side by side, for their clients/
        for name, model in folders.items():
            repository = self.settings.model_repositories.index(model.folder.parent)
            copies[name] = self.settings.copies_folder / f"{load}-{repository}" / name
        if order:
            log.info("%s: changed or new; checking it", ", ".join(order))
            try:
                for name in order:
                    copy_model(folders[name].folder, copies[name], folders[name].clients)
            except OSError as err:
                raise Rejected(f"{', '.join(order)}: the folder cannot be copied: {err}") from err
            try:
                for note in _checked(
                    self.settings, {folder.parent for folder in copies.values()}, order
                ):
                    log.info(note)
                for name in order:
                    self._serve(name, folders[name], copies[name], load)
            except Rejected as err:
                for name in order:
                    served = self.manager.get(name)
                    if served is None or served.folder != str(copies[name]):
                        _remove(copies[name])
                reasons = err.args
                for name in order:
                    ours = str(copies[name].parent)
                    source = str(folders[name].folder.parent)
                    reasons = tuple(reason.replace(ours, source) for reason in reasons)
                raise Rejected(*reasons) from err
        gone_first = TopologicalSorter(
            {name: set(entry.parts) for name, entry in self.manager.models().entries.items()}
        )
        for name in reversed(
            [name for name in gone_first.static_order() if name in set(unit) - folders.keys()]
        ):
            if (gone := self.manager.get(name)) is not None:
                with self.manager.changing(name):
                    self.manager.unload(gone)
                self._old.append((time.monotonic(), Path(gone.folder)))
                log.info("%s: its folder was removed, so it is no longer served", name)

    def _serve(self, name: str, source: ModelFolder, folder: Path, load: str) -> None:
        """Load the model in place of the one that is served. If that fails, the old one stays.
        Raise Rejected."""
        manager, old = self.manager, self.manager.get(name)
        with manager.changing(name):
            try:
                manager.store.stage(folder, name)
                entry = Entry(
                    name,
                    name,
                    str(folder),
                    load,
                    old.column if old else manager.free_column(),
                    READY,
                    source.parts,
                    began=time.monotonic(),
                    answered=True,
                    signature=source.signature,
                    source=str(source.folder),
                )
                manager.load(entry)
            except (ConfigError, ServingError) as err:
                if old:
                    manager.store.stage(Path(old.folder), name)
                else:
                    manager.store.remove(name)
                # it may still end, and would replace what is served: what is staged now is loaded
                if isinstance(err, TritonTimeout):
                    manager.kill_server(f"the load of '{name}' does not end")
                ended = (
                    "tritonserver ended while it loaded the model; correct it, or touch a file "
                    "in it to try again"
                )
                raise Rejected(
                    f"{name}: {ended if isinstance(err, TritonUnavailable) else err}"
                ) from err
            manager.put(entry)
            self._keep_rejected(lambda rejection: name not in rejection.folders)
        if old:
            self._old.append((time.monotonic(), Path(old.folder)))
        log.info("%s: the model in %s is now served", name, source.folder)

    def _reject(self, state: dict[str, str], reasons: Sequence[str], outcome: str) -> None:
        for reason in reasons:
            log.error("%s; %s", reason, outcome)
        self._keep_rejected(
            lambda rejection: not state.keys() & rejection.folders.keys(),
            Rejection(state, list(reasons)),
        )

    def _keep_rejected(self, keep: Callable[[Rejection], bool], *new: Rejection) -> None:
        """Keep these of the rejected changes, and add new ones."""
        self.manager.write(
            lambda models: replace(models, rejected=(*filter(keep, models.rejected), *new))
        )


def _states(folders: Mapping[str, ModelFolder], names: Iterable[str]) -> dict[str, str]:
    """Return the signature of each model, "" if its folder is gone."""
    return {name: folders[name].signature if name in folders else "" for name in sorted(names)}


def _remove(copied: Path) -> None:
    """Remove the copy of a model. With the last model of a load, also remove the copy of its
    clients/."""
    shutil.rmtree(copied, ignore_errors=True)
    with suppress(OSError):
        if not any(path.name != CLIENTS for path in copied.parent.iterdir()):
            shutil.rmtree(copied.parent)


def _units(
    wanted: set[str], folders: Mapping[str, ModelFolder], served: Mapping[str, Entry]
) -> Iterator[set[str]]:
    """Yield each group of models that call each other if one of them is new, has changed or was
    removed."""
    names = wanted | served.keys()
    calls = [(name, part) for name in wanted for part in folders[name].parts]
    calls += [(name, part) for name, entry in served.items() for part in entry.parts]
    pairs = [pair for pair in calls if names.issuperset(pair)]
    current = {(e.name, e.source, e.signature) for e in served.values() if e.state != UNLOADING}
    pending = names - {
        name
        for name in wanted
        if (name, str(folders[name].folder), folders[name].signature) in current
    }
    while pending:
        unit = {pending.pop()}
        size = 0
        while len(unit) > size:
            size = len(unit)
            unit.update(*(pair for pair in pairs if not unit.isdisjoint(pair)))
        pending -= unit
        yield unit


def _wanted(settings: Settings, folders: Mapping[str, ModelFolder]) -> set[str]:
    """Return the models that a start loads: those that the settings name, with all that they call,
    or all models."""
    named = [*settings.load_models, *filter(None, [settings.default_model])]
    pending, wanted = set(named or folders) & folders.keys(), set[str]()
    while pending:
        name = pending.pop()
        wanted.add(name)
        pending |= set(folders[name].parts) & folders.keys() - wanted
    return wanted


def _checked(
    settings: Settings, repositories: Collection[Path], names: Collection[str]
) -> Sequence[str]:
    """Check all models of these repositories as `serve --check` does. Return lines for the log.
    Raise Rejected."""
    checked = replace(
        settings, model_repositories=tuple(repositories), load_models=tuple(names), reload="false"
    )
    checked = replace(checked, default_model=min(names))
    process = _run(checked, "survey")
    if process.returncode:
        raise Rejected(f"it cannot be read: {_last(process.stderr)}")
    survey = Survey(**json.loads(process.stdout))
    if mistakes := survey.mistakes or survey.unreadable:
        # the others show a repository as it should be
        raise Rejected(*(line for line in mistakes if "\n" not in line))
    check = _run(checked, "check")
    if check.returncode:
        ignored = ("WARNING: ", *(f"{name}: loads and answers" for name in names))
        lines = [line for line in check.stdout.splitlines() if not line.startswith(ignored)]
        raise Rejected(
            *(
                lines
                if check.returncode == 1 and lines
                else [f"its check ended: {_last(check.stderr)}"]
            )
        )
    return (*survey.warnings, *survey.engines)


def _run(settings: Settings, module: str, *words: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", f"serving.preparation.{module}", *words]
    seconds, environ = settings.start_timeout, os.environ | settings.environment()
    try:
        return subprocess.run(
            command, env=environ, cwd=ROOT, capture_output=True, text=True, timeout=seconds
        )
    except subprocess.TimeoutExpired as err:
        raise Rejected(f"its check took more than {seconds:g} s (SERVE_START_TIMEOUT)") from err


def _last(text: str) -> str:
    return (text.strip().splitlines() or ["it says nothing"])[-1]
