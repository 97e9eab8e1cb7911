"""Whether the container works: Triton is ready, every model is, and a canary of each has succeeded.

A model that is started again or refused, as its processes died, is no reason to replace a container that was ready once
and serves others: it would come back with the same model.

The canary is a real inference on each client's example. It runs in the background, once per start of
Triton; its success is written beside the sockets, so that every worker knows of it.
"""

import logging
import threading
from collections.abc import Mapping
from pathlib import Path

from serving.budget import NEVER, Deadline
from serving.errors import (
    BackendDied,
    ModelFailed,
    ModelNotReady,
    ServingError,
    TooLate,
    TritonTimeout,
    TritonUnavailable,
)
from serving.host.status import read_tritonserver
from serving.inference.example import try_example
from serving.inference.registry import Registry
from serving.inference.service import Inference
from serving.served_model import ServedModel
from serving.triton.gateway import IndexEntry

log = logging.getLogger(__name__)

ANSWER_SECONDS = 1.7  # nginx waits 2 s for /ping, as SageMaker does


class Health:
    """What /ping asks. The supervisor writes `status_file`; None where none supervises."""

    def __init__(self, registry: Registry, inference: Inference, status_file: Path | None = None) -> None:
        self.registry, self.inference, self.status_file = registry, inference, status_file
        self._lock = threading.Lock()
        self._running = False
        self._passed: int | None = None
        self._failure: ServingError | None = None

    def check(self) -> None:
        """Returns when all is well; raises ModelNotReady, ModelFailed or TritonUnavailable with the stage. Never waits
        long."""
        generation, deadline = self._generation(), Deadline.after(ANSWER_SECONDS)
        try:
            if self._check_models():
                self.check_ready(deadline)
        except (TritonTimeout, TooLate) as err:
            raise TritonUnavailable("tritonserver is running but does not answer: it hangs or is overloaded") from err
        if self._has_passed(generation):
            return
        self._start_canary(generation)
        if failure := self._failure:
            raise failure.with_traceback(None)
        raise ModelNotReady("the canary inferences on the models' examples are running")

    def check_live(self) -> None:
        """Whether Triton lives: in multi-model mode no models is a state as good as any."""
        if not self.registry.gateway.is_live():
            raise TritonUnavailable("tritonserver answers but is not live")

    def describe_triton(self) -> str:
        """Return what the supervisor says of tritonserver, in words; "" if it says nothing."""
        process = read_tritonserver(self.status_file)
        if process.state == "unknown":
            return ""
        last = f", after it {process.last_exit}" if process.last_exit else ""
        return f"tritonserver is {process.state} (start {process.starts}{last})"

    def check_ready(self, deadline: Deadline = NEVER) -> None:
        """Whether Triton says so, and no more."""
        ready = self.registry.gateway.is_ready(deadline)
        if not ready:
            raise TritonUnavailable("tritonserver answers but is not ready: its models are being loaded")

    def _check_models(self) -> bool:
        """Whether all are served. Raises ModelNotReady, ModelFailed, ModelRestarting, ModelRefused."""
        index = self.registry.index()
        if not index:
            raise ModelNotReady("no model is served: the model repository has none")
        troubles = {name: error for name in index if (error := self.registry.trouble(name))}
        if troubles and (len(troubles) == len(index) or not self._was_ready()):
            raise next(iter(troubles.values()))
        unready = {name for name, versions in index.items() if not any(e.state == "READY" for e in versions.values())}

        def rank(name: str) -> tuple[bool, int, str]:
            # An ensemble has no reason of its own when a model that it calls has failed, so it comes after that model.
            return not _has_failed(index[name]), len(unready.intersection(self.registry.names(name))), name

        if left := unready - troubles.keys():
            name = min(left, key=rank)
            raise self.registry.why_not_ready(name, index[name].values())
        return not troubles

    def _generation(self) -> int:
        return read_tritonserver(self.status_file).starts

    def _marker(self, generation: int) -> Path | None:
        return self.status_file.with_name(f"canary-{generation}") if self.status_file else None

    def _was_ready(self) -> bool:
        """Whether the canary has passed since the container began."""
        folder = self.status_file.parent if self.status_file else None
        return self._passed is not None or (folder is not None and any(folder.glob("canary-*")))

    def _has_passed(self, generation: int) -> bool:
        marker = self._marker(generation)
        return self._passed == generation or (marker is not None and marker.exists())

    def _start_canary(self, generation: int) -> None:
        with self._lock:
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._canary, args=(generation,), name="canary", daemon=True).start()

    def _canary(self, generation: int) -> None:
        try:
            for name in self.registry.index():
                if not (self._was_ready() and self.registry.trouble(name)):
                    with self.registry.use(name) as served:
                        self._try_example(served)
            self._passed = generation
            if marker := self._marker(generation):
                marker.touch()
        except TritonUnavailable:
            log.info("canary: tritonserver is not answering yet")
        except ModelFailed as err:
            self._failure = err
            log.error(str(err))
        except Exception as err:
            self._failure = ModelNotReady(f"canary inference: {err}")
            log.warning(self._failure, exc_info=not isinstance(err, ServingError))
        else:
            self._failure = None
        finally:
            self._running = False

    def _try_example(self, served: ServedModel) -> None:
        try:
            try_example(self.inference, served)
        except (TritonUnavailable, BackendDied, ModelFailed):
            raise
        except ServingError as err:
            raise ModelNotReady(f"model '{served.model.name}': {err}") from err


def _has_failed(versions: Mapping[str, IndexEntry]) -> bool:
    return any(entry.has_failed for entry in versions.values())
