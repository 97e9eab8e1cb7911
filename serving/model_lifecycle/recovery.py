"""Recovers models whose processes have died, if possible without affecting the others.

If a call reports a dead process, or a check finds one, its model is unloaded and loaded again. A
model whose processes die too often is unloaded, and loaded again later. After MOST_RELOADS reloads,
tritonserver is restarted at the next crash.

model_status/states.py defines the states, and explains why a model with a dead process must be
reloaded before it can be unloaded.
"""

import logging
import re
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from serving.errors import ServingError, TritonTimeout, TritonUnavailable
from serving.host.processes import Stubs
from serving.model_lifecycle.manager import Manager
from serving.model_status.models import Entry
from serving.model_status.states import READY, REFUSING, RELOADED, RELOADING, UNLOADING, Event
from serving.triton.quirks import MOST_RELOADS

log = logging.getLogger(__name__)
# seconds between checks of all processes; a check takes 20 ms with 1,000 models
LOOK_SECONDS = 2.0
WINDOW = 60.0
# How often a model may crash within WINDOW seconds. It is more than once, because callers retry, so
# a request that crashes its model may arrive several times.
CRASHES_ALLOWED = 3
# For how many seconds a model is refused. The time doubles each time, up to REFUSED_MOST.
REFUSED_SECONDS = 300.0
REFUSED_MOST = 24 * 3600.0


@dataclass(frozen=True)
class Report:
    """A crash that a call has seen. `models` are Triton's names for the model and its parts,
    `details` is Triton's message, and `began` is when the call began (time.monotonic)."""

    models: list[str]
    details: str
    began: float


class Recovery:
    """Decides what to do with crashed models. Only `report` is thread-safe."""

    def __init__(self, manager: Manager) -> None:
        self._manager = manager
        self._stubs = Stubs()
        self._pid = 0  # tritonserver's process id
        self._looked = 0.0  # when all processes were last checked (time.monotonic)
        self._reports: deque[Report] = deque()
        # the states in which a recovery thread works on a model, and what it does then
        self._work = {RELOADING: self._reload, REFUSING: self._unload}

    def report(self, report: Report) -> None:
        """Accept the report of a call that found a dead process."""
        self._reports.append(report)

    def watch(self, pid: int) -> None:
        """Watch the processes of the tritonserver with this `pid`."""
        self._pid = pid
        self._looked = 0.0

    def step(self) -> None:
        """Check the processes if the last check was LOOK_SECONDS ago or a model has been reloaded.
        Mark reloaded models as ready, handle the reports, and begin the reloads that are due."""
        entries = self._manager.models().entries.values()
        reloaded = [entry for entry in entries if entry.state == RELOADED]
        # check the new processes at once, because only those seen alive can later be found dead
        if reloaded or time.monotonic() > self._looked + LOOK_SECONDS:
            self._look()
        for entry in reloaded:
            self._manager.move(entry, Event.PROCESSES_SEEN, reason="")
        while self._reports:
            report = self._reports.popleft()
            # A check of the processes finds the cause, which Triton's message does not contain. It
            # takes two checks to find a death.
            for _ in range(2):
                self._look()
            if owner := self._owner(report.models, report.details):
                self._handle(owner, report.details, report.began)
        for entry in self._manager.models().entries.values():
            if entry.state in Event.DUE.value and entry.until <= time.monotonic():
                self._begin(entry, Event.DUE)

    def _look(self) -> None:
        """Check all processes, and handle those that have died."""
        self._looked = time.monotonic()
        for stub, description in self._stubs.look(self._pid):
            if entry := self._find_entry(stub.model):
                reason = f"process '{stub.instance}' died: {description}"
                self._handle(entry, reason, stub.seen_alive)

    def _find_entry(self, name: str) -> Entry | None:
        """Return the model that Triton knows by this name, even if it is being unloaded, or else
        the archive that contains a part with this name. Return None if there is neither."""
        entries = self._manager.models().entries.values()
        own = [entry for entry in entries if entry.triton_name == name]
        archives = [entry for entry in entries if entry.target and name in entry.parts]
        return next(iter(own + archives), None)

    def _owner(self, names: list[str], details: str) -> Entry | None:
        """Return the model, or the part of an ensemble, whose process has died. `names` are the
        models that the call used, and `details` is Triton's message, which may quote the name of
        the process. If that process belongs to none of them, return the first one that is not the
        ensemble. Return None if the message quotes no name; then only a check of the processes can
        find the model."""
        if "'" not in details:
            return None
        called = names[1:] or names  # an ensemble itself has no process
        owners = {stub.model for stub in self._stubs.all() if f"'{stub.instance}'" in details}
        for name in called:
            # Triton names the processes of a model NAME_0_0, NAME_0_1 and so on
            is_named = re.search(rf"'{re.escape(name)}_\d+_\d+'", details)
            if name in owners or is_named:
                return self._find_entry(name)
        return self._find_entry(called[0])

    def _handle(self, entry: Entry, reason: str, alive_at: float) -> None:
        """Handle a crash of a process that was alive at `alive_at`. Ignore the crash if that was
        before `entry.began`, because the process then belonged to an earlier load or reload. If
        the model is being unloaded, only count the crash, which ends the streams that the unload
        waits for. In any other state than READY, ignore it."""
        if alive_at <= entry.began:
            return
        if entry.state == UNLOADING:
            self._manager.count_death(entry.name)
        if entry.state != READY:
            return
        now = time.monotonic()
        recent = [crash for crash in entry.crashes if crash > now - WINDOW]
        crashes = (*recent, now)
        self._manager.update(entry, crashes=crashes)
        self._manager.count_death(entry.name)
        reloads = self._manager.models().reloads
        if len(crashes) > CRASHES_ALLOWED:
            times = f"its processes died {len(crashes)} times within {WINDOW:g} s"
            fields = _log_refusal(entry, f"{times}, the last: {reason}")
            self._begin(entry, Event.REFUSE, **fields)
        elif reloads >= MOST_RELOADS:
            cause = f"models had to be reloaded {reloads} times"
            self._manager.kill_server(f"model '{entry.name}': {reason}; {cause}")
        else:
            log.warning("reloading model '%s': %s", entry.name, reason)
            self._begin(entry, Event.DIED, reason=reason)

    def _begin(self, entry: Entry, event: Event, **fields: Any) -> None:
        """Apply the event to the model's state, and change the `fields` of its entry. If the event
        applies, recover the model in a new thread, because a load may take a long time."""
        if self._manager.move(entry, event, **fields):
            threading.Thread(target=self._recover, args=(entry,), daemon=True).start()

    def _recover(self, entry: Entry) -> None:
        """While the model's state is one of those in `_work`, do what that state requires. If that
        takes too long, kill tritonserver."""
        manager = self._manager
        try:
            with manager.changing(entry.name):
                while latest := manager.models().latest(entry):
                    if latest.state not in self._work:
                        break
                    self._work[latest.state](latest)
        except TritonTimeout:
            manager.kill_server(f"model '{entry.name}' cannot be reloaded")
        except TritonUnavailable:
            log.info("model '%s': tritonserver has ended meanwhile", entry.name)
        except Exception:
            log.exception("model '%s' cannot be reloaded", entry.name)
        finally:
            manager.move(entry, Event.INTERRUPTED)  # changes nothing if the work is done

    def _reload(self, entry: Entry) -> None:
        """Reload the model. If Triton cannot load it, refuse the model. Raise TritonTimeout or
        TritonUnavailable."""
        began = time.monotonic()
        try:
            versions = self._manager.reload(entry)
        except TritonTimeout:
            # If tritonserver still answers, the model is to blame, so a new tritonserver must not
            # load it.
            with suppress(ServingError):
                if self._manager.gateway.is_live():
                    self._manager.unstage(entry)
            raise
        except TritonUnavailable:
            raise
        except ServingError as err:
            problem = self._manager.reason_for_author(entry, str(err))
            fields = _log_refusal(entry, f"it cannot be reloaded ({entry.reason}): {problem}")
            self._manager.move(entry, Event.REFUSE, **fields)
        else:
            now = time.monotonic()
            log.info("model '%s' serves again after %.1f s", entry.name, now - began)
            self._manager.move(entry, Event.RELOAD_ENDED, began=now, versions=versions)

    def _unload(self, entry: Entry) -> None:
        """Unload a model that is refused. Raise TritonTimeout or TritonUnavailable."""
        try:
            self._manager.unload_dead(entry)
        except (TritonTimeout, TritonUnavailable):
            raise
        except ServingError as err:
            log.warning("model '%s' is not unloaded: %s", entry.name, err)
        self._manager.move(entry, Event.UNLOAD_ENDED)


def _log_refusal(entry: Entry, reason: str) -> dict[str, Any]:
    """Log that a model is refused, and return the fields of its entry that change. A model is
    refused for REFUSED_SECONDS at first, and then for twice as long each time, up to
    REFUSED_MOST."""
    seconds = min(REFUSED_SECONDS * 2**entry.refusals, REFUSED_MOST)
    log.error("model '%s' is not served for %g s: %s", entry.name, seconds, reason)
    until = time.monotonic() + seconds
    return {"reason": reason, "until": until, "refusals": entry.refusals + 1}
