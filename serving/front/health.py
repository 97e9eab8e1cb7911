"""Whether the container works: Triton is ready, every model is, and a canary of each has succeeded.

A model that is started again or refused, as its processes died, is no reason to replace a container that was ready once
and serves others: it would come back with the same model.

The canary is a real inference on each client's example. It runs in the background, once per start of
Triton; its success is written beside the sockets, so that every worker knows of it.
"""

import logging
import threading
from pathlib import Path

from serving.bodies.examples import try_example
from serving.budget import NEVER, Deadline
from serving.decoding import Decoder
from serving.errors import (
    ModelFailed,
    ModelNotReady,
    ModelRefused,
    ModelRestarting,
    ServingError,
    TooLate,
    TritonTimeout,
    TritonUnavailable,
)
from serving.front.admission import Admission
from serving.host.files import read_tritonserver
from serving.models.registry import Registry
from serving.models.table import Entry, Models
from serving.request import ServedModel

log = logging.getLogger(__name__)

ANSWER_SECONDS = 1.7  # nginx waits 2 s for /ping, as SageMaker does


class Health:
    """What /ping asks. The supervisor writes `status_file`."""

    def __init__(self, registry: Registry, decoder: Decoder, admission: Admission, status_file: Path) -> None:
        self.registry, self.decoder, self.status_file = registry, decoder, status_file
        self._admission = admission
        self._lock = threading.Lock()
        self._running = False
        self._passed: int | None = None
        self._failure: ServingError | None = None

    def check(self) -> None:
        """Returns when all is well; raises ModelNotReady, ModelFailed or TritonUnavailable with the stage. Never waits
        long."""
        generation = self._generation()
        try:
            self.check_live(Deadline.after(ANSWER_SECONDS))
        except (TritonTimeout, TooLate) as err:
            raise TritonUnavailable("tritonserver is running but does not answer: it hangs or is overloaded") from err
        self._check_models(self.registry.models())
        if self._has_passed(generation):
            return
        self._start_canary(generation)
        if failure := self._failure:
            raise failure.with_traceback(None)
        raise ModelNotReady("the canary inferences on the models' examples are running")

    def check_live(self, deadline: Deadline = NEVER) -> None:
        """Whether Triton lives: in multi-model mode no models is a state as good as any."""
        if not self.registry.gateway.is_live(deadline):
            raise TritonUnavailable("tritonserver answers but is not live")

    def describe_triton(self) -> str:
        """Return what the supervisor says of tritonserver, in words; "" if it says nothing."""
        process = read_tritonserver(self.status_file)
        if process.state == "unknown":
            return ""
        last = f", after it {process.last_exit}" if process.last_exit else ""
        return f"tritonserver is {process.state} (start {process.starts}{last})"

    def check_ready(self) -> None:
        """Whether Triton says so, and no more."""
        if not self.registry.gateway.is_ready():
            raise TritonUnavailable("tritonserver answers but is not ready: its models are being loaded")

    def _check_models(self, models: Models) -> None:
        """Raises ModelNotReady, ModelFailed, ModelRestarting, ModelRefused."""
        entries = list(models.current.values())
        if not entries:
            refused = "; ".join(reason for each in models.rejected for reason in each.reasons)
            raise ModelNotReady(f"no model is served{f': {refused}' if refused else ''}")
        errors = {entry.name: error for entry in entries if (error := models.error(entry))}
        troubles = {name: err for name, err in errors.items() if isinstance(err, (ModelRestarting, ModelRefused))}
        if troubles and (len(troubles) == len(entries) or not self._was_ready()):
            raise next(iter(troubles.values()))
        if left := errors.keys() - troubles.keys():
            # What has failed comes first; and a model before the ensembles that call it, which have no own reason.
            ranked = sorted(left, key=lambda name: _rank(models, models.entries[name], errors[name]))
            raise errors[ranked[0]]

    def _generation(self) -> int:
        return read_tritonserver(self.status_file).starts

    def _marker(self, generation: int) -> Path:
        return self.status_file.with_name(f"canary-{generation}")

    def _was_ready(self) -> bool:
        """Whether the canary has passed since the container began."""
        return self._passed is not None or any(self.status_file.parent.glob("canary-*"))

    def _has_passed(self, generation: int) -> bool:
        return self._passed == generation or self._marker(generation).exists()

    def _start_canary(self, generation: int) -> None:
        with self._lock:
            if self._running:
                return
            self._running = True
        threading.Thread(target=self._canary, args=(generation,), name="canary", daemon=True).start()

    def _canary(self, generation: int) -> None:
        try:
            models = self.registry.models()
            for name, entry in models.current.items():
                if not (self._was_ready() and models.error(entry)):
                    with self._admission.enter(0) as slot, self.registry.use(slot, name) as served:
                        self._try_example(served)
            self._passed = generation
            self._marker(generation).touch()
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
            try_example(self.registry.gateway, self.decoder, served)
        except (TritonUnavailable, ModelFailed):
            raise
        except ServingError as err:
            raise ModelNotReady(f"model '{served.model.name}': {err}") from err


def _rank(models: Models, entry: Entry, error: ServingError) -> tuple[bool, int, str]:
    return not isinstance(error, ModelFailed), len([*models.closure(entry)]), entry.name
