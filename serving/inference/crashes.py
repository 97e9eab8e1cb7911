"""What all workers know of models whose processes have died: two small files for each such model, in a folder.

A worker whose call meets a dead process writes a report. The keeper (keeper.py), of which there is one, answers it with
a trouble: the model is being started again, or refused. Calls for a model with a report or a trouble are refused.
"""

import json
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from serving.errors import BackendDied, ModelNotReady, ModelRefused, ModelRestarting
from serving.host.files import digest, replace_file

log = logging.getLogger(__name__)
REPORT_SECONDS = 10.0  # a report that lies longer has no keeper: it stops nobody


@dataclass(frozen=True)
class Report:
    """What Triton said to a call that began at that time (time.monotonic); the model called, and its parts."""

    models: list[str]
    details: str
    began: float


@dataclass(frozen=True)
class Trouble:
    """Of a model: why, and the time (time.monotonic) until which it is refused; 0 while it is being started again."""

    model: str
    reason: str
    until: float = 0.0

    def error(self) -> ModelRestarting | ModelRefused:
        if not self.until:
            return ModelRestarting(self.model, self.reason)
        return ModelRefused(self.model, self.reason, max(1, round(self.until - time.monotonic())))


class Crashes:
    """The files; safe to share between threads and processes. Without a folder there is nothing to know."""

    def __init__(self, folder: Path | None) -> None:
        self._folder = folder

    @contextmanager
    def watch(self, names: Callable[[], Sequence[str]]) -> Iterator[None]:
        """For a call of the model of the first name, the others being its parts, which a first call makes known. Raises
        ModelRestarting, ModelRefused, also in the place of a BackendDied, and of a ModelNotReady that a reload made."""
        self.check(names())
        began = time.monotonic()
        try:
            yield
        except ModelNotReady:
            self.check(names())
            raise
        except BackendDied as err:
            self.report(names(), err, began)
            raise ModelRestarting(names()[0], err.details) from err

    def check(self, names: Sequence[str]) -> None:
        """Raises ModelRestarting, ModelRefused."""
        if error := self.error(names):
            raise error

    def error(self, names: Sequence[str]) -> ModelRestarting | ModelRefused | None:
        """What `check` would raise. Nearly always there is nothing in the folder."""
        if self.is_empty():
            return None
        for name in names:
            if trouble := self._read(name):
                return trouble.error()
        found = _load(self._file(names[0], "report"))
        if found and time.monotonic() < found["began"] + REPORT_SECONDS:
            return ModelRestarting(names[0], found["details"])
        return None

    def report(self, names: Sequence[str], error: Exception, began: float) -> None:
        """That a call met this error, if it is one that a dead process gives."""
        if isinstance(error, BackendDied) and self._folder:
            try:
                self._write(self._file(names[0], "report"), Report(list(names), error.details, began))
            except OSError:
                log.exception("the death of a process of model '%s' cannot be reported", names[0])

    def reports(self) -> Iterator[Report]:
        """Those that lie there."""
        for file in self._files("report"):
            if found := _load(file):
                yield Report(**found)

    def answered(self, report: Report) -> None:
        self._file(report.models[0], "report").unlink(missing_ok=True)

    def troubles(self) -> list[Trouble]:
        """Of all models."""
        return [Trouble(**found) for file in self._files("trouble") if (found := _load(file))]

    def set(self, trouble: Trouble) -> None:
        self._write(self._file(trouble.model, "trouble"), trouble)

    def clear(self, name: str) -> None:
        """The model is served, or loaded no more."""
        self._file(name, "trouble").unlink(missing_ok=True)
        self._file(name, "report").unlink(missing_ok=True)

    def forget(self) -> None:
        """All of them: another tritonserver has begun."""
        for file in (*self._files("trouble"), *self._files("report")):
            file.unlink(missing_ok=True)

    def is_empty(self) -> bool:
        """Whether nothing is known of any model. The first death makes the folder."""
        try:
            return not (self._folder and any(self._folder.iterdir()))
        except FileNotFoundError:
            return True

    def _write(self, file: Path, data: Any) -> None:
        file.parent.mkdir(exist_ok=True)
        replace_file(file, json.dumps(asdict(data)).encode())

    def _read(self, name: str) -> Trouble | None:
        found = _load(self._file(name, "trouble"))
        return Trouble(**found) if found else None

    def _files(self, kind: str) -> list[Path]:
        return sorted(self._folder.glob(f"*.{kind}")) if self._folder else []

    def _file(self, name: str, kind: str) -> Path:
        return (self._folder or Path("/nonexistent")) / f"{digest(name)}.{kind}"


def _load(file: Path) -> Any:
    try:
        return json.loads(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return None
