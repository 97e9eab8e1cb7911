"""Finds the model that a request names, and keeps it loaded while the request uses it."""

import logging
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from math import inf
from pathlib import Path
from time import monotonic, sleep

import orjson

from serving.budget import seconds_left
from serving.errors import (
    InferenceFailed,
    InvalidRequest,
    ModelNotFound,
    ModelNotLoaded,
    ModelNotReady,
    ModelRestarting,
    TooLate,
    VersionNotFound,
)
from serving.model_status.models import Entry, Models
from serving.model_status.served_model import ServedModel, ServedModels
from serving.model_status.shared_files import WAITING, ModelsFile
from serving.named_value import quoted
from serving.repository.source import plain_name
from serving.triton.connection import BackendDied, IndexEntry
from serving.triton.gateway import TritonGateway

log = logging.getLogger(__name__)
# The type of Slot.keep (front/admission.py), which keeps a model loaded. Its parameters are the
# model's name and a column of the leases: that of the model's counter, or WAITING.
Keep = Callable[[str, int], None]
LOOK_SECONDS = 0.02  # seconds between looks at the state of a model that is being loaded
WANT_SECONDS = 0.5  # seconds between requests to the manager to load that model


class Registry:
    """Looks up models by name. Thread-safe. `default` is the model for requests that name none.
    Deaths of models' processes are reported to the datagram socket `deaths`. If models are loaded
    on demand, `want(name)` makes the manager begin to load a model, or raises the error that says
    why the model cannot be loaded."""

    def __init__(
        self,
        gateway: TritonGateway,
        table: ModelsFile,
        deaths: Path,
        default: str = "",
        want: Callable[[str], None] | None = None,
    ) -> None:
        self.gateway = gateway
        self.table = table
        self._deaths = deaths
        self.default = default
        self._want = want
        self._served = ServedModels(gateway, table)

    @contextmanager
    def use(
        self,
        keep: Keep,
        waiting: AbstractContextManager[None],
        name: str | None,
        version: str | None = None,
        tasks: Sequence[str] = (),
    ) -> Iterator[ServedModel]:
        """Yield the model called `name`, after calling `keep`, so that the model stays loaded.
        Without a name, yield the only model with one of the `tasks`, or else the default model, or
        else the only model. In on-demand mode, wait until the model is loaded, within the context
        `waiting`, which measures the time.

        Raise a ServingError if the model is not ready or does not have the `version`. If the `with`
        block raises BackendDied, report the death to the manager and raise ModelRestarting. If the
        block raises ModelNotReady and the table of models has a more specific error, raise that
        instead.
        """
        name = name or self._only_name_of(tasks) or self.default or self._only_name()
        if self._want:
            name = plain_name(name)
            entry = self._keep_or_load(keep, waiting, name, version, self._want)
        else:
            entry = self._keep(keep, name, version)
        try:
            served = self._served[entry.key]
            began = monotonic()
            try:
                yield served
            except BackendDied as error:
                raise self.report(served, error, began) from error
        except ModelNotReady:
            self._ready_entry(self.table.look(), name)  # raises the specific error, if there is one
            raise

    def _keep(self, keep: Keep, name: str, version: str | None) -> Entry:
        """Call `keep`, and return the model's entry. Raise an error if the model is not ready or
        does not have the version."""
        models = self.table.look()
        entry = self._ready_entry(models, name, version)
        keep(entry.name, entry.column)
        # read the table again until it has not changed since `keep` counted this request
        while (latest := self.table.look()) is not models:
            models = latest
            before = entry
            entry = self._ready_entry(models, name, version)
            # if the model was replaced meanwhile, count this request for the new one
            if entry.load_id != before.load_id:
                keep(entry.name, entry.column)
        return entry

    def _keep_or_load(
        self,
        keep: Keep,
        waiting: AbstractContextManager[None],
        name: str,
        version: str | None,
        want: Callable[[str], None],
    ) -> Entry:
        """Call `keep`, and return the model's entry. If the model is not loaded, have it loaded and
        wait. Raise ModelNotReady if loading takes longer than the request may wait.

        Do not raise the error of a rejected model before the manager was asked, because the model
        may have changed."""
        while True:
            if name in self.table.look().by_target:
                with suppress(ModelNotLoaded):  # it is still being loaded, or was just unloaded
                    return self._keep(keep, name, version)
            keep(name, WAITING)
            with waiting:
                self._wait_for_load(name, want)

    def _wait_for_load(self, name: str, want: Callable[[str], None]) -> None:
        """Wait until the model is loaded. Raise the error that says why it cannot be loaded, or
        ModelNotReady if that takes longer than the request may wait. Call `want` repeatedly,
        because the manager may be restarted, and the new manager does not know what the old one was
        loading."""
        last_want = -inf
        try:
            while True:
                if monotonic() > last_want + WANT_SECONDS:
                    want(name)
                    last_want = monotonic()
                with suppress(ModelNotLoaded):
                    self._ready_entry(self.table.look(), name)
                    return
                sleep(seconds_left(LOOK_SECONDS))
        except TooLate as err:
            raise ModelNotReady(f"model '{name}' is still being loaded; try again shortly") from err

    def report(self, served: ServedModel, error: BackendDied, began: float) -> ModelRestarting:
        """Report to the manager that a process of the model has died, as seen by a call that began
        at `began` (time.monotonic). Return the error for the caller."""
        report = {"models": [served.name, *served.parts], "details": str(error), "began": began}
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
                sender.setblocking(False)
                sender.sendto(orjson.dumps(report), str(self._deaths))
        # for example, the manager is being restarted; the next call to the model reports the death
        except OSError as err:
            log.warning(
                "the death of a process of model '%s' cannot be reported: %s", served.name, err
            )
        return ModelRestarting(served.name, str(error))

    def death_check(self, served: ServedModel) -> Callable[[], bool]:
        """Return a function that returns whether a process of the model, or of one of its parts,
        has died since `death_check` was called."""
        models = self.table.look()
        used = [models.by_triton_name.get(name) for name in (served.name, *served.parts)]
        before = {entry.name: models.deaths.get(entry.name, 0) for entry in used if entry}

        def has_died() -> bool:
            deaths = self.table.look().deaths
            return any(deaths.get(name, 0) > count for name, count in before.items())

        return has_died

    def index(self) -> dict[str, list[IndexEntry]]:
        """Return the entries of each model in Triton's index, one per version. The keys are
        Entry.name. A model that is being loaded may have no entries."""
        models = self.table.look()
        versions: dict[str, list[IndexEntry]] = {name: [] for name in models.current}
        try:
            index = self.gateway.index()
        except InferenceFailed:  # Triton fails if a staged folder changes meanwhile (quirks.py)
            index = self.gateway.index()
        for version in index:
            if entry := models.by_triton_name.get(version.name):
                versions[entry.name].append(version)
        return versions

    def get(self, name: str) -> ServedModel:
        """Return the model called `name`. The first call creates its client. Raise a ServingError
        if the model is not ready."""
        entry = self._ready_entry(self.table.look(), name)
        return self._served[entry.key]

    def check(self, name: str, version: str | None = None) -> None:
        """Raise an error if the model, or this version of it, is not ready. The error says why."""
        self._ready_entry(self.table.look(), name, version)

    def _ready_entry(self, models: Models, name: str, version: str | None = None) -> Entry:
        """Return the model's entry if it is ready and has the version. Otherwise raise the error
        that says why it is not."""
        if entry := models.ready.get(name):
            if version is not None and version not in entry.versions:
                raise _no_version(entry, version)
            return entry
        unready = models.by_target.get(name)
        error = models.error(unready) if unready else None
        if error:
            raise error
        if rejection := models.rejection(name):
            raise rejection
        if name in models.checking:
            raise ModelNotReady(
                f"the new folder of model '{name}' is being checked; try again shortly"
            )
        if self._want or models.by_call:
            raise ModelNotLoaded(name)
        names = ", ".join(sorted(models.current)) or "none"
        raise ModelNotFound(
            f"Request for unknown model: '{name}' is not found; the models served are: {names}"
        )

    def _only_name_of(self, tasks: Sequence[str]) -> str:
        """Return the name of the only model with one of these tasks. Return "" if there is none or
        more than one, or if models are loaded by calls. This creates the clients of all ready
        models, because only a client knows its task."""
        models = self.table.look()
        names = []
        if tasks and not models.by_call:
            for name, entry in models.ready.items():
                client = self._served[entry.key].client
                if client and client.task in tasks:
                    names.append(name)
        return names[0] if len(names) == 1 else ""

    def _only_name(self) -> str:
        """Return the name of the only model. Raise InvalidRequest if there is none or more than
        one, or if models are loaded by calls."""
        models = self.table.look()
        names = sorted(models.current)
        if len(names) != 1 or models.by_call:
            raise InvalidRequest(
                "no model is named; name one in X-Amzn-SageMaker-Target-Model, in the "
                "body's model_name, in X-Amzn-SageMaker-Custom-Attributes: model_name=…, as "
                "?model_name=…, or in multi-model and on-demand mode by POST /models/NAME/invoke; "
                f"the models served are: {', '.join(names) or 'none'}"
            )
        return names[0]


def _no_version(entry: Entry, version: str) -> InvalidRequest | VersionNotFound:
    """Return the error for a version that the model does not have."""
    text = f"model '{entry.triton_name}' has no version {quoted(version)}"
    if entry.target:  # SageMaker takes a 404 to mean that the archive is not loaded
        return InvalidRequest(f"{text}; leave it out for the latest")
    return VersionNotFound(f"{text}; its versions are: {', '.join(entry.versions)}")
