"""Multi-model mode: archives that the platform loads and unloads while others are served.

    POST /models -> locate, admit, stage -> Triton's SageMaker endpoint -> READY
    DELETE /models/NAME -> no more calls begin, those begun end -> Triton unloads -> the repository is forgotten

Triton's SageMaker endpoint registers, namespaces and loads. While it unloads it answers nothing else, so Triton first
unloads over gRPC; calls never go through the endpoint. Triton does not guard its list of repositories against changes
while it reads it (24.10: "failed to stat file" of some garbage), so the lock REPOSITORIES does.
"""

import logging
import os
import re
import secrets
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from serving.errors import (
    InferenceFailed,
    InvalidRequest,
    LoadFailed,
    ModelAlreadyLoaded,
    ModelNotLoaded,
    ModelNotReady,
    OutOfMemory,
    ServingError,
    TritonTimeout,
    TritonUnavailable,
)
from serving.host.files import digest
from serving.host.processes import Stub, Stubs, used_by
from serving.inference.registry import Registry
from serving.multimodel import memory
from serving.multimodel.memory import ModelMemory
from serving.multimodel.records import LOADING, READY, UNLOADING, LoadedModel, LoadedModels
from serving.repository.archives import Archive, locate
from serving.repository.model_config import with_plan_remedies
from serving.served_model import ServedModel
from serving.triton.errors import is_out_of_memory

log = logging.getLogger(__name__)
ADMISSION, REPOSITORIES = "/admission", "/repositories"  # locks; no model has such a name
HANDOVER_SECONDS = 0.15
PAUSE = 0.1
UNLOAD_SECONDS = 15.0  # an unload takes 1.7 s; nobody waits any more for what a process still does then
PAGE, LARGEST_PAGE = 100, 1000
LONGEST_NAME = 1024


class MultiModel:
    """Loads, unloads and finds archives; safe to share between threads, and every worker has one.

    `folder` is shared by all workers, `root` is the only place that archives are taken from, `timeout` bounds a
    load and an unload in seconds, `fit` changes what is staged of an archive before Triton sees it (LoadFailed), and
    `ask_restart` has tritonserver restarted, for a reason.
    """

    def __init__(
        self,
        registry: Registry,
        loaded: LoadedModels,
        root: Path,
        budget: ModelMemory,
        timeout: float,
        fit: Callable[[Archive, Path], None],
        ask_restart: Callable[[str], None],
    ) -> None:
        self.registry, self.gateway, self.loaded = registry, registry.gateway, loaded
        self.root, self.budget, self.timeout, self.fit = root, budget, timeout, fit
        self.ask_restart = ask_restart
        self._clients = _Clients(registry, loaded)

    def load(self, name: str, url: str, target: str) -> None:
        """Raises ModelAlreadyLoaded, OutOfMemory, LoadFailed, InvalidRequest, TritonUnavailable, TritonTimeout."""
        _check_name(name)
        archive = locate(url, self.root)
        with self.loaded.changing(name, self.timeout):
            self._check_absent(name)
            model = self._admit(name, url, target, archive)
            try:
                archive.stage(self._staged(model))
                self.fit(archive, self._staged(model))
                self._hand_over(model)
            except TritonTimeout:  # it may still be loaded: the next call for it undoes that
                raise
            except BaseException:
                self._unload_parts(model)
                self._forget(model)
                raise
            self.loaded.write(replace(model, state=READY))
        log.info("loaded %s (%s) from %s", target, name, archive.folder)

    def unload(self, name: str) -> None:
        """Returns when its memory is free; raises ModelNotLoaded, TritonTimeout, TritonUnavailable."""
        with self.loaded.changing(name, self.timeout):
            model = self.loaded.read(name)
            if model is None:
                raise ModelNotLoaded(name)
            self._remove(model)
        log.info("unloaded %s (%s)", model.target, name)

    def get(self, name: str) -> LoadedModel:
        """Raises ModelNotLoaded."""
        return self._ready(name, self.loaded.read(name))

    def page(self, after: str, limit: int) -> tuple[list[LoadedModel], str]:
        """Models that are ready, by name, beginning after that one, and where the next page begins ("" at the end)."""
        models = [model for model in self.loaded.all() if model.name > after and model.state == READY]
        page = models[:limit]
        ready = [model for model in page if self.gateway.is_model_ready(model.triton_name)]
        return ready, page[-1].name if len(models) > limit else ""

    @contextmanager
    def use(self, name: str | None, version: str | None = None) -> Iterator[ServedModel]:
        """The model for a call, by its name or Target-Model; it is not unloaded meanwhile. Raises ModelNotLoaded."""
        if name is None:
            where = "in X-Amzn-SageMaker-Target-Model, or POST /models/NAME/invoke"
            raise InvalidRequest(f"no model is named; name one {where}")
        model = self._ready(name, self.loaded.named(name))
        with self.loaded.using(model.name):
            model = self._ready(name, self.loaded.read(model.name))
            try:
                with self.registry.crashes.watch(lambda: [model.triton_name]):
                    served = self._clients.get(model)
                    self._check_version(served, version)
                    yield served
            except ModelNotReady as err:
                if self.loaded.read(model.name) != model:
                    raise ModelNotLoaded(name) from err
                raise
            except InferenceFailed as err:
                if is_out_of_memory(str(err)):
                    raise OutOfMemory(str(err)) from err
                raise

    def owner(self, stub: Stub, seen: float) -> str | None:
        """Triton's name of the model that a process is of: it is staged in a folder that the model's name gives. One
        that was not seen since the load began is of an earlier load, as an unload may have to kill it."""
        ready = [model for model in self.loaded.all() if model.state == READY and model.began <= seen]
        staged = {digest(model.name): model for model in ready}
        return next((staged[part].triton_name for part in stub.file.parts if part in staged), None)

    def reload(self, triton_name: str) -> None:
        """Has Triton load a loaded model anew, for the keeper; raises a ServingError."""
        with self._kept(triton_name) as model:
            if model:
                self._reload(model)

    def drop(self, triton_name: str) -> None:
        """Has Triton unload a loaded model, whose record stays."""
        with self._kept(triton_name) as model:
            if model:
                try:
                    self._reload(model)
                finally:
                    self.gateway.unload(triton_name)

    @contextmanager
    def _kept(self, triton_name: str) -> Iterator[LoadedModel | None]:
        """The model, which nobody loads or unloads meanwhile; None when it is not loaded."""
        found = next((model for model in self.loaded.all() if model.triton_name == triton_name), None)
        if found is None:
            yield None
            return
        with self.loaded.changing(found.name, self.timeout):
            yield found if self.loaded.read(found.name) == found else None

    def _reload(self, model: LoadedModel) -> None:
        """Triton reads its list of repositories meanwhile."""
        with self.loaded.using(REPOSITORIES, self.timeout):
            self.gateway.unload(model.triton_name)
            self.gateway.load(model.triton_name, self.timeout)

    def _check_version(self, served: ServedModel, version: str | None) -> None:
        """Raises InvalidRequest, as a 404 would say that the model is not loaded."""
        if version is not None and not self.gateway.is_model_ready(served.name, version):
            raise InvalidRequest(f"model '{served.name}' has no version '{version}'; leave it out for the latest")

    def _ready(self, name: str, model: LoadedModel | None) -> LoadedModel:
        if model is None or model.state != READY:
            raise ModelNotLoaded(name)
        return model

    def _check_absent(self, name: str) -> None:
        """Undoes what a worker that was killed left half done; raises ModelAlreadyLoaded."""
        model = self.loaded.read(name)
        if model is not None and model.state == READY:
            raise ModelAlreadyLoaded(f"the model '{name}' is loaded already, from {model.url}")
        if model is not None:
            self._remove(model)

    def _admit(self, name: str, url: str, target: str, archive: Archive) -> LoadedModel:
        """Records the load, so that others count its memory; raises OutOfMemory, ModelAlreadyLoaded."""
        needed = memory.estimate(archive.weight(), len(archive.parts))
        with self.loaded.changing(ADMISSION, self.timeout):
            used = used_by(self.loaded.pid()) + self._promised()
            if reason := self.budget.shortfall(used, needed):
                raise OutOfMemory(f"'{target}' is not loaded: {reason}")
            if (other := self.loaded.named(target)) and other.name != name:
                raise ModelAlreadyLoaded(f"the Target-Model '{target}' is loaded already, as '{other.name}'")
            model = LoadedModel(
                name=name,
                url=url,
                target=target,
                triton_name=triton_name(target),
                folder=str(archive.folder),
                parts=[part.name for part in archive.parts if part != archive.folder],
                state=LOADING,
                estimate=needed,
                load=secrets.token_hex(8),
                began=time.monotonic(),
                server=self.loaded.server(),
            )
            self.loaded.write(model)
        return model

    def _promised(self) -> int:
        loading = [model for model in self.loaded.all() if model.state == LOADING]
        return sum(model.estimate for model in loading if self.loaded.is_changing(model.name))

    def _hand_over(self, model: LoadedModel) -> None:
        """Triton's endpoint may give two connections that come at once to one thread, where the second waits until
        the first is loaded. So the lock is held for a moment after each call."""
        with self.loaded.unused(REPOSITORIES, self.timeout):
            staged = str(self._staged(model))
            call = self.gateway.load_repository(digest(model.name), staged, model.triton_name, self.timeout)
            call.has_reply(HANDOVER_SECONDS)
        status, message = call.result()
        if status != 200:
            raise self._failure(model, status, message)

    def _failure(self, model: LoadedModel, status: int, message: str) -> Exception:
        message = message.replace(str(self._staged(model)), str(Path(model.folder).parent))
        text = with_plan_remedies(f"'{model.target}' cannot be loaded: {message}", Path(model.folder))
        if status == 409:
            return ModelAlreadyLoaded(text)
        return OutOfMemory(text) if status == 507 or is_out_of_memory(message) else LoadFailed(text)

    def _remove(self, model: LoadedModel) -> None:
        """Removes the model from Triton and from the records, once the calls that have begun end."""
        self.loaded.write(replace(model, state=UNLOADING))
        with self.loaded.unused(model.name, self.timeout):
            if not self._is_true(lambda: not self._is_loading(model), self.timeout):
                raise TritonTimeout(f"'{model.target}' is still being loaded after {self.timeout:g} s; try again")
            self._end(model)
            with self.loaded.unused(REPOSITORIES, self.timeout):
                call = self.gateway.unload_repository(digest(model.name), model.triton_name, self.timeout)
                status, message = call.result()
            if status not in (200, 404):
                raise LoadFailed(f"'{model.target}' cannot be unloaded: {message}")
            self._forget(model)

    def _end(self, model: LoadedModel) -> None:
        """Has Triton unload it. An unload waits for a process that hangs, and for ever for one that has died: such a
        process is killed, new instances are loaded beside it and unloaded in its place (inference/keeper.py)."""
        self._unload(model)
        if self._is_true(lambda: self._is_gone(model), UNLOAD_SECONDS):
            return
        log.warning("'%s' is not unloaded within %g s: its processes are killed", model.target, UNLOAD_SECONDS)
        self._kill_processes(model)
        with suppress(ServingError):
            self._reload(model)
        self._unload(model)
        if not self._is_true(lambda: self._is_gone(model), UNLOAD_SECONDS):
            self.ask_restart(f"'{model.target}' cannot be unloaded")
            raise TritonUnavailable(
                f"'{model.target}' cannot be unloaded; tritonserver is restarted, which unloads all"
            )

    def _unload(self, model: LoadedModel) -> None:
        with self.loaded.unused(REPOSITORIES, self.timeout):
            self.gateway.unload(model.triton_name)

    def _kill_processes(self, model: LoadedModel) -> None:
        stubs = Stubs()
        stubs.look(self.loaded.pid())
        for stub, _ in stubs.all():
            if digest(model.name) in stub.file.parts:
                with suppress(ProcessLookupError):
                    os.kill(stub.pid, signal.SIGKILL)

    def _unload_parts(self, model: LoadedModel) -> None:
        """Triton keeps the parts that it loaded before their ensemble failed. They are unloaded, but for those whose
        name a part of another archive has too, as Triton may take one for the other."""
        others = [other for other in self.loaded.all() if other.name != model.name]
        taken = {name for other in others for name in (other.triton_name, *other.parts)}
        with self.loaded.unused(REPOSITORIES, self.timeout), suppress(ServingError):
            for part in set(model.parts) - taken:
                self.gateway.unload(part)

    def _forget(self, model: LoadedModel) -> None:
        self.loaded.remove(model)
        self.registry.crashes.clear(model.triton_name)
        shutil.rmtree(self._staged(model), ignore_errors=True)

    def _is_loading(self, model: LoadedModel) -> bool:
        return (model.triton_name, "LOADING") in self._states({model.triton_name})

    def _is_gone(self, model: LoadedModel) -> bool:
        """Its parts too, and parts of other archives that have the same names."""
        states = self._states({model.triton_name, *model.parts})
        return (model.triton_name, "READY") not in states and "UNLOADING" not in {state for _, state in states}

    def _states(self, names: set[str]) -> set[tuple[str, str]]:
        with self.loaded.using(REPOSITORIES, self.timeout):
            return {(entry.name, entry.state) for entry in self.gateway.index() if entry.name in names}

    def _is_true(self, condition: Callable[[], bool], seconds: float) -> bool:
        """Whether it becomes true in time. Triton may answer late while it loads or unloads."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            with suppress(TritonTimeout):
                if condition():
                    return True
            time.sleep(PAUSE)
        return False

    def _staged(self, model: LoadedModel) -> Path:
        return self.loaded.folder / "staged" / digest(model.name)


@dataclass
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    served: ServedModel | None = None


class _Clients:
    """This worker's clients of archives, each made once per load, at its first call."""

    def __init__(self, registry: Registry, loaded: LoadedModels) -> None:
        self._registry, self._loaded = registry, loaded
        self._entries: dict[str, _Entry] = {}  # by the load's id
        self._lock = threading.Lock()

    def get(self, model: LoadedModel) -> ServedModel:
        with self._lock:
            if model.load not in self._entries:
                self._forget_unloaded()
            entry = self._entries.setdefault(model.load, _Entry())
        with entry.lock:
            if entry.served is None:
                entry.served = self._registry.load(model.triton_name, Path(model.folder))
            return entry.served

    def _forget_unloaded(self) -> None:
        loads = {each.load for each in self._loaded.all()}
        for load in self._entries.keys() - loads:
            self._registry.forget(self._entries.pop(load).served)


def triton_name(target: str) -> str:
    """Triton's name of a model: the Target-Model. Triton's HTTP endpoint finds no name with a slash and its Python
    backend none with a space, so other characters than these are replaced, and a digest keeps names apart."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", target)[:100]
    return name if name == target else f"{name}-{digest(target)[:8]}"


def _check_name(name: str) -> None:
    if not name or len(name) > LONGEST_NAME or name.startswith("/") or not name.isprintable():
        raise InvalidRequest(f"'model_name' must be 1 to {LONGEST_NAME} printable characters, the first one no slash")
