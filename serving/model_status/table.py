"""The table of models: the state of each model, and why it does not answer. Standard library
only."""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from serving.errors import (
    ModelFailed,
    ModelNotLoaded,
    ModelNotReady,
    ModelRefused,
    ModelRestarting,
    ServingError,
)

LOADING, READY, RESTARTING, REFUSED, FAILED, UNLOADING = (
    "loading",
    "ready",
    "restarting",
    "refused",
    "failed",
    "unloading",
)


@dataclass(frozen=True)
class Entry:
    """A model. Callers (in multi-model mode the platform) know it as `name`, Triton as
    `triton_name`.

    Its client is made from `folder`. `load_id` distinguishes its loads, `column` is that of its
    counter in the leases. `parts` are Triton's names of the models that an ensemble calls. `reason`
    says why the model is not ready; a refused model is tried again at `until`. `began` is when the
    load began (time.monotonic). `answered` says that the model has answered its example since then,
    or need not. An archive has a `target` and a `url`, a watched folder a `signature` and its
    `source`.
    """

    name: str
    triton_name: str
    folder: str
    load_id: str
    column: int
    state: str = LOADING
    parts: tuple[str, ...] = ()
    reason: str = ""
    until: float = 0.0
    began: float = 0.0
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
        if self.state == RESTARTING:
            return ModelRestarting(self.name, self.reason)
        if self.state == REFUSED:
            return ModelRefused(
                self.name, self.reason, max(1, round(self.until - time.monotonic()))
            )
        if self.state == FAILED:
            return ModelFailed(self.name, self.reason)
        # the platform's first load of an archive is in progress
        if self.target and not self.reason:
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
    """The table: models by name, what was rejected, how often a process of each model died, and
    tritonserver's process id. `checking` names models whose new folders are being checked,
    `was_ready` says that once all models have answered their examples,
    `on_demand` that POST /models loads them."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    rejected: tuple[Rejection, ...] = ()
    checking: tuple[str, ...] = ()
    deaths: Mapping[str, int] = field(default_factory=dict)
    server: int = 0
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

    def awaits_server(self, entry: Entry) -> bool:
        """Return whether tritonserver loads the model while it starts; a model that POST /models
        loads comes later."""
        return entry.state == LOADING and bool(entry.reason or not self.on_demand)

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
