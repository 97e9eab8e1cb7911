"""Reloads each model whose process has died, without touching others; refuses models that die too
often.

    a call reports a dead process, or a look finds one
        -> Triton unloads and loads that model -> it is served again
        -> after too many deaths: it is unloaded, and tried again later

Triton never ends the unload of an instance whose process has died (quirks.py). So a model is
unloaded and loaded, and to remove it, it is unloaded again. After MOST_RELOADS such reloads
tritonserver is restarted.
"""

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field

from serving.errors import ServingError, TritonTimeout, TritonUnavailable
from serving.host.processes import Stubs
from serving.model_lifecycle.manager import Manager
from serving.model_status.table import READY, REFUSED, RESTARTING, Entry
from serving.triton.quirks import MOST_RELOADS

log = logging.getLogger(__name__)
LOOK_SECONDS = 2.0  # between two looks at all processes, each 20 ms with 1,000 models
WINDOW = 60.0
# within WINDOW: callers retry, so a request that kills its model may come a few times
CRASHES_ALLOWED = 3
REFUSED_SECONDS = 300.0  # the first time; twice as long each further time
REFUSED_MOST = 24 * 3600.0
IN_TROUBLE = (RESTARTING, REFUSED)


@dataclass(frozen=True)
class Report:
    """A crash that a call met: Triton's message, Triton's names of the model and its parts, when
    the call began."""

    models: list[str]
    details: str
    began: float


@dataclass
class _History:
    crashes: deque[float] = field(default_factory=deque)
    refusals: int = 0
    ended: float = 0.0  # when the last reload ended: processes that died before are gone
    busy: bool = False


class Recovery:
    """Decides what happens to crashed models. Only `report` may be called by several threads."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._stubs, self._histories = Stubs(), dict[tuple[str, str], _History]()
        self._pid, self._reloads, self._looked = 0, 0, 0.0
        self._reports: deque[Report] = deque()
        # a model, whether it serves, when its reload ended
        self._done: deque[tuple[Entry, bool, float]] = deque()

    def report(self, report: Report) -> None:
        """Take the report of a call that met a dead process."""
        self._reports.append(report)

    def forget(self, pid: int) -> None:
        """Begin again with a new tritonserver, which has loaded all models."""
        self._pid, self._reloads, self._looked = pid, 0, 0.0
        loads = {(entry.load_id, entry.name) for entry in self._manager.models().entries.values()}
        self._histories = {
            load: history for load, history in self._histories.items() if load in loads
        }

    def step(self) -> None:
        now = time.monotonic()
        done = [self._done.popleft() for _ in range(len(self._done))]
        if done or now > self._looked + LOOK_SECONDS:
            self._look(now)
        for entry, serves, ended in done:  # only now, after the look has seen the new processes
            history = self._history(entry)
            history.busy, history.ended = False, ended
            latest = self._manager.get(entry.name)
            if serves and latest and latest.state == RESTARTING:  # and not UNLOADING
                self._manager.update(entry, state=READY, reason="", until=0.0)
        while self._reports:
            report = self._reports.popleft()
            for _ in range(2):  # the exit codes of the processes say more than Triton
                self._look(time.monotonic())
            if owner := self._owner(report.models, report.details):
                self._handle(owner, report.details, report.began)
        for entry in self._manager.models().entries.values():
            is_due = entry.state in IN_TROUBLE and entry.until <= time.monotonic()
            if is_due and not self._history(entry).busy:
                self._begin(self._reload, entry, entry.reason)

    def _look(self, now: float) -> None:
        self._looked = now
        for stub, how in self._stubs.look(self._pid):
            if entry := self._entry(stub.file.parts[-3]):
                self._handle(entry, f"process '{stub.instance}' died: {how}", stub.alive)

    def _entry(self, name: str) -> Entry | None:
        """Return the model with this name in Triton, or the archive that has a part with this
        name."""
        models = self._manager.models()
        archives = (
            entry for entry in models.entries.values() if entry.target and name in entry.parts
        )
        return models.by_triton_name.get(name) or next(archives, None)

    def _owner(self, names: list[str], details: str) -> Entry | None:
        """Return the model, for an ensemble its part, whose process Triton names in `details`.
        Return None if it names no process: then only a look at the processes finds it."""
        if "'" not in details:
            return None
        called = names[1:] or names
        owners = {
            stub.file.parts[-3] for stub in self._stubs.all() if f"'{stub.instance}'" in details
        }
        named = (
            name
            for name in called
            if name in owners or re.search(rf"'{re.escape(name)}_\d+_\d+'", details)
        )
        return self._entry(next(named, called[0]))

    def _handle(self, entry: Entry, reason: str, began: float) -> None:
        """Handle a crash seen by a call that began at `began`. Ignore it if that was before the
        last load ended."""
        history = self._history(entry)
        if (
            history.busy
            or began <= max(history.ended, entry.began)
            or entry.state not in (READY, *IN_TROUBLE)
        ):
            return
        now = time.monotonic()
        history.crashes.append(now)
        self._manager.count_death(entry.name)
        while history.crashes[0] <= now - WINDOW:
            history.crashes.popleft()
        if (times := len(history.crashes)) > CRASHES_ALLOWED:
            text = f"its processes died {times} times within {WINDOW:g} s, the last: {reason}"
            self._begin(self._refuse, entry, text)
        elif self._reloads >= MOST_RELOADS:
            again = f"models had to be reloaded {self._reloads} times"
            self._manager.kill_server(f"model '{entry.name}': {reason}; {again}")
        else:
            log.warning("reloading model '%s': %s", entry.name, reason)
            self._begin(self._reload, entry, reason)

    def _begin(self, work: Callable[[Entry, str], bool], entry: Entry, reason: str) -> None:
        """Run `work` in a thread, because a load may take long."""
        self._manager.update(entry, state=RESTARTING, reason=reason, until=0.0)
        self._history(entry).busy = True
        self._reloads += 1
        threading.Thread(target=self._work, args=(work, entry, reason), daemon=True).start()

    def _work(self, work: Callable[[Entry, str], bool], entry: Entry, reason: str) -> None:
        serves = False
        try:
            with self._manager.changing(entry.name):
                serves = self._manager.is_current(entry) and work(entry, reason)
        except TritonTimeout:
            self._manager.kill_server(f"model '{entry.name}' cannot be reloaded: {reason}")
        except TritonUnavailable:
            log.info("model '%s': tritonserver has ended meanwhile", entry.name)
        except Exception:
            log.exception("model '%s' cannot be reloaded", entry.name)
        finally:
            self._done.append((entry, serves, time.monotonic()))

    def _reload(self, entry: Entry, reason: str) -> bool:
        """Reload the model. Return whether it serves again."""
        began = time.monotonic()
        try:
            self._manager.reload(entry)
        except TritonTimeout:
            if self._manager.gateway.is_live():  # so the model is to blame, and would hang the next
                self._manager.unstage(entry)
            raise
        except TritonUnavailable:
            raise
        except ServingError as err:
            return self._refuse(entry, f"it cannot be reloaded ({reason}): {err}")
        log.info("model '%s' serves again after %.1f s", entry.name, time.monotonic() - began)
        return True

    def _refuse(self, entry: Entry, reason: str) -> bool:
        """Unload the model for a while. Reload it first, because the unload of a dead process never
        ends. Return False."""
        history = self._history(entry)
        seconds = min(REFUSED_SECONDS * 2**history.refusals, REFUSED_MOST)
        history.refusals += 1
        self._manager.update(entry, state=REFUSED, reason=reason, until=time.monotonic() + seconds)
        log.error("model '%s' is not served for %g s: %s", entry.name, seconds, reason)
        try:
            try:
                self._manager.reload(entry)
            finally:
                self._manager.gateway.unload(entry.triton_name)
        except (TritonTimeout, TritonUnavailable):
            raise
        except ServingError as err:
            log.warning("model '%s' is not unloaded: %s", entry.name, err)
        return False

    def _history(self, entry: Entry) -> _History:
        return self._histories.setdefault((entry.load_id, entry.name), _History())
