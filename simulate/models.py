"""Loads and unloads models in the container of a multi-model endpoint.

When a model that is not loaded is called, its archive is unpacked, and POST /models makes the
container load it. If memory is short, the least recently used models are unloaded before the load,
with DELETE /models/NAME. If the container answers 507, another model is unloaded, and the load is
tried again.

A load continues after its caller has given up, so that the next caller finds the model loaded.
"""

import json
import shutil
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from concurrent.futures import TimeoutError as NotYet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from serving.headers import TARGET_MODEL
from serving.host.files import digest
from serving.repository.unpacking import BadArchive, size_of, unpack
from simulate.container import Container, translated_errors
from simulate.errors import (
    InternalFailure,
    ModelError,
    ModelNotReady,
    PlatformError,
    ValidationError,
)

PAUSE = 0.1
LOADS_AT_ONCE = 8
OK = 200
CONFLICT = 409
NOT_FOUND = 404
NO_ROOM = 507
ENDED = "The container has ended"
# the EndpointName in errors of a load, because calls with different EndpointNames may wait for it
ENDPOINT = "NAME"


def find_object(folder: Path, key: str) -> Path | None:
    """Return the file that stands for the S3 object `key`, which is the file's path in `folder`.
    Return None if there is no such file."""
    path = folder / key.lstrip("/")
    is_inside = path.resolve().is_relative_to(folder.resolve())
    return path if is_inside and path.is_file() else None


@dataclass
class Loaded:
    """A loaded model. `target` is the TargetModel with which callers name it, `name` its name in
    the container, and `calls` the number of calls in flight."""

    target: str
    name: str
    calls: int = 0


class Models:
    """The models of a container, each of which is loaded by its first call. Thread-safe.

    The folder `store` stands in for S3, `folder` is the container's /opt/ml/models, and `memory` is
    the instance's memory in bytes.
    """

    def __init__(self, container: Container, store: Path, folder: Path, memory: int) -> None:
        self._container = container
        self._store = store
        self._folder = folder
        self._journal = container.journal
        self._most_memory = memory * self._journal.limit("memory-share")
        self._lock = threading.Lock()
        # ordered from the least to the most recently used
        self._loaded: OrderedDict[str, Loaded] = OrderedDict()
        self._loading: dict[str, Future[None]] = {}
        self._threads = ThreadPoolExecutor(LOADS_AT_ONCE, thread_name_prefix="load")
        self._closed = False

    @contextmanager
    def using(self, target: str, deadline: float) -> Iterator[Loaded]:
        """Yield the model, and load it first if necessary. It is not unloaded before the `with`
        block ends. Raise PlatformError if the load fails or does not end before `deadline`."""
        while (model := self._begin_call(target)) is None:
            change = self._join_or_start_load(target)
            try:
                change.result(timeout=max(0.0, deadline - time.monotonic()))
            except NotYet:
                self._journal.count("answers of ModelNotReadyException")
                raise ModelNotReady(
                    f"The model {target} is still being loaded; try again"
                ) from None
            except CancelledError:
                raise InternalFailure(ENDED) from None
        try:
            yield model
        finally:
            with self._lock:
                model.calls -= 1

    def forget(self, model: Loaded) -> None:
        """Remove a model that the container no longer knows."""
        with self._lock:
            if self._loaded.get(model.target) is model:
                del self._loaded[model.target]

    def evict(self) -> bool:
        """Unload the least recently used of the models that have no calls in flight. Return False
        if there is none."""
        with self._lock:
            victim = next((model for model in self._loaded.values() if not model.calls), None)
            if victim is None:
                return False
            del self._loaded[victim.target]
            done: Future[None] = Future()
            self._loading[victim.target] = done  # calls to the model wait until this is done
        try:
            self._unload(victim)
        finally:
            with self._lock:
                del self._loading[victim.target]
            done.set_result(None)
        return True

    def close(self) -> None:
        """Make all further loads fail with InternalFailure, because the container is stopping."""
        with self._lock:
            self._closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _begin_call(self, target: str) -> Loaded | None:
        """Return the model and count a call of it, or return None if it is not loaded."""
        with self._lock:
            model = self._loaded.get(target)
            if model is not None:
                model.calls += 1
                self._loaded.move_to_end(target)
            return model

    def _join_or_start_load(self, target: str) -> Future[None]:
        """Return the model's load or unload that is in progress. If there is none, start a load.
        Raise PlatformError if the archive does not exist, or after `close`."""
        with self._lock:
            if target not in self._loading:
                if self._closed:
                    raise InternalFailure(ENDED)
                if find_object(self._store, target) is None:
                    raise ValidationError(
                        f"Failed to download model data(bucket: {self._store}, key: "
                        f"{target}). Please ensure that there is an object located at the "
                        "URL and that the role has permissions to download the model."
                    )
                self._loading[target] = self._threads.submit(self._load, target)
            return self._loading[target]

    def _load(self, target: str) -> None:
        """Unpack the archive, make the container load it, and add it to the loaded models. Raise
        PlatformError if the archive is invalid, or if the container does not load it or has
        ended."""
        begun = time.monotonic()
        name = digest(f"{self._store}/{target}")
        folder = self._folder / name
        try:
            # the folder exists if the container has lost the model
            shutil.rmtree(folder, ignore_errors=True)
            unpack(self._store / target.lstrip("/"), folder / "model")
            while self._container.memory() + size_of(folder) > self._most_memory and self.evict():
                # like the platform, evict models although the container has not answered 507
                self._journal.count("evictions for the memory share")
            self._load_in_container(target, name, begun + self._journal.limit("load-time"))
            with self._lock:
                self._loaded[target] = Loaded(target, name)
        except BaseException as err:
            shutil.rmtree(folder, ignore_errors=True)
            if self._closed:
                raise InternalFailure(ENDED) from err
            if isinstance(err, BadArchive):
                self._journal.complain("archive", str(err))
                raise ValidationError(f"Failed to extract model data archive: {err}") from err
            raise
        finally:
            with self._lock:
                del self._loading[target]
        self._journal.count("loads")
        self._journal.say(f"loaded {target} in {time.monotonic() - begun:.1f} s")

    def _load_in_container(self, target: str, name: str, deadline: float) -> None:
        """Ask the container to load the model. If it answers 507, evict another model and ask
        again. Raise PlatformError if the container does not load the model."""
        url = f"{self._container.process.models}/{name}/model"
        document = json.dumps({"model_name": name, "url": url}).encode()
        while True:
            status, body = self._request("POST", "/models", "load-time", deadline, target, document)
            if status != NO_ROOM:
                break
            self._journal.count("answers of 507")
            if time.monotonic() > deadline or not self._evict_or_wait():
                raise ModelError(ENDPOINT, NO_ROOM, body)
        if status not in (OK, CONFLICT):
            if not 400 <= status < 500:
                self._journal.complain(
                    "load-status", f"the container answered {status} to the load of {target}"
                )
            raise ModelError(ENDPOINT, status, body)

    def _evict_or_wait(self) -> bool:
        """Evict a model and return True. If none can be evicted, wait briefly, and return whether
        any other model is loaded or being loaded."""
        if self.evict():
            self._journal.count("evictions for a 507")
            return True
        with self._lock:
            # the model that is being loaded for the caller counts as one
            has_others = len(self._loaded) + len(self._loading) > 1
        time.sleep(PAUSE)
        return has_others

    def _unload(self, model: Loaded) -> None:
        """Unload the model, and remove its files. It counts as unloaded even if the container
        fails to unload it."""
        deadline = time.monotonic() + self._journal.limit("unload-time")
        try:
            status, _ = self._request(
                "DELETE", f"/models/{model.name}", "unload-time", deadline, model.target
            )
        except PlatformError as err:
            self._journal.say(f"cannot unload {model.target}: {err}")
        else:
            if status not in (OK, NOT_FOUND):
                self._journal.complain(
                    "unload-status", f"the container answered {status} for {model.target}"
                )
        self._journal.count("unloads")
        shutil.rmtree(self._folder / model.name, ignore_errors=True)

    def _request(
        self,
        method: str,
        path: str,
        rule: str,
        deadline: float,
        target: str,
        body: bytes | None = None,
    ) -> tuple[int, bytes]:
        """Send a request to the container. Return the status and the body of the reply. Raise
        PlatformError if the reply does not begin before `deadline`, which breaks `rule`, or if the
        connection breaks."""
        headers = {"Content-Type": "application/json", TARGET_MODEL: target} if body else {}
        with translated_errors(self._journal, rule, ENDPOINT):
            reply = self._container.send(method, path, body, headers, deadline)
            return reply.status, reply.read()
