"""Defines Manager, which makes Triton load and unload models, and changes the table of models. The
policies decide when it does so, and Recovery uses it to reload models."""

import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.errors import LoadFailed, OutOfMemory, ServingError, TritonTimeout, TritonUnavailable
from serving.host import tritonserver
from serving.host.files import read_tritonserver
from serving.host.processes import Stubs
from serving.model_lifecycle import loading
from serving.model_status.models import Entry, Models
from serving.model_status.shared_files import MODELS, Leases, ModelsFile
from serving.model_status.states import ADDING, LOADING, UNLOADING, Event
from serving.repository.model_config import with_plan_remedies
from serving.repository.paths import with_sources
from serving.repository.staging import Store
from serving.settings.settings import Settings
from serving.triton.connection import IndexEntry
from serving.triton.gateway import TritonGateway
from serving.triton.quirks import PREFACE, STUB_SECONDS

log = logging.getLogger(__name__)
PAUSE = 0.05  # seconds between checks while Manager waits for Triton or for calls in flight
# If Triton takes more than this many seconds to unload a model, the model's processes are killed.
# An unload usually takes 1.7 s, and no call is in flight any more when it begins.
UNLOAD_SECONDS = 15.0


class Manager:
    """Loads and unloads models, and writes the table of models. Thread-safe."""

    def __init__(self, settings: Settings, gateway: TritonGateway) -> None:
        self.settings = settings
        self.gateway = gateway
        self.store = Store(settings.staged_folder, settings, tritonserver.backend_directory())
        self.leases = Leases(settings.leases_file, settings.most_workers)
        self._table = ModelsFile(settings.models_file)
        self._models = self._table.look()
        self._lock = threading.Lock()
        self.changed = threading.Event()  # set whenever the table changes
        self._model_locks: dict[str, threading.Lock] = {}
        self.load_timeout = settings.load_timeout
        self.unload_timeout = UNLOAD_SECONDS
        policy = settings.policy.name
        self.write(lambda models: replace(models.all_moved(Event.MANAGER_STARTED), policy=policy))

    def models(self) -> Models:
        return self._models

    def get(self, name: str) -> Entry | None:
        """Return the model's entry, or None if the table does not contain the model."""
        return self._models.entries.get(name)

    def write(self, change: Callable[[Models], Models]) -> bool:
        """Replace the table with `change(table)`. Return whether that changed anything. Raise
        OSError, and keep the old table, if the file cannot be written."""
        with self._lock:
            changed = change(self._models)
            has_changed = changed != self._models
            if has_changed:
                self._table.write(changed)
                self._models = changed
                self.changed.set()
        return has_changed

    def update(self, entry: Entry, **fields: Any) -> None:
        """Change fields of an entry, if the table still contains this load of the model."""
        self.write(lambda models: models.updated(entry, **fields))

    def move(self, entry: Entry, event: Event, **fields: Any) -> bool:
        """Apply an event to the model's state (states.py), and change further fields. Return
        whether that changed the table: an event that does not apply to the state changes
        nothing."""
        return self.write(lambda models: models.moved(entry, event, **fields))

    def record_server(self, pid: int) -> None:
        """Record the process id of a new tritonserver, or 0 if there is none. If another one was
        recorded before, mark all models as loading, except those that are being unloaded, and have
        their examples tested again, unless models are loaded by calls."""

        def change(models: Models) -> Models:
            if models.server:
                reason = "tritonserver was started again"
                # models that are loaded by calls are not tested, so they count as answered
                answered = models.by_call
                models = models.all_moved(
                    Event.SERVER_STARTED, reason=reason, answered=answered, began=time.monotonic()
                )
            return replace(models, server=pid, reloads=0)

        self.write(change)

    def is_current(self, entry: Entry) -> bool:
        """Return whether the table still contains this load of the model."""
        return self._models.latest(entry) is not None

    def count_death(self, name: str) -> None:
        """Count that a process of the model has died."""

        def change(models: Models) -> Models:
            count = models.deaths.get(name, 0) + 1
            return replace(models, deaths={**models.deaths, name: count})

        self.write(change)

    def count(self, **numbers: float) -> None:
        """Increase counters of on-demand mode. `numbers` maps their names to the increments."""

        def change(models: Models) -> Models:
            sums = {name: models.counts.get(name, 0) + more for name, more in numbers.items()}
            return replace(models, counts={**models.counts, **sums})

        self.write(change)

    def free_column(self) -> int:
        """Return a column of the leases that no model in the table uses. This does not reserve the
        column: only one thread at a time may call this method and then add a model with the column
        to the table. Raise OutOfMemory if there is none."""
        free = set(range(MODELS)) - {entry.column for entry in self._models.entries.values()}
        if not free:
            raise OutOfMemory(
                f"{MODELS} models are loaded, and there can be no more: unload others"
            )
        return min(free)

    @contextmanager
    def changing(self, name: str, seconds: float | None = None) -> Iterator[None]:
        """Hold the model's lock, so that only one thread loads, unloads or recovers the model. Wait
        up to `seconds` for the lock (default: the time limit of a load), and raise TritonTimeout if
        it is still held then."""
        if seconds is None:
            seconds = self.load_timeout
        lock = self._model_locks.setdefault(name, threading.Lock())
        if not lock.acquire(timeout=seconds):
            raise TritonTimeout(f"'{name}' is still being loaded or unloaded; try again")
        try:
            yield
        finally:
            lock.release()

    def pid(self) -> int:
        """Return tritonserver's process id, or 0 if none is running."""
        return read_tritonserver(self.settings.status_file).pid or 0

    def kill_server(self, reason: str) -> None:
        """Kill tritonserver and all of its processes. `serve` then starts a new one, which answers
        only after it has loaded all staged models. So first unstage the models that are being
        unloaded or that a call is loading: one of them may be the reason why tritonserver must be
        killed, and might never finish loading."""
        for entry in self._models.entries.values():
            if entry.state in (ADDING, UNLOADING):
                self.unstage(entry)
        if pid := self.pid():
            log.error("killing tritonserver: %s", reason)
            with suppress(ProcessLookupError):
                os.killpg(pid, signal.SIGKILL)

    def index(self) -> list[IndexEntry]:
        """Return Triton's index of models. Hold the store's lock meanwhile, because Triton fails if
        a staged folder changes."""
        with self.store.lock:
            return self.gateway.index()

    def load(self, entry: Entry) -> tuple[str, ...]:
        """Make Triton load the staged model. Return the versions that were loaded. Raise a
        ServingError."""
        return loading.load(
            self.gateway, self.store, entry.triton_name, entry.parts, self.load_timeout
        )

    def reload(self, entry: Entry) -> tuple[str, ...]:
        """Unload the model and load it again. (Without the unload, Triton would ignore the load,
        because the model has not changed.) Return the versions that were loaded. Raise a
        ServingError."""
        self.write(lambda models: replace(models, reloads=models.reloads + 1))
        self.gateway.unload(entry.triton_name)
        return self.load(entry)

    def unload_dead(self, entry: Entry) -> None:
        """Make Triton start unloading a model whose process has died. Reload the model first,
        because Triton never finishes unloading a dead process. Raise a ServingError."""
        try:
            self.reload(entry)
        finally:
            self._begin_unload(entry)

    def _begin_unload(self, entry: Entry) -> None:
        """Make Triton start unloading the model and, for an archive, its parts, because Triton does
        not unload the parts of an ensemble that failed to load. Raise a ServingError."""
        for name in self.staged_names(entry):
            self.gateway.unload(name)

    def unload(self, entry: Entry) -> None:
        """Keep new calls from using the model, wait until the calls in flight have ended, make
        Triton unload the model, and remove its staged folders and its entry.

        Before it unloads a model, Triton waits until a load of the model has ended. So if the model
        is still being loaded after STUB_SECONDS, end the load (`_end_load`). Triton's unload lasts
        as long as a process of the model hangs, and never ends if one has died. So if it takes
        longer than UNLOAD_SECONDS, end it too (`_end_unload`). Either may kill tritonserver. Raise
        TritonTimeout or TritonUnavailable.
        """
        self.move(entry, Event.UNLOAD)
        seconds = self.load_timeout
        if not self._wait_until(lambda: self.leases.requests(entry.column) == 0, seconds):
            raise TritonTimeout(f"'{entry.name}' is still in use after {seconds:g} s; try again")
        if not self._wait_until(lambda: "LOADING" not in self._states(entry), STUB_SECONDS):
            self._end_load(entry)
        self._begin_unload(entry)
        if not self._wait_until(lambda: self._is_unloaded(entry), self.unload_timeout):
            self._end_unload(entry)
        self.unstage(entry)
        self.move(entry, Event.REMOVE)

    def _end_load(self, entry: Entry) -> None:
        """Make Triton's load of the model fail by killing the model's processes. If the load does
        not end, kill tritonserver, unless a C++ backend may just be slow, and raise
        TritonTimeout."""
        has_killed = self._kill_processes(entry)
        if not self._wait_until(lambda: "LOADING" not in self._states(entry), self.unload_timeout):
            # the load never ends if the process was killed before it had connected to tritonserver
            if has_killed or self.store.only_python:
                self.kill_server(f"the load of '{entry.name}' does not end")
            raise TritonTimeout(f"'{entry.name}' is still being loaded; try again")

    def _end_unload(self, entry: Entry) -> None:
        """Kill the model's processes, and unload the model with `unload_dead`. If that does not
        help, kill tritonserver and raise TritonUnavailable."""
        log.warning(
            "'%s' was not unloaded within %g s: killing its processes",
            entry.name,
            self.unload_timeout,
        )
        self._kill_processes(entry)
        with suppress(ServingError):
            self.unload_dead(entry)
        if not self._wait_until(lambda: self._is_unloaded(entry), self.unload_timeout):
            problem = f"'{entry.name}' cannot be unloaded"
            self.kill_server(problem)
            raise TritonUnavailable(f"{problem}; tritonserver is restarted")

    def _is_unloaded(self, entry: Entry) -> bool:
        return self._states(entry).isdisjoint({"READY", "UNLOADING"})

    def drop(self, entry: Entry) -> None:
        """Remove a model that failed to load and, for an archive, those of its parts that did load.
        Remove the staged folders first, so that a new tritonserver does not load them. Do not
        wait until Triton has unloaded the models."""
        self.unstage(entry)
        for name in self.staged_names(entry):
            with suppress(ServingError):
                self.gateway.unload(name)
        self.move(entry, Event.REMOVE)

    def unstage(self, entry: Entry) -> None:
        """Remove the model's staged folders, so that a new tritonserver does not load it."""
        for name in self.staged_names(entry):
            self.store.remove(name)

    def staged_names(self, entry: Entry) -> list[str]:
        """Return Triton's names for the model's staged folders: its own name and, for an archive,
        the names of its parts."""
        return [entry.triton_name, *(entry.parts if entry.target else ())]

    def _states(self, entry: Entry) -> set[str]:
        """Return the states that Triton reports for the versions of the model and, for an archive,
        of its parts."""
        names = self.staged_names(entry)
        return {version.state for version in self.index() if version.name in names}

    def _kill_processes(self, entry: Entry) -> bool:
        """Kill the processes of the model and of its parts. Return whether there were any."""
        stubs = Stubs()
        stubs.look(self.pid())
        names = (entry.triton_name, *entry.parts)
        targets = [stub for stub in stubs.all() if stub.model in names]
        for stub in targets:
            with suppress(ProcessLookupError):
                os.kill(stub.pid, signal.SIGKILL)
        return bool(targets)

    def _wait_until(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Wait up to `seconds` until `condition` is true. Return whether it became true. Ignore a
        TritonTimeout that `condition` raises, because Triton may answer late while it loads or
        unloads."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(TritonTimeout):
                if condition():
                    return True
            time.sleep(PAUSE)
        return False

    def record_loads(self) -> list[tuple[Entry, str]]:
        """Record which models are ready after tritonserver has started and loaded the staged
        models. Try again to load those that failed, and return those that fail again, each with the
        reason. Also remove staged models that are not in the table. Raise TritonUnavailable or
        TritonTimeout."""
        states: dict[str, dict[str, str]] = {}
        for version in self.index():
            states.setdefault(version.name, {})[version.version] = version.state
        self._remove_strays()
        loaded: list[tuple[Entry, tuple[str, ...]]] = []
        failed: list[tuple[Entry, str]] = []
        loading_entries = [
            entry for entry in self._models.entries.values() if entry.state == LOADING
        ]
        parts_first = sorted(loading_entries, key=lambda entry: bool(entry.parts))
        for entry in parts_first:
            try:
                versions = self._load_again_if_failed(entry, states.get(entry.triton_name, {}))
            except LoadFailed as err:
                failed.append((entry, self.reason_for_author(entry, str(err))))
            else:
                if versions:  # otherwise Triton is still loading them
                    loaded.append((entry, versions))

        def change(models: Models) -> Models:
            for entry, versions in loaded:
                models = models.moved(entry, Event.LOADED, reason="", versions=versions)
            return models

        self.write(change)
        return failed

    def _remove_strays(self) -> None:
        """Unload and unstage models that are not in the table. An interrupted load may have left
        them behind."""
        for name in self.store.names() - self._expected_names():
            # OnChange holds this lock while a new model is staged but not in the table yet
            with suppress(TritonTimeout), self.changing(name, 0.0):
                if name not in self._expected_names():
                    self.gateway.unload(name)
                    self.store.remove(name)

    def _expected_names(self) -> set[str]:
        """Return Triton's names for the staged folders of all models in the table."""
        names: set[str] = set()
        for entry in self._models.entries.values():
            names.update(self.staged_names(entry))
        return names

    def _load_again_if_failed(self, entry: Entry, states: Mapping[str, str]) -> tuple[str, ...]:
        """Return the versions of a model that a new tritonserver has loaded, or () while it is
        still loading them. If it could not load the model, try once more, because the index does
        not contain every reason, and because ONNX Runtime may be able to load a model that OpenVINO
        rejects. Raise LoadFailed if that fails too. `states` maps the versions to their states in
        the index."""
        ready = tuple(version for version, state in states.items() if state == "READY")
        if ready:
            return ready
        if "LOADING" in states.values() or "UNLOADING" in states.values():
            return ()
        try:
            return self.load(entry)
        except (TritonUnavailable, TritonTimeout):
            raise
        except ServingError as err:
            raise LoadFailed(str(err)) from err

    def reason_for_author(self, entry: Entry, reason: str) -> str:
        """Return the `reason` that Triton gives for a failed load, without PREFACE, and with the
        author's folders in place of the staged ones. If the model is a TensorRT plan, append
        remedies."""
        folder = Path(entry.source or entry.folder)
        sources = {self.store.path(entry.triton_name): folder}
        for name in entry.parts:
            part = name.removeprefix(f"{entry.triton_name}__")  # the prefix of an archive's part
            sources[self.store.path(name)] = folder.parent / part
        return with_plan_remedies(PREFACE.sub("", with_sources(reason, sources)), folder)
