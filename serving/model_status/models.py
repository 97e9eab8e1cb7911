"""Defines the table of models, which records the state of each model and why it is not ready.
Standard library only."""

import math
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain
from typing import Any

from serving.errors import (
    ModelFailed,
    ModelNotLoaded,
    ModelNotReady,
    ModelRefused,
    ModelRestarting,
    ServingError,
    rebuilt,
)
from serving.model_status.states import (
    ABSENT,
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
from serving.settings.settings import AT_START, POLICIES


@dataclass(frozen=True)
class Entry:
    """A model in the table. Callers know it as `name`, Triton as `triton_name`. In multi-model
    mode, `name` is the platform's name for the model, and callers use `target`.

    The model's client is created from `folder`. `load_id` is unique to each load; `column` is the
    column of the model's counter in the leases. `parts` are Triton's names for the models that an
    ensemble calls; `versions` are the versions that Triton has loaded. `signature` is a fingerprint
    of the model's files; it is "" in multi-model mode.

    In multi-model and on-demand mode, `target` is set, `url` says where the archive or folder is,
    and the `parts` are loaded and unloaded together with the model. In other modes, each part has
    an entry of its own, and `source` is the author's folder, of which `folder` may be a copy.

    `reason` says why the model is not ready. `answered` is true if the model has answered its
    example, or does not need to. A refused model is reloaded at `until`; `refusals` counts how
    often it was refused. If a dead process was last seen alive before `began` (time.monotonic), it
    belonged to an earlier load or reload; `crashes` lists the times of the latest crashes
    (recovery.py).

    `estimated` is how many bytes of memory the model was expected to take, and `bytes` is how many
    it was measured to take. The model may be evicted after `idle` seconds without a call.
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
    estimated: int = 0
    bytes: int = 0
    idle: float = 0.0

    @cached_property
    def key(self) -> tuple[str, str, str]:
        """Return the key of this load, from which its ServedModel is created."""
        return self.load_id, self.triton_name, self.folder

    def error(self) -> ServingError | None:
        """Return the error that says why the model is not ready, or None if it is."""
        if self.state == READY:
            return None
        if self.state in (RESTARTING, RELOADING, RELOADED):
            return ModelRestarting(self.name, self.reason)
        if self.state in (REFUSING, REFUSED):
            seconds = round(self.until - time.monotonic())
            return ModelRefused(self.name, self.reason, max(1, seconds))
        if self.state == FAILED:
            return ModelFailed(self.name, self.reason)
        if self.state == ADDING:
            return ModelNotLoaded(self.name)
        # the state is LOADING, because a model in UNLOADING cannot be found by any name
        return ModelNotReady(f"model '{self.name}' is being loaded; try again shortly")


@dataclass(frozen=True)
class Rejection:
    """Records that model folders, or a load on demand, were rejected. `folders` maps the models'
    names to their signatures. `reasons` contains one line per mistake. `until` (time.monotonic) is
    when the load may be tried again, which is `seconds` after it failed. `code` is the code of the
    error that callers get."""

    folders: dict[str, str]
    reasons: list[str]
    until: float = math.inf
    seconds: float = 0.0
    code: str = ModelFailed.code

    def is_current(self) -> bool:
        """Return whether calls still get the error: `until` has not passed."""
        return self.until > time.monotonic()


def _joined_reasons(rejections: Iterable[Rejection]) -> str:
    return "; ".join(chain.from_iterable(rejection.reasons for rejection in rejections))


@dataclass(frozen=True)
class Models:
    """The table of models.

    `entries` contains the models, keyed by name. `rejected` lists rejected folders and loads.
    `checking` names the new models whose folders are about to be checked or are being checked.
    `loading` names the models that are being fetched, unpacked or loaded on demand, or wait for
    that. `deaths` counts the processes of each model that have died. `server` is tritonserver's
    process id, and `reloads` counts the reloads since tritonserver started. `counts` are the
    counters of on-demand mode. `was_ready` is true once `unready` has returned None. `policy` is
    the name of the policy that loads the models.
    """

    entries: Mapping[str, Entry] = field(default_factory=dict)
    rejected: tuple[Rejection, ...] = ()
    checking: tuple[str, ...] = ()
    loading: tuple[str, ...] = ()
    deaths: Mapping[str, int] = field(default_factory=dict)
    server: int = 0
    reloads: int = 0
    counts: Mapping[str, float] = field(default_factory=dict)
    was_ready: bool = False
    policy: str = AT_START.name

    @property
    def by_call(self) -> bool:
        """Return whether models are loaded by calls. If so, the table may be empty."""
        return POLICIES[self.policy].by_call

    @cached_property
    def current(self) -> dict[str, Entry]:
        """Return the models that a call may begin to use: all except those that are being
        unloaded."""
        return {name: entry for name, entry in self.entries.items() if entry.state != UNLOADING}

    @cached_property
    def by_triton_name(self) -> dict[str, Entry]:
        """Return the `current` models, keyed by Triton's names."""
        return {entry.triton_name: entry for entry in self.current.values()}

    @cached_property
    def by_target(self) -> dict[str, Entry]:
        """Return the `current` models, keyed by name and, if they have one, also by their
        Target-Model."""
        return {
            **self.current,
            **{entry.target: entry for entry in self.current.values() if entry.target},
        }

    def rejection(self, name: str) -> ServingError | None:
        """Return the error that says why the model is rejected, or None if it is not rejected or
        may be tried again."""
        rejections = [rejection for rejection in self.rejected if name in rejection.folders]
        current = [rejection for rejection in rejections if rejection.is_current()]
        if not current:
            return None
        reason = _joined_reasons(current)
        code = current[0].code
        if code == ModelFailed.code:
            return ModelFailed(name, reason)
        return rebuilt(code, [reason])

    def _with(self, entry: Entry) -> "Models":
        """Return a table in which the model is added or replaced."""
        return replace(self, entries={**self.entries, entry.name: entry})

    def _without(self, name: str) -> "Models":
        """Return a table from which the model is removed."""
        others = {other: entry for other, entry in self.entries.items() if other != name}
        return replace(self, entries=others)

    def latest(self, entry: Entry) -> Entry | None:
        """Return the latest version of this entry, or None if the model has since been removed or
        loaded again."""
        latest = self.entries.get(entry.name)
        return latest if latest and latest.load_id == entry.load_id else None

    def updated(self, entry: Entry, **fields: Any) -> "Models":
        """Return a table in which `fields` of the model are updated. Return the same table if it no
        longer contains this load of the model."""
        latest = self.latest(entry)
        return self._with(replace(latest, **fields)) if latest else self

    def moved(self, entry: Entry, event: Event, **fields: Any) -> "Models":
        """Return a table in which `event` has changed the model's state and `fields` are updated.
        Return the same table if the event does not apply to the state. The state is ABSENT if the
        table does not contain this load of the model."""
        latest = self.latest(entry)
        state = latest.state if latest else ABSENT
        new_state = event.value.get(state)
        if new_state is None:
            return self
        if new_state == ABSENT:
            return self._without(entry.name)
        return self._with(replace(latest or entry, state=new_state, **fields))

    def all_moved(self, event: Event, **fields: Any) -> "Models":
        """Return a table in which `event` has been applied to all models."""
        models = self
        for entry in self.entries.values():
            models = models.moved(entry, event, **fields)
        return models

    def error(self, entry: Entry) -> ServingError | None:
        """Return the error that says why the model is not ready, or None if it is. For an
        ensemble, the errors of its parts take precedence, at any depth."""
        called = [entry]
        for model in called:  # the loop itself appends to this list
            parts = filter(None, map(self.by_triton_name.get, model.parts))
            called += [part for part in parts if part not in called]
        errors = (model.error() for model in reversed(called))
        return next(filter(None, errors), None)

    @cached_property
    def ready(self) -> dict[str, Entry]:
        """Return the models that are ready, keyed by every name that callers may use."""
        return {name: entry for name, entry in self.by_target.items() if self.error(entry) is None}

    def unready(self) -> ServingError | None:
        """Return the error for which /ping returns 503, or None if every model that should be
        served is ready and has answered its example. Ignore models that a call is loading.

        Once the container has been ready, ignore restarting and refused models: the platform would
        replace the container by one with the same models. But if all models are in such a state,
        return the error of one of them."""
        entries = {name: entry for name, entry in self.current.items() if entry.state != ADDING}
        if not entries:
            if self.by_call:
                return None
            reasons = _joined_reasons(self.rejected)
            return ModelNotReady(": ".join(filter(None, ["no model is served", reasons])))
        errors: list[ServingError] = []
        for name, entry in sorted(entries.items()):
            error = self.error(entry)
            if error is None and not entry.answered:
                reason = entry.reason or "its example is being tested"
                error = ModelNotReady(f"model '{name}': {reason}")
            if error:
                errors.append(error)
        crashes = [error for error in errors if isinstance(error, ModelRestarting | ModelRefused)]
        have_all_crashed = len(crashes) == len(entries)
        if crashes and (have_all_crashed or not self.was_ready):
            return crashes[0]
        # a ModelFailed comes first, because it tells `serve` not to wait any longer
        failures = [error for error in errors if isinstance(error, ModelFailed)]
        others = [error for error in errors if error not in crashes]
        return next(iter([*failures, *others]), None)
