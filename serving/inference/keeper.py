"""Starts models again whose processes have died, each alone; refuses those that die too often.

    calls report a dead process, or the keeper finds one -> Triton unloads and loads that model -> it is served again
                                                         -> after too many deaths: it is unloaded, and tried again later

Triton 24.10 never ends the unload of an instance whose process has died. But a load goes on beside it, and its new
instances can be unloaded as any: so a model is unloaded, loaded, and where it shall be gone unloaded again. About 36
threads and 1 MB of /dev/shm of the old instance stay, which is why MOST_RELOADS bounds these.

One worker has the keeper: the one with the lock. When it ends another one takes over.
"""

import fcntl
import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from serving.errors import ServingError, TritonTimeout, TritonUnavailable
from serving.host.files import replace_file, try_lock
from serving.host.processes import Death, Stub, Stubs
from serving.host.status import read_tritonserver
from serving.inference.crashes import Crashes, Report, Trouble
from serving.triton.gateway import TritonGateway

log = logging.getLogger(__name__)
PAUSE = 0.2
LOOK_SECONDS = 2.0  # between two looks at all processes, each some 20 ms with 1,000 models
TAKE_OVER_SECONDS = 2.0
WINDOW = 60.0
CRASHES_ALLOWED = 3  # within WINDOW: a request that kills its model may come a few times, as callers try again
REFUSED_SECONDS = 300.0  # the first time; each further time twice as long
REFUSED_MOST = 24 * 3600.0
MOST_RELOADS = 20  # of one tritonserver: 20 MB of a /dev/shm of 64 MB; then it is restarted


class Models(Protocol):
    """What the keeper needs of those that load models."""

    def owner(self, stub: Stub, seen: float) -> str | None:
        """Triton's name of the model to reload when this process has died, which was last seen alive at that time
        (time.monotonic); None when it is served no more."""

    def reload(self, name: str) -> None:
        """Unloads and loads it; raises a ServingError."""

    def drop(self, name: str) -> None:
        """Unloads it, alive or not; raises a ServingError."""


class LoadedAtStart:
    """The models of one repository, each folder by its name."""

    def __init__(self, gateway: TritonGateway, timeout: float) -> None:
        self._gateway, self._timeout = gateway, timeout

    def owner(self, stub: Stub, seen: float) -> str | None:
        return stub.file.parts[-3] if len(stub.file.parts) > 2 else None

    def reload(self, name: str) -> None:
        self._gateway.unload(name)
        self._gateway.load(name, self._timeout)

    def drop(self, name: str) -> None:
        try:
            self.reload(name)
        finally:
            self._gateway.unload(name)


class Tritonserver:
    """What the supervisor knows of it (`status_file`), and where it is asked to restart it (`request`)."""

    def __init__(self, status_file: Path, request: Path) -> None:
        self._status_file, self._request = status_file, request

    def pid(self) -> int:
        """0 when none runs."""
        return read_tritonserver(self._status_file).pid or 0

    def ask_restart(self, reason: str) -> None:
        """Names the start that is meant, as the supervisor may have been faster."""
        start, line = read_tritonserver(self._status_file).starts, reason.replace("\n", " ")
        replace_file(self._request, f"{start} {line}".encode())


@dataclass
class _History:
    crashes: deque[float] = field(default_factory=deque)
    refusals: int = 0
    ended: float = 0.0  # the last work: what died before it is gone
    busy: bool = False

    def recent(self, now: float) -> int:
        while self.crashes and self.crashes[0] <= now - WINDOW:
            self.crashes.popleft()
        return len(self.crashes)


class Keeper:
    """`folder` is shared by the workers; `count` is told of each crash by the model's name."""

    def __init__(
        self, crashes: Crashes, models: Models, folder: Path, server: Tritonserver, count: Callable[[str], None]
    ) -> None:
        self._crashes, self._models, self._folder = crashes, models, folder
        self._server, self._count = server, count
        self._stubs, self._histories = Stubs(), dict[str, _History]()
        self._pid, self._reloads, self._looked = 0, 0, 0.0
        self._done: deque[tuple[str, bool, float]] = deque()  # what was worked on, whether it serves, since when

    def start(self) -> None:
        """In a thread of this worker."""
        threading.Thread(target=self._run, name="keeper", daemon=True).start()

    def _run(self) -> None:
        with (self._folder / "keeper.lock").open("a") as lock:
            while not try_lock(lock.fileno(), fcntl.LOCK_EX):
                time.sleep(TAKE_OVER_SECONDS)
            while True:
                try:
                    self.step()
                except Exception:
                    log.exception("the keeper of the models failed; it goes on")
                time.sleep(PAUSE)

    def step(self) -> None:
        """One look at everything; nearly always there is nothing to see."""
        now = time.monotonic()
        if not self._done and self._crashes.is_empty() and now <= self._looked + LOOK_SECONDS:
            return
        if not self._is_running():
            return
        done = [self._done.popleft() for _ in range(len(self._done))]
        if done or now > self._looked + LOOK_SECONDS:
            self._look(now)
        self._finish(done)
        for report in self._crashes.reports():
            self._answer(report)
        for trouble in self._crashes.troubles():
            if trouble.until <= now and not self._history(trouble.model).busy:
                self._begin(self._reload, trouble.model, trouble.reason)

    def _answer(self, report: Report) -> None:
        """The processes themselves say more of how they ended."""
        for _ in range(2):
            self._look(time.monotonic())
        if owner := self._owner(report.models, report.details):
            self._handle(owner, report.details, report.began)
        self._crashes.answered(report)

    def _is_running(self) -> bool:
        """Whether there is a tritonserver. A new one has all models anew."""
        if (pid := self._server.pid()) != self._pid:
            self._crashes.forget()
            self._pid, self._reloads, self._looked = pid, 0, 0.0
        return pid > 0

    def _look(self, now: float) -> None:
        self._looked = now
        for death in self._stubs.look(self._pid):
            if name := self._models.owner(death.stub, death.alive):
                self._handle(name, _told(death), death.alive)

    def _owner(self, models: list[str], details: str) -> str | None:
        """Of the model that was called and its parts that one whose process Triton named. An ensemble has none. None
        where Triton named no process: whether one has died, the processes alone tell."""
        if "'" not in details:
            return None
        called = models[1:] or models
        instances = [(stub, seen) for stub, seen in self._stubs.all() if f"'{stub.instance}'" in details]
        owners = {self._models.owner(*each) for each in instances}
        named = (name for name in called if name in owners or re.search(rf"'{re.escape(name)}_\d+_\d+'", details))
        return next(named, called[0])

    def _handle(self, name: str, reason: str, began: float) -> None:
        """A crash that a call met which began at that time: before the end of the last work it is that of an old
        process."""
        history = self._history(name)
        if history.busy or began <= history.ended:
            return
        now = time.monotonic()
        history.crashes.append(now)
        self._count(name)
        if (times := history.recent(now)) > CRASHES_ALLOWED:
            self._begin(self._refuse, name, f"its processes died {times} times within {WINDOW:g} s, the last: {reason}")
        elif self._reloads >= MOST_RELOADS:
            self._server.ask_restart(f"model '{name}': {reason}; models had to be started again {self._reloads} times")
        else:
            log.warning("model '%s' is started again: %s", name, reason)
            self._begin(self._reload, name, reason)

    def _begin(self, work: Callable[[str, str], bool], name: str, reason: str) -> None:
        """A load may take long, and other models may need one too. No call comes between a report and its answer."""
        self._crashes.set(Trouble(name, reason))
        self._history(name).busy = True
        self._reloads += 1
        threading.Thread(target=self._work, args=(work, name, reason), name=f"reload-{name}", daemon=True).start()

    def _finish(self, done: list[tuple[str, bool, float]]) -> None:
        """What is loaded again is served from now on, as its processes have been seen: so their end can be told."""
        for name, serves, ended in done:
            history = self._history(name)
            history.busy, history.ended = False, ended
            if serves:
                self._crashes.clear(name)

    def _work(self, work: Callable[[str, str], bool], name: str, reason: str) -> None:
        serves = False
        try:
            serves = work(name, reason)
        except TritonTimeout:
            self._server.ask_restart(f"model '{name}' cannot be started again: {reason}")
        except TritonUnavailable:
            log.info("model '%s': tritonserver has ended meanwhile", name)
        except Exception:
            log.exception("model '%s' cannot be started again", name)
        finally:
            self._done.append((name, serves, time.monotonic()))

    def _reload(self, name: str, reason: str) -> bool:
        """Whether it serves again."""
        began = time.monotonic()
        try:
            self._models.reload(name)
        except (TritonTimeout, TritonUnavailable):
            raise
        except ServingError as err:
            return self._refuse(name, f"it cannot be started again ({reason}): {err}")
        log.info("model '%s' serves again after %.1f s", name, time.monotonic() - began)
        return True

    def _refuse(self, name: str, reason: str) -> bool:
        """False."""
        history = self._history(name)
        seconds = min(REFUSED_SECONDS * 2**history.refusals, REFUSED_MOST)
        history.refusals += 1
        self._crashes.set(Trouble(name, reason, time.monotonic() + seconds))
        log.error("model '%s' is not served for %g s: %s", name, seconds, reason)
        try:
            self._models.drop(name)
        except (TritonTimeout, TritonUnavailable):
            raise
        except ServingError as err:
            log.warning("model '%s' is not unloaded: %s", name, err)
        return False

    def _history(self, name: str) -> _History:
        return self._histories.setdefault(name, _History())


def _told(death: Death) -> str:
    return f"process '{death.stub.instance}' died: {death.how}"
