"""Multi-model mode: the platform loads and unloads archives while other models are served.

POST /models -> locate, admit, stage -> Triton loads -> READY
DELETE /models/NAME -> no more calls begin -> calls in flight end -> Triton unloads -> the staged
folder is removed
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
from serving.host.processes import memory_by_model, used_by
from serving.model_lifecycle.manager import Manager
from serving.model_lifecycle.policy import Policy
from serving.model_status.states import ADDING, FAILED, UNLOADING, Event
from serving.model_status.table import Entry
from serving.repository.checks import memory_of
from serving.repository.locate_archive import Archive, locate
from serving.repository.model_config import Unreadable, read_config
from serving.repository.paths import LONGEST_NAME, is_nameable
from serving.triton.connection import is_out_of_memory

log = logging.getLogger(__name__)


class OnPost(Policy):
    """The policy that loads models on POST /models. Thread-safe."""

    # the error for a model that can never be loaded: the platform then evicts no other model for it
    too_large: type[ServingError] = LoadFailed

    def __init__(self, manager: Manager) -> None:
        super().__init__(manager)
        # bytes that Triton and its models may use
        self.memory = int(self.settings.model_memory_share * memory_limit())
        self._admitting = threading.Lock()
        self._promised: dict[str, int] = {}
        # the most bytes that each model was measured to hold since it last changed
        self._measured: dict[tuple[str, str], int] = {}

    def step(self) -> None:
        """Keep trying to unload models whose load or unload timed out."""
        for entry in self.manager.models().entries.values():
            if entry.state == UNLOADING:
                with (
                    suppress(TritonTimeout, TritonUnavailable),
                    self.manager.changing(entry.name, 0.0),
                ):
                    if self.manager.is_current(entry):
                        self.manager.unload(entry)

    def load(self, name: str, url: str, target: str) -> None:
        """Load an archive. Raise ModelAlreadyLoaded, OutOfMemory, LoadFailed, InvalidRequest or one
        of Triton's errors."""
        archive = _located(name, url, self.settings.model_repositories[0])
        with self.manager.changing(name):
            if (loaded := self.manager.get(name)) is not None:
                if loaded.state not in (UNLOADING, FAILED):
                    raise ModelAlreadyLoaded(
                        f"the model '{name}' is loaded already, from {loaded.url}"
                    )
                # its unload timed out, or it failed to load after a restart of tritonserver
                self.manager.unload(loaded)
            self._add(archive, name, target, url=url)
        log.info("loaded %s (%s) from %s", target, name, archive.folder)

    def unload(self, name: str) -> None:
        """Unload a model and wait until its memory is free. Raise ModelNotLoaded, TritonTimeout or
        TritonUnavailable."""
        # check this first: `changing` creates a lock, and locks of made-up names could fill the
        # memory
        if not self.manager.get(name):
            raise ModelNotLoaded(name)
        with self.manager.changing(name):
            if (entry := self.manager.get(name)) is None:
                raise ModelNotLoaded(name)
            self._measure(entry)
            self.manager.unload(entry)
        log.info("unloaded %s (%s)", entry.target, name)

    def _add(self, archive: Archive, name: str, target: str, **fields: Any) -> None:
        """Load an archive that is not in the table. `fields` are further fields of its entry. Raise
        ModelAlreadyLoaded, OutOfMemory, LoadFailed or one of Triton's errors."""
        names = triton_names(archive, target, self.settings.namespaces)
        outer, *parts = names.values()
        entry = Entry(
            name=name,
            triton_name=outer,
            folder=str(archive.folder),
            load_id=secrets.token_hex(8),
            column=0,  # `_admit` chooses one
            state=ADDING,
            parts=tuple(parts),
            answered=True,
            target=target,
            estimated=estimate(archive, self.settings.device),
            **fields,
        )
        needed = self._measured.get(_measure_of(entry), entry.estimated)
        if needed > self.memory:
            reason = shortfall(self.memory, 0, needed)
            raise self.too_large(f"'{target}' can never be loaded on this machine: {reason}")
        try:
            entry = self._admit(entry, needed)
            try:
                versions = self._load(entry, names, archive.root)
            except TritonTimeout:  # Triton may still be loading it
                self.manager.move(entry, Event.UNLOAD)
                raise
            except BaseException:
                self.manager.drop(entry)
                raise
        finally:
            self._promised.pop(name, None)
        self.manager.leases.touch(entry.column)  # the column may have had another model
        self.manager.move(entry, Event.LOADED, versions=versions)
        self._measure(entry)

    def _admit(self, entry: Entry, needed: int) -> Entry:
        """Add the load to the table, so that other loads take its memory into account. Raise
        OutOfMemory, LoadFailed, ModelAlreadyLoaded or TritonUnavailable."""
        pid = self._pid()
        with self._admitting:
            if reason := shortfall(self.memory, self._used(pid, entry.name), needed):
                raise OutOfMemory(f"'{entry.target}' is not loaded: {reason}")
            self._check_names(entry)
            column = self.manager.free_column()
            entry = replace(entry, column=column, began=time.monotonic())
            self.manager.put(entry)
            self._promised[entry.name] = needed
        return entry

    def _pid(self) -> int:
        """Return tritonserver's process id. Raise TritonUnavailable."""
        if not (pid := self.manager.pid()):
            raise TritonUnavailable("tritonserver is being started (again): try again shortly")
        return pid

    def _used(self, pid: int, name: str) -> int:
        """Return the bytes of memory that are in use or promised to loads other than that of
        `name`."""
        return used_by(pid) + sum(self._promised.values())

    def _measure(self, entry: Entry) -> None:
        """Measure how much memory the processes of a loaded model take, for its next load. Models
        without processes of their own keep their estimate."""
        pid = self.manager.pid()
        held = self.held(entry, memory_by_model(pid)) if pid else 0
        if not held:
            return
        self.manager.update(entry, bytes=held)
        key = _measure_of(entry)
        keep_last(self._measured, key, max(held, self._measured.get(key, 0)))

    def held(self, entry: Entry, sizes: Mapping[str, int]) -> int:
        """Return how many bytes the model's processes hold, given the `sizes` of all models."""
        return sum(sizes.get(name, 0) for name in self.manager.staged_names(entry))

    def _check_names(self, entry: Entry) -> None:
        """Raise ModelAlreadyLoaded if callers know another model by one of the new one's names.
        Raise LoadFailed if Triton does, which is possible without namespaces."""
        others = self.manager.models().entries.values()
        for other in others:
            if known := {other.target, other.name} & {entry.target, entry.name}:
                raise ModelAlreadyLoaded(
                    f"the Target-Model '{min(known)}' is loaded already, as '{other.name}'"
                )
        for other in others:
            if taken := {other.triton_name, *other.parts} & {entry.triton_name, *entry.parts}:
                raise LoadFailed(
                    f"'{other.name}' has a model {', '.join(sorted(taken))} too: rename one. Parts "
                    "of archives keep their names if "
                    "SAGEMAKER_TRITON_DISABLE_MODEL_NAMESPACING=false"
                )

    def _load(self, entry: Entry, names: Mapping[Path, str], root: Path) -> tuple[str, ...]:
        """Stage the archive's folders and make Triton load them. Return the versions that were
        loaded."""
        inner = {folder.name: name for folder, name in names.items() if name != entry.triton_name}
        try:
            for folder, name in names.items():
                if choice := self.manager.store.stage(folder, name, inner, root=root):
                    level = logging.WARNING if choice.refused else logging.INFO
                    log.log(level, "%s: %s", name, choice)
            return self.manager.load(entry)
        except ConfigError as err:
            raise LoadFailed(str(err)) from err
        except (TritonTimeout, TritonUnavailable):
            raise
        except ServingError as err:
            text = f"'{entry.target}' cannot be loaded: {self.manager.in_words(entry, str(err))}"
            raise (OutOfMemory if is_out_of_memory(str(err)) else LoadFailed)(text) from err


def keep_last(kept: dict[Any, Any], key: object, value: object, most: int = 4096) -> None:
    """Set a value in a dictionary. If it then has more than `most` entries, remove the oldest
    one."""
    kept.pop(key, None)
    kept[key] = value
    if len(kept) > most:
        del kept[next(iter(kept))]


def _measure_of(entry: Entry) -> tuple[str, str]:
    """Return the key of a model's measured size. It changes when the model's files change or, if
    the entry has no signature of the files, when the estimated size changes."""
    return entry.target, entry.signature or str(entry.estimated)


def shortfall(limit: int, used: int, needed: int) -> str:
    """Return the error message if `needed` bytes exceed what is left of `limit` after `used`, else
    ""."""
    if used + needed <= limit:
        return ""
    megabytes = [f"{number / 2**20:.0f} MB" for number in (needed, used, limit)]
    return (
        f"the model would take about {megabytes[0]}, those loaded take {megabytes[1]} of "
        f"the {megabytes[2]} that they may take; unload others, or raise "
        "SERVE_MODEL_MEMORY_SHARE or the container's memory"
    )


def estimate(archive: Archive, device: str) -> int:
    """Estimate how many bytes of memory the archive's models will use. Raise LoadFailed."""
    try:
        return sum(memory_of(part, read_config(part, device)) for part in archive.parts)
    except Unreadable as err:
        raise LoadFailed(str(err)) from err


def _located(name: str, url: str, root: Path) -> Archive:
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
    """Return Triton's name for each of the archive's folders, beginning with the archive itself.
    Without `namespaces`, parts keep their own names."""
    outer = triton_name(target)
    inner = {part: f"{outer}__{part.name}" if namespaces else part.name for part in archive.parts}
    return {archive.folder: outer} | {
        part: name for part, name in inner.items() if part != archive.folder
    }


def triton_name(target: str) -> str:
    """Return Triton's name for a Target-Model. Triton's HTTP endpoint cannot find names with a
    slash, nor its Python backend names with a space. So unusual characters are replaced, and a
    digest keeps the names unique."""
    # the name ".." would refer to another folder
    name = re.sub(r"[^A-Za-z0-9._-]", "_", target)[:100].lstrip(".")
    return name if name == target else f"{name}-{digest(target)[:8]}"
