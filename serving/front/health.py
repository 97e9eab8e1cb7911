"""Whether the container works: Triton is ready, every model is, and a canary of each has succeeded.

The canary is a real inference on each client's example. It runs in the background, once per start of
Triton; its success is written beside the sockets, so that every worker knows of it.
"""

import logging
import threading
from collections import deque
from pathlib import Path

from serving.bodies.instances import Instances
from serving.decoding import Item
from serving.errors import BackendDied, ModelNotReady, NotAcceptable, ServingError, TritonTimeout, TritonUnavailable
from serving.host.status import read_status
from serving.inference.registry import Registry
from serving.inference.service import Inference
from serving.request import Request
from serving.served_model import ServedModel

log = logging.getLogger(__name__)


class Health:
    """What /ping asks. The supervisor writes `status_file` and reads `restart_request`; None where none supervises."""

    def __init__(
        self,
        registry: Registry,
        inference: Inference,
        status_file: Path | None = None,
        restart_request: Path | None = None,
    ) -> None:
        self.registry, self.inference = registry, inference
        self.status_file, self.restart_request = status_file, restart_request
        self._lock = threading.Lock()
        self._running = False
        self._passed: int | None = None
        self._failure = ""

    def check(self) -> None:
        """Returns when all is well; raises ModelNotReady or TritonUnavailable with the stage. Never waits long."""
        generation = self._generation()
        try:
            self._check_models()
            self.check_ready()
        except TritonTimeout as err:
            raise TritonUnavailable("tritonserver is running but does not answer: it hangs or is overloaded") from err
        if self._has_passed(generation):
            return
        self._start_canary(generation)
        raise ModelNotReady(self._failure or "the canary inferences on the models' examples are running")

    def check_live(self) -> None:
        """Whether Triton lives: in multi-model mode no models is a state as good as any."""
        if not self.registry.gateway.is_live():
            raise TritonUnavailable("tritonserver answers but is not live")

    def report(self, error: Exception) -> None:
        """What a request ended with. After a BackendDied the supervisor is asked to restart tritonserver, which goes
        on without that backend's process. Several workers may ask at once, and some too late: each names the start
        that it means."""
        if isinstance(error, BackendDied) and self.restart_request:
            try:
                self.restart_request.write_text(f"{self._generation()} {error.details}", encoding="utf-8")
            except OSError:
                log.exception("the supervisor cannot be asked to restart tritonserver: %s", error.details)

    def describe_triton(self) -> str:
        """What the supervisor says of tritonserver, in words, or what is done before it; "" where it says nothing."""
        if stage := self._stage():
            return stage
        process = read_status(self.status_file).get("tritonserver")
        if not process:
            return ""
        last = f", after it {process.last_exit}" if process.last_exit else ""
        return f"tritonserver is {process.state} (start {process.starts}{last})"

    def check_ready(self) -> None:
        """Whether Triton says so, and no more."""
        ready = self.registry.gateway.is_ready()
        if not ready:
            raise TritonUnavailable("tritonserver answers but is not ready: its models are being loaded")

    def _check_models(self) -> None:
        for name, versions in self.registry.index().items():
            states = {entry.state for entry in versions.values()}
            if "READY" not in states:
                reasons = "; ".join(sorted({entry.reason for entry in versions.values() if entry.reason}))
                raise ModelNotReady(f"model '{name}' is {'/'.join(sorted(states))}: {reasons or 'not loaded'}")

    def _stage(self) -> str:
        """What serving/preparation/rebuild.py says that it does."""
        try:
            return self.status_file.with_name("stage").read_text(encoding="utf-8") if self.status_file else ""
        except OSError:
            return ""

    def _generation(self) -> int:
        process = read_status(self.status_file).get("tritonserver")
        return process.starts if process else 0

    def _marker(self, generation: int) -> Path | None:
        return self.status_file.with_name(f"canary-{generation}") if self.status_file else None

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
                self._try_example(self.registry.get(name))
            self._passed = generation
            if marker := self._marker(generation):
                marker.touch()
        except BackendDied as err:
            self.report(err)
        except TritonUnavailable:
            log.info("canary: tritonserver is not answering yet")
        except Exception as err:
            self._failure = f"canary inference: {err}"
            log.warning(self._failure, exc_info=not isinstance(err, ServingError))
        else:
            self._failure = ""
        finally:
            self._running = False

    def _try_example(self, served: ServedModel) -> None:
        if not served.client and not served.client_error:
            return
        item = Item("example", raw=served.example())
        try:
            self._infer(served, item)
        except TritonUnavailable:
            raise
        except ServingError as err:
            raise ModelNotReady(f"model '{served.model.name}': {err}") from err

    def _infer(self, served: ServedModel, item: Item) -> None:
        request = Request("canary", Instances([item]))
        try:
            self.inference.once(served, request)
        except NotAcceptable:  # the model only streams
            deque(self.inference.stream(served, request).lines, maxlen=0)
