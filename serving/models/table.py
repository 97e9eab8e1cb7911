"""What all processes share about the models: the table, a JSON file which the model manager replaces and each worker
reads, and the leases, counters of the requests in flight in a file that all of them map. Standard library only.

serve --the first table--> manager --every change--> models.json --stat, parse once--> each worker

A request counts itself and then looks at the table again. To unload a model, the manager marks it in the table and then
waits until its counter is zero. So a request that still found the model is waited for, and no other begins to use it.
"""

import json
import mmap
import os
import threading
import time
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from serving.errors import ModelFailed, ModelNotLoaded, ModelNotReady, ModelRefused, ModelRestarting, ServingError

LOADING, READY, RESTARTING, REFUSED, FAILED, UNLOADING = (
    "loading", "ready", "restarting", "refused", "failed", "unloading"
)  # fmt: skip
MODELS = 4096  # columns of models
ALL_MODELS = MODELS  # the column of the requests whose model is known
TOTAL = MODELS + 1  # the column of all requests
WIDTH = MODELS + 2
SIZE = array("q").itemsize


@dataclass(frozen=True)
class Entry:
    """A model. `name` is its callers' name for it (the platform's, in multi-model mode), `triton_name` Triton's.

    `folder` is what its client is made from, `load_id` tells its loads apart, `column` is that of its counter in the
    leases. `parts` are Triton's names of the models that an ensemble calls. `reason` says why it is not ready, and
    `until` when a refused one is tried again (time.monotonic, as `began`, the time of the load). `answered` says that
    it has answered its example since it was loaded, or need not (model_manager/examples.py). An archive has its
    Target-Model and its URL, a folder that is watched its signature (model_manager/on_change.py) and the folder that
    was copied.
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
        """What the ServedModel of this load is made from."""
        return self.load_id, self.triton_name, self.folder

    def error(self) -> ServingError | None:
        """Return why it does not answer, None when it does."""
        if self.state == READY:
            return None
        if self.state == RESTARTING:
            return ModelRestarting(self.name, self.reason)
        if self.state == REFUSED:
            return ModelRefused(self.name, self.reason, max(1, round(self.until - time.monotonic())))
        if self.state == FAILED:
            return ModelFailed(self.name, self.reason)
        if self.target and not self.reason:  # the platform's first load of an archive is in progress
            return ModelNotLoaded(self.name)
        return ModelNotReady(f"model '{self.name}' is being loaded; try again shortly")


@dataclass(frozen=True)
class Rejection:
    """A change of these models' folders (name -> signature) that is not served; `reasons` has a line a mistake."""

    folders: dict[str, str]
    reasons: list[str]


@dataclass(frozen=True)
class Models:
    """The table: models by name, what was rejected, how often a process of each model died, and the process id of the
    tritonserver of which all this is true. `was_ready` says that once all models have answered their examples, and
    `on_demand` that POST /models loads models, so that there may be none."""

    entries: Mapping[str, Entry] = field(default_factory=dict)
    rejected: tuple[Rejection, ...] = ()
    deaths: Mapping[str, int] = field(default_factory=dict)
    server: int = 0
    was_ready: bool = False
    on_demand: bool = False

    @cached_property
    def current(self) -> dict[str, Entry]:
        """Without those that are being unloaded, which no call may begin to use."""
        return {name: entry for name, entry in self.entries.items() if entry.state != UNLOADING}

    @cached_property
    def by_triton_name(self) -> dict[str, Entry]:
        return {entry.triton_name: entry for entry in self.current.values()}

    @cached_property
    def by_target(self) -> dict[str, Entry]:
        """Archives by their Target-Model, or by the platform's name."""
        return {**self.current, **{entry.target: entry for entry in self.current.values() if entry.target}}

    def awaits_server(self, entry: Entry) -> bool:
        """Return whether tritonserver loads the model while it starts, unlike one that POST /models has it load."""
        return entry.state == LOADING and bool(entry.reason or not self.on_demand)

    def closure(self, entry: Entry) -> Iterator[Entry]:
        """Yield the model, and what it calls, however deep. A circle, which Triton does not load, ends it."""
        left, seen = [entry], set[str]()
        while left:
            if (one := left.pop(0)).name not in seen:
                seen.add(one.name)
                yield one
                left += [self.by_triton_name[part] for part in one.parts if part in self.by_triton_name]

    def error(self, entry: Entry) -> ServingError | None:
        """Return why the model does not answer: for an ensemble it may be one of its parts that does not."""
        errors = (one.error() for one in [*self.closure(entry)][::-1])
        return next((error for error in errors if error), None)

    @cached_property
    def ready(self) -> dict[str, Entry]:
        """The models that answer, by each name that a caller may use."""
        return {name: entry for name, entry in self.by_target.items() if self.error(entry) is None}

    def unready(self) -> ServingError | None:
        """Return why /ping is 503, None if all models that should serve do.

        A model that is restarted or refused, because its processes died, is no reason to replace a container that was
        ready once and serves others: the next container would have the same model.
        """
        entries = self.current
        if not entries:
            refused = "; ".join(reason for each in self.rejected for reason in each.reasons)
            return None if self.on_demand else ModelNotReady(f"no model is served{f': {refused}' if refused else ''}")
        errors = {name: error for name, entry in entries.items() if (error := self.error(entry))}
        troubles = {name: err for name, err in errors.items() if isinstance(err, (ModelRestarting, ModelRefused))}
        if troubles and (len(troubles) == len(entries) or not self.was_ready):
            return next(iter(troubles.values()))
        if left := errors.keys() - troubles.keys():
            # A model that has failed comes first, and a part before the ensembles that call it.
            depths = {name: len([*self.closure(entries[name])]) for name in left}
            return errors[min(left, key=lambda name: (not isinstance(errors[name], ModelFailed), depths[name], name))]
        waiting = (entry for name, entry in entries.items() if not entry.answered and name not in errors)
        if entry := next(waiting, None):
            return ModelNotReady(f"model '{entry.name}': {entry.reason or 'its example is being asked'}")
        return None


class Table:
    """The file. Only one process writes it."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._read: tuple[int, Models] = (0, Models())

    def look(self) -> Models:
        """Return the table as it is now: one stat, and the parsed table of the last look if nothing has changed."""
        try:
            version = self.file.stat().st_mtime_ns
        except FileNotFoundError:  # nothing is known yet
            return Models()
        if self._read[0] != version:
            with self.file.open("rb") as opened:
                self._read = os.fstat(opened.fileno()).st_mtime_ns, _parsed(json.load(opened))
        return self._read[1]

    def write(self, models: Models) -> None:
        """Replace the file in one step. Its time is its version: a number that no other version has. Raise OSError."""
        temporary = self.file.with_name(f".{self.file.name}.{threading.get_ident()}")
        document = {
            "models": [asdict(entry) for entry in models.entries.values()],
            "rejected": [asdict(each) for each in models.rejected],
            "deaths": dict(models.deaths),
            "server": models.server,
            "was_ready": models.was_ready,
            "on_demand": models.on_demand,
        }
        temporary.write_text(json.dumps(document), encoding="utf-8")
        version = time.monotonic_ns()
        os.utime(temporary, ns=(version, version))
        temporary.replace(self.file)


def _parsed(document: Any) -> Models:
    entries = [Entry(**each | {"parts": tuple(each["parts"])}) for each in document["models"]]
    return Models(
        {entry.name: entry for entry in entries},
        tuple(Rejection(**each) for each in document["rejected"]),
        document["deaths"],
        document["server"],
        document["was_ready"],
        document["on_demand"],
    )


class Leases:
    """The counters: a row for each of the workers that may live at the same time, a column for each model, two for all.
    A counter has two numbers: requests, and the bytes of their bodies. Without a file they are this process's own."""

    def __init__(self, file: Path | None, rows: int = 1) -> None:
        self.rows, cells = rows, rows * WIDTH
        length = (2 * cells + MODELS) * SIZE
        if file is None:
            mapped = mmap.mmap(-1, length)
        else:
            with file.open("a+b") as opened:
                if opened.seek(0, 2) < length:
                    opened.truncate(length)
                mapped = mmap.mmap(opened.fileno(), length)
        numbers = memoryview(mapped).cast("q")
        self._requests, self._bytes, self._last_use = numbers[:cells], numbers[cells : 2 * cells], numbers[2 * cells :]

    def add(self, row: int, column: int, requests: int, size: int) -> None:
        """Add requests, and the bytes of their bodies."""
        index = row * WIDTH + column
        self._requests[index] += requests
        self._bytes[index] += size

    def requests(self, column: int) -> int:
        """Return the requests of all workers."""
        return sum(self._requests[column::WIDTH])

    def bytes(self, column: int) -> int:
        """Return the bytes of the bodies of all workers' requests."""
        return sum(self._bytes[column::WIDTH])

    def touch(self, column: int) -> None:
        """Note that a request ends now which used the model."""
        self._last_use[column] = time.monotonic_ns()

    def last_use(self, column: int) -> float:
        """Return when the last request ended (time.monotonic). If that was before the model's load began, it was a
        request to the model that had this column before."""
        return self._last_use[column] / 1e9

    def clear(self, row: int) -> None:
        """Forget the requests of a worker that has ended."""
        nothing = memoryview(array("q", bytes(WIDTH * SIZE)))
        for numbers in (self._requests, self._bytes):
            numbers[row * WIDTH : (row + 1) * WIDTH] = nothing
