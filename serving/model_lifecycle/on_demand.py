"""Loads models in on-demand mode: the first call to a model loads it. If too little memory is left,
the least recently used models are evicted.

For a call that waits for a model, its worker has the manager call `want`, which looks the name up.
A thread then fetches or unpacks the model, evicts others if necessary, and loads it. If that fails,
the model is rejected for a while.

`_memory_lock` is held while models to evict are chosen and memory is promised to a load, but not
while models are loaded or unloaded. If a model that was chosen is called before its unload begins,
it is kept. If the call begins just as the unload does, the unload waits for the call.
"""

import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.errors import (
    ConfigError,
    LoadFailed,
    ModelFailed,
    ModelNotFound,
    ModelNotReady,
    OutOfMemory,
    ServingError,
    TritonTimeout,
    TritonUnavailable,
    rebuilt,
)
from serving.host.processes import memory_by_model, memory_used_by
from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.on_post import OnPost, put_bounded
from serving.model_status.models import Entry, Models, Rejection
from serving.model_status.states import READY, UNLOADING
from serving.repository.cache import Cache
from serving.repository.locate_archive import Archive
from serving.repository.model_config import correlation_type, read_config, sequence_idle_seconds
from serving.repository.source import FolderSource, Found, Source, Unreachable, plain_name
from serving.repository.unpacking import BadArchive
from serving.settings.settings import MEGABYTE, Settings

log = logging.getLogger(__name__)
LOADS_AT_ONCE = 4
# A load that takes longer than this no longer counts as one of LOADS_AT_ONCE, because it may hang
# until its time limit (350 s).
SLOW_SECONDS = 30.0
MOST_LOADS = 64  # loads that are in progress or wait for their turn
LOOK_UPS_AT_ONCE = 64
LOOK_UPS_A_SECOND = 200
MISSING_SECONDS = 30.0  # seconds for which a name that was not found is not looked up again
# Seconds for which a name is not looked up again if the repository could not be read. This is long
# enough for all calls that wait for the name to ask again, so that all of them get the same error.
UNREACHABLE_SECONDS = 3.0
# A failed load may be tried again after FAILED_SECONDS. If tritonserver ended meanwhile, or the
# repository could not be read, the model may not be to blame, and the time is INTERRUPTED_SECONDS.
# The time doubles after each further failure, up to FAILED_MOST.
FAILED_SECONDS = 30.0
INTERRUPTED_SECONDS = 2.0
FAILED_MOST = 600.0
# A load that did not begin, because too little memory was free or Triton did not answer, may be
# tried again after this time.
BUSY_SECONDS = 1.0
UNCHANGED_SECONDS = 1.0  # a rejected model that has not changed is not looked up again in this time
MOST_REJECTED = 100
IDLE_SECONDS = 1.0  # a model is not evicted if it was used within this time
# If a model is loaded again within this time after its eviction, it was evicted too early. If a
# load had to evict models in the last THRASH_SECONDS, memory for the next load is kept free.
THRASH_SECONDS = 60.0
KEPT_FREE = 4  # at most 1 / KEPT_FREE of the memory is kept free


class LookUps:
    """Looks up names in the model repository, at most LOOK_UPS_AT_ONCE at once, and `most` within
    `seconds`. Thread-safe."""

    def __init__(self, source: Source, most: int = LOOK_UPS_A_SECOND, seconds: float = 1.0) -> None:
        self._source = source
        self._lock = threading.Lock()
        self._seconds = seconds
        self._turns = threading.Semaphore(LOOK_UPS_AT_ONCE)
        self._times = deque([-math.inf] * most, most)  # when the last `most` look-ups began
        # For each name that is refused: when it may be looked up again, and the arguments with
        # which `rebuilt` makes the same error again until then.
        self._refused: dict[str, tuple[float, dict[str, Any]]] = {}

    def find(self, name: str) -> Found:
        """Return the model called `name`. Raise ModelNotFound if there is none, ModelNotReady if
        the name cannot be looked up now, or the error with which the name is refused (`refuse`). If
        there is no such model or the repository cannot be read, refuse the name for a while."""
        now = time.monotonic()
        with self._lock:
            until, facts = self._refused.get(name, (-math.inf, {}))
            if until > now:
                raise rebuilt(**facts)
            if self._times[0] > now - self._seconds:
                raise ModelNotReady("too many models are looked up at once; try again shortly")
            self._times.append(now)
        if not self._turns.acquire(blocking=False):
            raise ModelNotReady("the model repository does not answer; try again")
        error: ServingError
        try:
            if found := self._source.find(name):
                return found
            error, seconds = unknown_model(name), MISSING_SECONDS
        except Unreachable as err:
            log.error("'%s' cannot be looked up: %s", name, err)
            error, seconds = err, UNREACHABLE_SECONDS
        finally:
            self._turns.release()
        self.refuse(name, error, time.monotonic() + seconds)
        raise error

    def refuse(self, name: str, error: ServingError, until: float) -> None:
        """Make `find` raise `error` for this name until `until` (time.monotonic)."""
        with self._lock:
            put_bounded(self._refused, name, (until, error.facts()))


def unknown_model(name: str) -> ModelNotFound:
    return ModelNotFound(
        f"Request for unknown model: '{name}' is not found; a model is named by its path in the "
        f"model repository, without .tar.gz, and a new one is found within {MISSING_SECONDS:g} s"
    )


class OnDemand(OnPost):
    """The policy that loads a model when it is first called. Thread-safe."""

    too_large = OutOfMemory

    def __init__(self, manager: Manager) -> None:
        super().__init__(manager)
        self._source = source_of(self.settings, self._served_folders)
        self._look_ups = LookUps(self._source)
        # the models that `step` loads, and that are never evicted
        self._pinned = [plain_name(name) for name in self.settings.load_models]
        self._lock = threading.Lock()
        # for each model that is to be loaded: when its load began, or inf if it waits for its turn
        self._loading: dict[str, float] = {}
        self._waiting: deque[Found] = deque()
        self._threads = ThreadPoolExecutor(MOST_LOADS, thread_name_prefix="load")
        self._unloads = ThreadPoolExecutor(LOADS_AT_ONCE, thread_name_prefix="unload")
        self._victims: set[str] = set()  # the `load_id` of each model that was chosen for eviction
        self._evicted: dict[str, float] = {}  # maps models to the times of their last evictions
        self._last_needs: deque[int] = deque(maxlen=10)  # how many bytes the last loads needed
        self._last_shortage = -math.inf  # when a load last had to evict models
        self._publish_loading()

    def want(self, name: str) -> None:
        """Begin to load a model, unless it is in the table or its load is in progress or waiting.
        Raise ModelNotFound or ModelNotReady or, if the model's last load failed a short while ago
        and the model has not changed since, the error of that load."""
        if name in self._loading or self.manager.get(name):
            return
        found = self._look_ups.find(name)
        self._check_rejection(found)
        with self._lock:
            if name in self._loading:
                return
            if len(self._loading) >= MOST_LOADS:
                raise ModelNotReady(
                    f"{MOST_LOADS} other models are being loaded or wait for that; try again"
                )
            self._loading[name] = math.inf
            self._waiting.append(found)
        self._publish_loading()
        self._begin_loads()

    def known(self) -> dict[str, int | None]:
        try:
            return self._source.sizes()
        except Unreachable as err:
            log.error("the models that are not loaded cannot be listed: %s", err)
            return {}

    def step(self) -> None:
        """Repeat unfinished unloads, begin loads that wait for their turn, and keep memory free.
        Begin to load those models in SERVE_LOAD_MODELS that are not loaded. If `want` raises errors
        for some of them, raise the first error."""
        super().step()
        self._begin_loads()
        self._keep_free()
        errors = []
        for name in self._pinned:
            try:
                self.want(name)
            except ServingError as err:
                errors.append(err)
        if errors:
            raise errors[0]

    def handle_failure(self, entry: Entry, reason: str) -> None:
        """Stop serving a model that a new tritonserver could not load, and reject it for a
        while."""
        with self.manager.changing(entry.name):
            if self.manager.is_current(entry):
                self._reject(entry, ModelFailed(entry.name, reason))
                self.manager.drop(entry)

    def _publish_loading(self) -> None:
        """Write the names in `_loading` to the table."""
        self.manager.write(lambda models: replace(models, loading=tuple(self._loading)))

    def _begin_loads(self) -> None:
        """Begin loads that wait for their turn, until LOADS_AT_ONCE are in progress, not counting
        slow ones."""
        with self._lock:
            now = time.monotonic()
            begun = [began for began in self._loading.values() if began < math.inf]
            fast = [began for began in begun if began > now - SLOW_SECONDS]
            for _ in range(min(LOADS_AT_ONCE - len(fast), len(self._waiting))):
                found = self._waiting.popleft()
                self._loading[found.name] = now
                self._threads.submit(self._load_found, found)

    def _load_found(self, found: Found) -> None:
        """Load a model. If that fails, reject the model. Runs in a separate thread."""
        try:
            self._load_now(found)
        except (TritonUnavailable, Unreachable) as err:
            self._reject(found, err, INTERRUPTED_SECONDS)
        except ModelNotReady as err:
            self._reject(found, err, BUSY_SECONDS)
        except (ConfigError, BadArchive, OSError, LoadFailed, TritonTimeout) as err:
            self._reject(found, ModelFailed(found.name, str(err)))
        except ServingError as err:
            self._reject(found, err)
        except Exception:
            log.exception("'%s' cannot be loaded", found.name)
            self._reject(found, ModelFailed(found.name, "an internal error; the log has it"))
        finally:
            with self._lock:
                del self._loading[found.name]
            self._publish_loading()
            self._begin_loads()

    def _load_now(self, found: Found) -> None:
        """Fetch or unpack the model, evict others if it needs their memory, and load it. Raise a
        ServingError, ConfigError, BadArchive or OSError."""
        name = found.name
        began = time.monotonic()
        with self._source.archive(found) as archive, self.manager.changing(name):
            if self.manager.get(name):  # it was loaded meanwhile, or an unload timed out
                return
            unpacked = time.monotonic()
            idle = idle_seconds(archive, self.settings.device)
            fields = {"url": found.url, "signature": found.signature, "idle": idle}
            self._add(archive, name, name, **fields)
        self._replace_rejection(name)
        ended = time.monotonic()
        self._count_thrash(name, began)
        self.manager.count(loads=1, unpack_seconds=unpacked - began, load_seconds=ended - unpacked)
        log.info("loaded '%s' in %.1f s", name, ended - began)

    def _admit(self, entry: Entry, needed: int) -> Entry:
        """Evict models if too little memory is free, and add the model to the table. Raise
        OutOfMemory, LoadFailed, or ModelNotReady if a later call may succeed."""
        prefix = f"'{entry.name}' is not loaded yet: "
        try:
            self._make_room(entry.name, needed)
        except (TritonUnavailable, TritonTimeout) as err:
            raise ModelNotReady(f"{prefix}{err}") from err
        try:
            return super()._admit(entry, needed)
        # tritonserver has ended or other models have grown in the meantime
        except (TritonUnavailable, OutOfMemory) as err:
            raise ModelNotReady(f"{prefix}{err}") from err

    def _make_room(self, name: str, needed: int) -> None:
        """Promise `needed` bytes of memory to the load of `name`. If fewer are free, evict models.
        Raise the errors of `_choose_victims` and `_evict`, or TritonUnavailable."""
        with self._memory_lock:
            victims = self._choose_victims(self._pid(), name, needed)
            self._promised[name] = needed
        if victims:
            self._last_shortage = time.monotonic()
            self._evict(victims)
        self._last_needs.append(needed)

    def _bytes_used(self, pid: int, name: str) -> int:
        """Return how many bytes of memory are in use, or promised to loads other than that of
        `name`. Of each promise, count only the part that the model does not hold yet. Do not count
        models that are being unloaded or have been chosen for eviction."""
        sizes = memory_by_model(pid)
        used = memory_used_by(pid)
        entries = self.manager.models().entries
        for other, promised in self._promised.copy().items():
            if other != name:
                held = self.bytes_held(entries[other], sizes) if other in entries else 0
                used += max(0, promised - held)
        for entry in entries.values():
            if entry.state == UNLOADING or entry.load_id in self._victims:
                used -= self._size(entry, sizes)
        return used

    def _size(self, entry: Entry, sizes: dict[str, int]) -> int:
        """Return how many bytes the model holds, or its estimate if its memory was never
        measured."""
        return self.bytes_held(entry, sizes) if entry.bytes else entry.estimated

    def _choose_victims(self, pid: int, name: str, needed: int) -> list[Entry]:
        """Choose models to evict, so that `needed` bytes are free for `name`, add them to
        `_victims`, and return them. The caller holds `_memory_lock`. Raise ModelNotReady if models
        must become idle before they can be evicted, or OutOfMemory if evicting all models that may
        ever be evicted would not be enough."""
        lacking = self._bytes_used(pid, name) + needed - self.memory
        sizes = memory_by_model(pid)
        victims: list[Entry] = []
        # bytes that may be freed later, at first those promised to models that are being loaded
        busy = sum(self._promised.values())
        for entry in self._by_last_use():
            if lacking <= 0:
                break
            size = self._size(entry, sizes)
            if self._is_idle(entry):
                victims.append(entry)
                lacking -= size
            else:
                busy += size
        if lacking > 0:
            reason = f"'{name}' is not loaded: memory lacks {lacking / 2**20:.0f} MB, and "
            if lacking <= busy:
                raise ModelNotReady(f"{reason}all other models are in use; try again")
            raise OutOfMemory(
                f"{reason}no other model may be evicted; raise SERVE_MODEL_MEMORY_SHARE or the "
                "container's memory, or shorten SERVE_LOAD_MODELS"
            )
        self._victims.update(entry.load_id for entry in victims)
        return victims

    def _by_last_use(self) -> list[Entry]:
        """Return the models that may be evicted when they are idle, the least recently used
        first."""
        entries = self.manager.models().entries.values()
        ready = [entry for entry in entries if entry.state == READY]
        unpinned = [entry for entry in ready if entry.name not in self._pinned]
        candidates = [entry for entry in unpinned if entry.load_id not in self._victims]
        return sorted(candidates, key=lambda entry: self.manager.leases.last_use(entry.column))

    def _is_idle(self, entry: Entry) -> bool:
        leases = self.manager.leases
        idle_for = time.monotonic() - leases.last_use(entry.column)
        return idle_for >= entry.idle and not leases.requests(entry.column)

    def _evict(self, victims: Sequence[Entry]) -> None:
        """Unload the models, LOADS_AT_ONCE at a time. Raise OutOfMemory if unloading them frees too
        little memory, or TritonTimeout or TritonUnavailable."""
        try:
            for start in range(0, len(victims), LOADS_AT_ONCE):
                self._evict_at_once(victims[start : start + LOADS_AT_ONCE])
        finally:
            self._victims.difference_update(entry.load_id for entry in victims)

    def _evict_at_once(self, victims: Sequence[Entry]) -> None:
        """Unload the models at the same time. If there are several, and unloading them frees less
        than half of the memory that they hold, raise OutOfMemory, because further evictions would
        not help either."""
        before = memory_by_model(self._pid())
        unloaded = [*filter(None, self._unloads.map(self._unload_victim, victims))]
        after = memory_by_model(self._pid())
        expected = sum([self._size(entry, before) for entry in unloaded])
        # models without their own processes free memory of tritonserver itself
        freed = max(0, before[""] - after[""])
        for entry in unloaded:
            freed += self.bytes_held(entry, before) - self.bytes_held(entry, after)
        if len(unloaded) > 1 and freed < expected / 2:
            reason = (
                f"{len(unloaded)} models were unloaded, which freed {freed / 2**20:.0f} of "
                f"{expected / 2**20:.0f} MB: their backend keeps memory"
            )
            log.error("%s", reason)
            raise OutOfMemory(f"{reason}; restart the container, or give it more memory")

    def _unload_victim(self, entry: Entry) -> Entry | None:
        """Unload the model and return it. If it has been used again or is no longer ready, return
        None without unloading it."""
        began = time.monotonic()
        with self.manager.changing(entry.name):
            self._measure(entry)
            latest = self.manager.models().latest(entry)
            if latest is None or latest.state != READY or not self._is_idle(entry):
                return None
            self.manager.unload(entry)
        now = time.monotonic()
        put_bounded(self._evicted, entry.name, now)
        self.manager.count(evictions=1, eviction_seconds=now - began)
        log.info("evicted '%s' in %.1f s", entry.name, now - began)
        return entry

    def _keep_free(self) -> None:
        """If loads had to evict models recently, evict enough models in advance for the largest of
        the last loads, so that the next load need not wait for evictions. Do nothing if that load
        needed more than 1 / KEPT_FREE of the memory."""
        largest = max(self._last_needs, default=0)
        is_short = time.monotonic() < self._last_shortage + THRASH_SECONDS
        if not is_short or largest > self.memory / KEPT_FREE:
            return
        with suppress(ModelNotReady, OutOfMemory):
            with self._memory_lock:
                victims = self._choose_victims(self._pid(), "", largest)
            self._evict(victims)

    def _count_thrash(self, name: str, began: float) -> None:
        """If the model had been evicted less than THRASH_SECONDS before its load began, count and
        log that."""
        evicted = self._evicted.pop(name, -math.inf)
        if evicted > began - THRASH_SECONDS:
            self.manager.count(thrash=1)
            log.warning(
                "'%s' was loaded again %.0f s after its eviction: raise SERVE_MODEL_MEMORY_SHARE "
                "or the container's memory",
                name,
                began - evicted,
            )

    def _reject(
        self, model: Found | Entry, error: ServingError, first: float = FAILED_SECONDS
    ) -> None:
        """Answer calls to the model with `error` for `first` seconds, and for twice as long after
        each further failure, up to FAILED_MOST. With BUSY_SECONDS, the time does not double,
        because the load did not begin."""
        rejected = self.manager.models().rejected
        earlier = [rejection for rejection in rejected if model.name in rejection.folders]
        last = max([rejection.seconds for rejection in earlier], default=0)
        did_not_begin = first == BUSY_SECONDS
        # if `last` is shorter, the failure before was of a less serious kind
        is_further_failure = last >= first and not did_not_begin
        seconds = min(2 * last, FAILED_MOST) if is_further_failure else first
        reason = error.reason if isinstance(error, ModelFailed) else str(error)
        until = time.monotonic() + seconds
        folders = {model.name: model.signature}
        rejection = Rejection(folders, [reason], until, seconds, error.code)
        self._replace_rejection(model.name, rejection)
        level = logging.INFO if did_not_begin else logging.ERROR
        log.log(level, "'%s' is tried again in %g s: %s", model.name, seconds, reason)

    def _replace_rejection(self, name: str, *new: Rejection) -> None:
        """Replace the model's rejection by `new`, or remove it if `new` is empty."""

        def change(models: Models) -> Models:
            others = [rejection for rejection in models.rejected if name not in rejection.folders]
            return replace(models, rejected=(*others, *new)[-MOST_REJECTED:])

        self.manager.write(change)

    def _check_rejection(self, found: Found) -> None:
        """If the model is rejected now, do not look it up again for UNCHANGED_SECONDS, and raise
        the error. If it has changed since it was rejected, remove the rejection. Keep a rejection
        that has ended, because its time doubles if the next load fails too."""
        models = self.manager.models()
        rejected_as = {found.name: found.signature}
        ends = [
            rejection.until for rejection in models.rejected if rejection.folders == rejected_as
        ]
        if not ends:  # it has changed, or was not rejected
            self._replace_rejection(found.name)
        elif error := models.rejection(found.name):
            until = min(*ends, time.monotonic() + UNCHANGED_SECONDS)
            self._look_ups.refuse(found.name, error, until)
            raise error

    def _served_folders(self) -> list[Path]:
        return [Path(entry.folder) for entry in self.manager.models().entries.values()]


def source_of(settings: Settings, served: Callable[[], Collection[Path]]) -> Source:
    """Return the repository of the models that calls may load. `served` returns the folders of the
    loaded models."""
    cache = Cache(settings.unpacked_folder, settings.unpacked_mb * MEGABYTE, served)
    if settings.bucket:
        from serving.repository.bucket import BucketSource  # imports obstore

        return BucketSource(settings.bucket, cache)
    return FolderSource(settings.model_repositories[0], cache)


def idle_seconds(archive: Archive, device: str) -> float:
    """Return after how many seconds without a call the model may be evicted. This is long enough
    for Triton to have ended all sequences. Raise Unreadable if a configuration cannot be used."""
    configs = [read_config(part, device) for part in archive.parts]
    sequences = [
        sequence_idle_seconds(config) for config in configs if correlation_type(config) is not None
    ]
    return max([IDLE_SECONDS, *sequences])
