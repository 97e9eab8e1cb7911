"""Simulates an endpoint: starts a container, checks its health, sends calls to it, and starts a new
one when it dies."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import urllib3

from serving.headers import CLOSED_SESSION_ID, NEW_SESSION, SESSION_ID
from simulate.container import REFUSED, CannotStart, Container, Launch, parts_of, translated_errors
from simulate.errors import ACCOUNT, ModelError, ServiceUnavailable, ValidationError
from simulate.models import NO_ROOM, NOT_FOUND, Models
from simulate.rules import Journal

TICK = 0.2  # seconds between checks of the container
PAUSE = 1.0  # seconds before a container is restarted
VARIANT = "AllTraffic"
# The maximum number of times that a call is sent. It is sent again if the container has lost the
# model, or has no memory for it.
ATTEMPTS = 3


@dataclass(frozen=True)
class Call:
    """A call to the endpoint. `headers` are those that the API passes on to the container. The
    container must reply before `deadline` (time.monotonic()); otherwise it breaks `rule`. `target`
    and `session` are "" if the call has none."""

    endpoint: str
    body: bytes | IO[bytes]
    headers: Mapping[str, str]
    deadline: float
    rule: str = "time"
    target: str = ""
    session: str = ""


class Endpoint:
    """A simulated endpoint. Thread-safe.

    `launch.folder` contains the files of all of its containers, which run one after another. For a
    multi-model endpoint, the folder `store` stands in for S3. `stopping` is set if the endpoint is
    asked to stop, or if it cannot continue, in which case `failure` says why. `settled` is set as
    soon as a container is in service, or the endpoint stops.
    """

    def __init__(self, launch: Launch, store: Path | None, journal: Journal) -> None:
        self.launch = launch
        self.store = store
        self.journal = journal
        self.settled = threading.Event()
        self.in_service = False
        self.failure = ""
        self._started = 0  # number of containers started so far
        self._sessions: set[str] = set()
        self.stopping = threading.Event()
        self._container: Container | None = None
        self._models: Models | None = None
        self._thread = threading.Thread(target=self._run, name="container")

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        self.stopping.set()
        self.settled.set()

    def stop(self) -> None:
        """Stop the container and wait until it has ended."""
        self.ask_to_stop()
        self._thread.join()

    def check_created(self, name: str) -> None:
        """Raise ValidationError until the endpoint has been in service, as the platform does, and
        after it has failed."""
        if self.failure or not self.settled.is_set():
            raise ValidationError(f"Endpoint {name} of account {ACCOUNT} not found.")

    def invoke(self, call: Call, most: float) -> tuple[Mapping[str, str], bytes]:
        """Return the headers and the body of the reply, which may have at most `most` bytes. Raise
        PlatformError if the call fails."""
        with self.exchange(call) as reply:
            return reply.headers, self._read(reply, call, most)

    @contextmanager
    def exchange(self, call: Call) -> Iterator[urllib3.BaseHTTPResponse]:
        """Send a call. Yield the container's reply, which must be read inside the `with` block.
        Raise PlatformError if the call fails."""
        if call.session not in ("", NEW_SESSION, *self._sessions):
            raise ValidationError(f"Session {call.session} does not exist or has expired")
        container = self._container
        if container is None or not self.in_service:
            raise ServiceUnavailable("The container is not in service")
        with ExitStack() as stack:
            reply = self._send(container, call, stack)
            if call.session == NEW_SESSION and SESSION_ID in reply.headers:
                identifier, _, _ = reply.headers[SESSION_ID].partition(";")
                self._sessions.add(identifier.strip())
            closed = reply.headers.get(CLOSED_SESSION_ID, "")
            self._sessions.discard(closed.strip())
            if not 200 <= reply.status < 300:
                raise self._model_error(reply, call)
            yield reply

    def _send(self, container: Container, call: Call, stack: ExitStack) -> urllib3.BaseHTTPResponse:
        """Send a call and return the reply, which `stack` closes. On a multi-model endpoint, first
        load the model if it is not loaded. If the container then replies that it has lost the
        model, load the model again; if it has no memory for the model, evict another one. Send the
        call at most ATTEMPTS times. Raise PlatformError if the load or the call fails."""
        if self._models is None:
            return self._post(container, "/invocations", call, stack)
        for _ in range(ATTEMPTS):
            with ExitStack() as attempt:
                model = attempt.enter_context(self._models.using(call.target, call.deadline))
                reply = self._post(container, f"/models/{model.name}/invoke", call, attempt)
                if reply.status == NOT_FOUND:
                    self._models.forget(model)
                    self.journal.complain(
                        "lost-model", f"the container does not know {call.target} any more"
                    )
                elif reply.status == NO_ROOM and self._models.evict():
                    self.journal.count("evictions for a 507")
                else:
                    # the model stays in use until `stack` closes the reply
                    stack.enter_context(attempt.pop_all())
                    return reply
        raise ModelError(call.endpoint, NO_ROOM, f"{call.target} was refused {ATTEMPTS} times")

    def _post(
        self, container: Container, path: str, call: Call, stack: ExitStack
    ) -> urllib3.BaseHTTPResponse:
        """Send a call and return the reply, which `stack` closes. Raise PlatformError if the
        container does not accept the call or does not reply."""
        with translated_errors(self.journal, call.rule, call.endpoint):
            try:
                reply = container.send("POST", path, call.body, call.headers, call.deadline)
            except REFUSED as err:
                container.refused += 1
                raise ServiceUnavailable("The container does not accept the call") from err
        stack.callback(reply.close)
        return reply

    def _read(self, reply: urllib3.BaseHTTPResponse, call: Call, most: float) -> bytes:
        """Return the body of the reply. Raise ModelError if it has more than `most` bytes or is not
        complete in time, and InternalFailure if the connection breaks."""
        body = bytearray()
        with translated_errors(self.journal, call.rule, call.endpoint):
            for part in parts_of(reply, call.deadline):
                body += part
                if len(body) > most:
                    self.journal.complain("reply-body", "the container sent a larger body")
                    raise ModelError(call.endpoint, reply.status, "")
        return bytes(body)

    def _model_error(self, reply: urllib3.BaseHTTPResponse, call: Call) -> ModelError:
        """Read a reply whose status is not 2xx, and return it as an error. Count it, and complain
        about a status of 5xx."""
        body = self._read(reply, call, self.journal.limit("reply-body"))
        self.journal.count(f"answers of {reply.status}")
        if reply.status >= 500:
            text = body[:200].decode(errors="replace").strip()
            self.journal.complain("status", f"the container answered {reply.status}: {text}")
        return ModelError(call.endpoint, reply.status, body)

    def _run(self) -> None:
        """Run one container after the other until the endpoint stops."""
        try:
            while not self.stopping.is_set():
                self._run_container()
                self.stopping.wait(PAUSE)
        except CannotStart as err:
            self.failure = str(err)
        finally:
            self.ask_to_stop()

    def _run_container(self) -> None:
        """Run one container from start to end. Raise CannotStart if it cannot be started."""
        begun = time.monotonic()
        container = self._start_container()
        self._container = container
        try:
            if self._await_healthy(container, begun + self.journal.limit("start-up")):
                self.journal.say(f"in service after {time.monotonic() - begun:.1f} s")
                container.check_ports()
                self.in_service = True
                self.settled.set()
                self._watch(container)
        finally:
            self.in_service = False
            self._sessions.clear()
            if self._models is not None:
                self._models.close()
            container.end()
            self._container = None

    def _start_container(self) -> Container:
        """Start the next container, in a folder of its own. On a multi-model endpoint, also set
        `_models`."""
        self._started += 1
        launch = replace(self.launch, folder=self.launch.folder / str(self._started))
        if self.store is None:
            return Container(launch, self.journal)
        models = launch.folder / "models"
        environment = {"SAGEMAKER_MULTI_MODEL": "true", **launch.environment}
        container = Container(replace(launch, models=models, environment=environment), self.journal)
        self._models = Models(container, self.store, models, launch.memory)
        return container

    def _await_healthy(self, container: Container, deadline: float) -> bool:
        """Return True as soon as /ping returns 200. Return False if the endpoint stops. Complain,
        and return False, if the deadline passes or the container ends. (The platform would restart
        an ended container until the deadline.)"""
        while problem := container.ping():
            if self.stopping.wait(TICK):
                return False
            code = container.exit_code()
            if code is not None:
                reason = f"the container ended with exit code {code} before /ping answered 200"
                self._complain_of_start("exit", reason)
                return False
            if time.monotonic() > deadline:
                reason = f"the ping health check did not pass; the last one: {problem}"
                self._complain_of_start("start-up", reason)
                return False
        return True

    def _complain_of_start(self, rule: str, reason: str) -> None:
        """Complain that the container did not become healthy. If it was the endpoint's first
        container, stop the endpoint."""
        self.journal.complain(rule, reason)
        if self._started == 1:
            self.failure = reason
            self.stopping.set()

    def _watch(self, container: Container) -> None:
        """Watch the container until it dies, fails too many pings, or the endpoint stops."""
        interval = self.journal.limit("ping-interval")
        failed_pings = 0  # in a row
        pinged = time.monotonic()
        while not self.stopping.wait(TICK):
            if self._has_ended(container):
                return
            container.check_refusals()
            if time.monotonic() - pinged < interval:
                continue
            pinged = time.monotonic()
            problem = container.ping()
            if problem:
                failed_pings += 1
                self._complain_of_ping(container, problem)
            else:
                failed_pings = 0
            if failed_pings >= self.journal.limit("ping-status"):
                self.journal.say("the container is replaced")
                return

    def _has_ended(self, container: Container) -> bool:
        """Return whether the container has ended. Kill it first if it uses too much memory."""
        memory = self.launch.memory
        used = container.memory()
        if used > memory:
            self.journal.complain(
                "memory", f"the container uses {used / 2**20:.0f} of {memory / 2**20:.0f} MB"
            )
            container.kill()
        if container.killed:
            self.journal.say("the container was killed; it is started again")
            return True
        code = container.exit_code()
        if code is not None:
            self.journal.complain("exit", f"the container ended with exit code {code}")
            return True
        return False

    def _complain_of_ping(self, container: Container, problem: str) -> None:
        """Complain about a failed ping, unless the container has ended, which `_has_ended`
        reports."""
        self.stopping.wait(TICK)  # gives a dying container the time to end
        if not container.killed and container.exit_code() is None:
            self.journal.complain("ping-status", f"/ping: {problem}")
