"""Loads and unloads archives in multi-model mode, when the platform asks for it, while other models
are served.

POST /models finds the models in the archive, checks that there is memory for them, stages them, and
makes Triton load them. DELETE /models/NAME first keeps new calls from using the model. When the
calls in flight have ended, Triton unloads the model, and the staged folders are removed.
"""

import logging
import re
import secrets
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from serving.errors import (
    ConfigError,
    InvalidRequest,
    LoadFailed,
    ModelAlreadyLoaded,
    ModelNotLoaded,
    OutOfMemory,
    ServingError,
    TritonTimeout,
    TritonUnavailable,
)
from serving.host.files import digest
from serving.host.machine import memory_limit
from serving.host.processes import memory_by_model, memory_used_by
from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.policy import Policy
from serving.model_status.models import Entry
from serving.model_status.states import FAILED, UNLOADING, Event
from serving.repository.checks import memory_of
from serving.repository.locate_archive import Archive, locate
from serving.repository.model_config import Unreadable, read_config
from serving.repository.paths import LONGEST_NAME, is_nameable
from serving.triton.connection import is_out_of_memory

log = logging.getLogger(__name__)


class OnPost(Policy):
    """The policy that loads models on POST /models. Thread-safe."""

    # The error for a model that is too large for the machine. It is not OutOfMemory, because the
    # platform would then unload other models in vain.
    too_large: type[ServingError] = LoadFailed

    def __init__(self, manager: Manager) -> None:
        super().__init__(manager)
        # how many bytes of memory Triton and its models may use
        self.memory = int(self.settings.model_memory_share * memory_limit())
        self._memory_lock = threading.Lock()  # held while memory is promised to a load
        self._promised: dict[str, int] = {}  # how many bytes were promised to each load
        # the largest size in bytes that was measured for each model since it last changed
        self._measured: dict[tuple[str, str], int] = {}

    def step(self) -> None:
        """Keep trying to unload models whose load or unload timed out or was interrupted."""
        for entry in self.manager.models().entries.values():
            if entry.state == UNLOADING:
                with (
                    suppress(TritonTimeout, TritonUnavailable),
                    self.manager.changing(entry.name, 0.0),
                ):
                    if self.manager.is_current(entry):
                        self.manager.unload(entry)

    def load(self, name: str, url: str, target: str) -> None:
        """Load the archive at `url`. Raise ModelAlreadyLoaded, OutOfMemory, LoadFailed,
        InvalidRequest or one of Triton's errors."""
        archive = _locate(name, url, self.settings.model_repositories[0])
        with self.manager.changing(name):
            loaded = self.manager.get(name)
            if loaded:
                if loaded.state not in (UNLOADING, FAILED):
                    raise ModelAlreadyLoaded(
                        f"the model '{name}' is loaded already, from {loaded.url}"
                    )
                # a load or unload timed out, or a restarted tritonserver could not load the model
                self.manager.unload(loaded)
            self._add(archive, name, target, url=url)
        log.info("loaded %s (%s) from %s", target, name, archive.folder)

    def unload(self, name: str) -> None:
        """Unload a model, and wait until Triton has unloaded it. Raise ModelNotLoaded,
        TritonTimeout or TritonUnavailable."""
        # Check this first, because `changing` creates a lock for any name, and a caller could fill
        # the memory with locks for invented names.
        if not self.manager.get(name):
            raise ModelNotLoaded(name)
        with self.manager.changing(name):
            entry = self.manager.get(name)
            if not entry:
                raise ModelNotLoaded(name)
            self._measure(entry)
            self.manager.unload(entry)
        log.info("unloaded %s (%s)", entry.target, name)

    def _add(self, archive: Archive, name: str, target: str, **fields: Any) -> None:
        """Load an archive that is not in the table. `fields` are additional fields of its entry.
        Raise ModelAlreadyLoaded, OutOfMemory, LoadFailed or one of Triton's errors."""
        names = triton_names(archive, target, self.settings.namespaces)
        outer, *parts = names.values()
        entry = Entry(
            name=name,
            triton_name=outer,
            folder=str(archive.folder),
            load_id=secrets.token_hex(8),
            column=0,  # `_admit` chooses one
            parts=tuple(parts),
            answered=True,
            target=target,
            estimated=estimate(archive, self.settings.device),
            **fields,
        )
        needed = self._measured.get(_measured_key(entry), entry.estimated)
        if needed > self.memory:
            reason = shortfall(self.memory, 0, needed)
            raise self.too_large(f"'{target}' can never be loaded on this machine: {reason}")
        try:
            entry = self._admit(entry, needed)
            try:
                versions = self._load(entry, names, archive.root)
            except TritonTimeout:  # Triton may still be loading the model; `step` will unload it
                self.manager.move(entry, Event.UNLOAD)
                raise
            except BaseException:
                self.manager.drop(entry)
                raise
        finally:
            self._promised.pop(name, None)
        # the column's last use may be that of another model, which had the column before
        self.manager.leases.touch(entry.column)
        self.manager.move(entry, Event.LOADED, versions=versions)
        self._measure(entry)

    def _admit(self, entry: Entry, needed: int) -> Entry:
        """Check that `needed` bytes of memory are free for the load, promise them to it, and add
        the model to the table. Raise OutOfMemory, LoadFailed, ModelAlreadyLoaded or
        TritonUnavailable."""
        pid = self._pid()
        with self._memory_lock:
            reason = shortfall(self.memory, self._bytes_used(pid, entry.name), needed)
            if reason:
                raise OutOfMemory(f"'{entry.target}' is not loaded: {reason}")
            self._check_names(entry)
            column = self.manager.free_column()
            entry = replace(entry, column=column, began=time.monotonic())
            self.manager.move(entry, Event.ADD)
            self._promised[entry.name] = needed
        return entry

    def _pid(self) -> int:
        """Return tritonserver's process id. Raise TritonUnavailable."""
        pid = self.manager.pid()
        if not pid:
            raise TritonUnavailable("tritonserver is being started (again): try again shortly")
        return pid

    def _bytes_used(self, pid: int, name: str) -> int:
        """Return how many bytes of memory are in use or promised to loads. On-demand mode leaves
        out what was promised to `name`."""
        return memory_used_by(pid) + sum(self._promised.values())

    def _measure(self, entry: Entry) -> None:
        """Measure how much memory the processes of a loaded model take. Remember the largest such
        size for the model's next load. Models without their own processes keep their estimate."""
        pid = self.manager.pid()
        held = self.bytes_held(entry, memory_by_model(pid)) if pid else 0
        if not held:
            return
        self.manager.update(entry, bytes=held)
        key = _measured_key(entry)
        largest = max(held, self._measured.get(key, 0))
        put_bounded(self._measured, key, largest)

    def bytes_held(self, entry: Entry, sizes: Mapping[str, int]) -> int:
        """Return how many bytes the model's processes hold. `sizes` maps Triton's names of models
        to the bytes that their processes hold."""
        return sum(sizes.get(name, 0) for name in self.manager.staged_names(entry))

    def _check_names(self, entry: Entry) -> None:
        """Raise ModelAlreadyLoaded if a loaded model already has one of the names that callers use
        for the new model. Raise LoadFailed if Triton already has a model with the name of the new
        model or of one of its parts, which is likely only without namespaces."""
        others = self.manager.models().entries.values()
        for other in others:
            taken = {other.target, other.name} & {entry.target, entry.name}
            if taken:
                raise ModelAlreadyLoaded(
                    f"the Target-Model '{min(taken)}' is loaded already, as '{other.name}'"
                )
        for other in others:
            taken = {other.triton_name, *other.parts} & {entry.triton_name, *entry.parts}
            if taken:
                raise LoadFailed(
                    f"'{other.name}' has a model {', '.join(sorted(taken))} too: rename one. Parts "
                    "of archives keep their names if "
                    "SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING=false"
                )

    def _load(self, entry: Entry, names: Mapping[Path, str], root: Path) -> tuple[str, ...]:
        """Stage the archive's folders and make Triton load them. `names` maps the folders to
        Triton's names. Return the versions of the model or the ensemble that were loaded. Raise a
        ServingError."""
        part_names = {
            folder.name: name for folder, name in names.items() if name != entry.triton_name
        }
        try:
            for folder, name in names.items():
                choice = self.manager.store.stage(folder, name, part_names, root=root)
                if choice:
                    level = logging.WARNING if choice.refused else logging.INFO
                    log.log(level, "%s: %s", name, choice)
            return self.manager.load(entry)
        except ConfigError as err:
            raise LoadFailed(str(err)) from err
        except (TritonTimeout, TritonUnavailable):
            raise
        except ServingError as err:
            reason = self.manager.reason_for_author(entry, str(err))
            kind = OutOfMemory if is_out_of_memory(str(err)) else LoadFailed
            raise kind(f"'{entry.target}' cannot be loaded: {reason}") from err


def put_bounded(values: dict[Any, Any], key: object, value: object, most: int = 4096) -> None:
    """Set a value in the dictionary `values`. If the dictionary then has more than `most` entries,
    remove the one that was set the longest time ago."""
    values.pop(key, None)  # a dictionary keeps its keys in the order of their insertion
    values[key] = value
    if len(values) > most:
        del values[next(iter(values))]


def _measured_key(entry: Entry) -> tuple[str, str]:
    """Return the key under which a model's measured size is stored. It must change when the model's
    files change: it contains their signature or, if there is none, the estimated size."""
    return entry.target, entry.signature or str(entry.estimated)


def shortfall(limit: int, used: int, needed: int) -> str:
    """Return the error message for a model that needs more memory than is left, or "" if there is
    enough. `used` of `limit` bytes are taken, and the model needs `needed` bytes."""
    if used + needed <= limit:
        return ""
    return (
        f"the model would take about {needed / 2**20:.0f} MB, those loaded take "
        f"{used / 2**20:.0f} MB of the {limit / 2**20:.0f} MB that they may take; unload others, "
        "or raise "
        "SERVE_MODEL_MEMORY_SHARE or the container's memory"
    )


def estimate(archive: Archive, device: str) -> int:
    """Estimate how many bytes of memory the archive's models will use. Raise LoadFailed if a
    configuration cannot be used."""
    try:
        return sum(memory_of(part, read_config(part, device)) for part in archive.parts)
    except Unreadable as err:
        raise LoadFailed(str(err)) from err


def _locate(name: str, url: str, root: Path) -> Archive:
    """Return the archive at `url`. Raise InvalidRequest if the name, the URL or the archive is
    invalid, or LoadFailed if a config.pbtxt cannot be read."""
    if not is_nameable(name):
        expected = (
            f"1 to {LONGEST_NAME} printable characters, and no part of it between slashes may be "
            "empty, '.' or '..'"
        )
        raise InvalidRequest(f"'model_name' must be {expected}; got '{name[:LONGEST_NAME]}'")
    try:
        return locate(url, root)
    except Unreadable as err:
        raise LoadFailed(str(err)) from err
    except ConfigError as err:
        raise InvalidRequest(str(err)) from err


def triton_names(archive: Archive, target: str, namespaces: bool) -> dict[Path, str]:
    """Return Triton's name for each of the archive's folders, beginning with `archive.folder`.
    Without `namespaces`, parts keep their own names."""
    outer = triton_name(target)
    names = {archive.folder: outer}
    for part in archive.parts:
        if part != archive.folder:
            names[part] = f"{outer}__{part.name}" if namespaces else part.name
    return names


def triton_name(target: str) -> str:
    """Return Triton's name for a Target-Model. Replace unusual characters, because Triton's HTTP
    endpoint cannot find names with a slash, and its Python backend cannot find names with a space.
    Shorten long names. If the name has changed, append a digest to make it unique."""
    # leading dots are removed, because the name ".." would refer to another folder
    name = re.sub(r"[^A-Za-z0-9._-]", "_", target)[:100].lstrip(".")
    return name if name == target else f"{name}-{digest(target)[:8]}"
