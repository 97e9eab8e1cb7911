"""The table of models: the state of each model, and why it does not answer. Standard library
only."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from serving.errors import (
    ModelFailed,
    ModelNotLoaded,
    ModelNotReady,
    ModelRefused,
    ModelRestarting,
    ServingError,
)
from serving.model_status.states import (
    ADDING,
    FAILED,
    LOADING,
    READY,
    REFUSED,
    REFUSING,
    RELOADED,
    RELOADING,
    RESTARTING,
    UNLOADING,
    Event,
)


@dataclass(frozen=True)
class Entry:
    """A model. Callers (in multi-model mode the platform) know it as `name`, Triton as
    `triton_name`.

    Its client is made from `folder`. `load_id` distinguishes its loads, `column` is that of its
    counter in the leases. `parts` are Triton's names of the models that an ensemble calls,
    `versions` those that Triton has loaded. `reason` says why the model is not ready; a refused
    model is reloaded at `until`, and `refusals` counts how often it was refused. Processes that
    died before `began` (time.monotonic) are of an earlier load or reload; `crashes` has the times
    of later deaths. `answered` says that the model has answered its example, or need not. An
    archive has a `target` and a `url`, a watched folder a `signature` and its `source`.
    """

    name: str
    triton_name: str
    folder: str
    load_id: str
    column: int
    state: str = LOADING
    parts: tuple[str, ...] = ()
    versions: tuple[str, ...] = ()
    reason: str = ""
    until: float = 0.0
    refusals: int = 0
    began: float = 0.0
    crashes: tuple[float, ...] = ()
    answered: bool = False
    target: str = ""
    url: str = ""
    signature: str = ""
    source: str = ""

    @cached_property
    def key(self) -> tuple[str, str, str]:
        """Return what identifies this load: its ServedModel is made from this."""
        return self.load_id, self.triton_name, self.folder

    def error(self) -> ServingError | None:
        """Return why the model does not answer, None if it does."""
        if self.state == READY:
            return None
        if self.state in (RESTARTING, RELOADING, RELOADED):
            return ModelRestarting(self.name, self.reason)
        if self.state in (REFUSING, REFUSED):
            return ModelRefused(
                self.name, self.reason, max(1, round(self.until - time.monotonic()))
            )
        if self.state == FAILED:
            return ModelFailed(self.name, self.reason)
        if self.state == ADDING:
            return ModelNotLoaded(self.name)
        return ModelNotReady(f"model '{self.name}' is being loaded; try again shortly")


@dataclass(frozen=True)
class Rejection:
    """A change of model folders (name -> signature) that is not served; `reasons` has a line for
    each mistake."""

    folders: dict[str, str]
    reasons: list[str]


@dataclass(frozen=True)
class Models:
    """The table: models by name, what was rejected, how often a process of each model died,
    tritonserver's process id, and how many reloads it has made. `checking` names models whose new
    folders are being checked, `was_ready` says that once all models have answered their examples,
    `on_demand` that POST /models loads them."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    rejected: tuple[Rejection, ...] = ()
    checking: tuple[str, ...] = ()
    deaths: Mapping[str, int] = field(default_factory=dict)
    server: int = 0
    reloads: int = 0
    was_ready: bool = False
    on_demand: bool = False

    @cached_property
    def current(self) -> dict[str, Entry]:
        """Return the models that a call may begin to use: all but those that are being unloaded."""
        return {name: entry for name, entry in self.entries.items() if entry.state != UNLOADING}

    @cached_property
    def by_triton_name(self) -> dict[str, Entry]:
        return {entry.triton_name: entry for entry in self.current.values()}

    @cached_property
    def by_target(self) -> dict[str, Entry]:
        """Return the archives by their Target-Model, or by the platform's name."""
        return {
            **self.current,
            **{entry.target: entry for entry in self.current.values() if entry.target},
        }

    def with_entries(self, *entries: Entry) -> "Models":
        """Return the table with these models added or replaced."""
        return replace(self, entries={**self.entries, **{entry.name: entry for entry in entries}})

    def latest(self, entry: Entry) -> Entry | None:
        """Return this load of the model as it is now, None if another has replaced it."""
        latest = self.entries.get(entry.name)
        return latest if latest and latest.load_id == entry.load_id else None

    def updated(self, entry: Entry, **fields: Any) -> "Models":
        """Return the table with these fields of the model, unless another load has replaced it."""
        latest = self.latest(entry)
        return self.with_entries(replace(latest, **fields)) if latest else self

    def moved(self, entry: Entry, event: Event, **fields: Any) -> "Models":
        """Return the table with the model's state after `event`, and these fields, unless the event
        changes nothing in its state or another load has replaced it."""
        latest = self.latest(entry)
        state = event.value.get(latest.state) if latest else None
        return self.updated(entry, state=state, **fields) if state else self

    def all_moved(self, event: Event, **fields: Any) -> "Models":
        """Return the table after an event that happens to all models."""
        models = self
        for entry in self.entries.values():
            models = models.moved(entry, event, **fields)
        return models

    def error(self, entry: Entry) -> ServingError | None:
        """Return why the model does not answer. In an ensemble, the reasons of its parts come
        first, at any depth."""
        pending, called = [entry], list[Entry]()
        while pending:
            if (model := pending.pop(0)) not in called:  # Triton does not load a circle
                called.append(model)
                pending += [
                    self.by_triton_name[part] for part in model.parts if part in self.by_triton_name
                ]
        return next((error for model in reversed(called) if (error := model.error())), None)

    @cached_property
    def ready(self) -> dict[str, Entry]:
        """Return the models that answer, by each name that a caller may use."""
        return {name: entry for name, entry in self.by_target.items() if self.error(entry) is None}

    def unready(self) -> ServingError | None:
        """Return why /ping is 503, None if all models that should serve do. A restarted or refused
        model is no reason to replace a container that was ready once and serves others: a new
        container would have the same model."""
        entries = self.current
        if not entries:
            refused = "; ".join(
                reason for rejection in self.rejected for reason in rejection.reasons
            )
            return (
                None
                if self.on_demand
                else ModelNotReady(f"no model is served{f': {refused}' if refused else ''}")
            )
        errors = {name: error for name, entry in entries.items() if (error := self.error(entry))}
        troubles = {
            name: err
            for name, err in errors.items()
            if isinstance(err, (ModelRestarting, ModelRefused))
        }
        if troubles and (len(troubles) == len(entries) or not self.was_ready):
            return next(iter(troubles.values()))
        if failed := errors.keys() - troubles.keys():
            return errors[
                min(failed, key=lambda name: (not isinstance(errors[name], ModelFailed), name))
            ]
        waiting = (
            entry for name, entry in entries.items() if not entry.answered and name not in errors
        )
        if entry := next(waiting, None):
            return ModelNotReady(
                f"model '{entry.name}': {entry.reason or 'its example is being tested'}"
            )
        return None
