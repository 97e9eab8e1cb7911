"""Runs an endpoint: starts a container, checks its health, restarts it when it dies, and sends
calls to it."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO

import urllib3

from serving.headers import CLOSED_SESSION_ID, NEW_SESSION, SESSION_ID
from simulate.container import REFUSED, CannotStart, Container, Launch, parts_of
from simulate.errors import (
    ACCOUNT,
    TOO_LATE,
    InternalFailure,
    ModelError,
    ServiceUnavailable,
    ValidationError,
)
from simulate.models import NO_ROOM, NOT_FOUND, Models
from simulate.rules import Journal

TICK = 0.2  # seconds between checks of the container
PAUSE = 1.0  # seconds before a container is restarted
VARIANT = "AllTraffic"
# how many times a call is sent at most: the container may have lost the model, or lack memory for
# it
ATTEMPTS = 3


@dataclass(frozen=True)
class Call:
    """A call to the endpoint. `headers` are the headers that the API passes on. The caller gets a
    reply before `deadline` (time.monotonic()), which the rule `rule` determines. `target` and
    `session` are "" if the call has none."""

    endpoint: str
    body: bytes | IO[bytes]
    headers: Mapping[str, str]
    deadline: float
    rule: str = "time"
    target: str = ""
    session: str = ""


class Endpoint:
    """A simulated endpoint. Thread-safe.

    `launch.folder` holds the files of all its containers, which run one after another. For a
    multi-model endpoint, the folder `store` stands in for S3. `settled` is set once a container is
    in service, or once `failure` says why none will be.
    """

    def __init__(self, launch: Launch, store: Path | None, journal: Journal) -> None:
        self.launch = launch
        self.store = store
        self.journal = journal
        self._rules = journal.rules
        self.settled = threading.Event()
        self.in_service = False
        self.failure = ""
        self._lives = 0
        self._sessions: set[str] = set()
        self._stopping = threading.Event()
        self._container: Container | None = None
        self._models: Models | None = None
        self._thread = threading.Thread(target=self._run, name="container")

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the container and wait until it has ended."""
        self._stopping.set()
        self._thread.join()

    def check_created(self, name: str) -> None:
        """Raise ValidationError until the endpoint is in service, as the platform does."""
        if self.failure or not self.settled.is_set():
            raise ValidationError(f"Endpoint {name} of account {ACCOUNT} not found.")

    def invoke(self, call: Call, most: float) -> tuple[Mapping[str, str], bytes]:
        """Return the headers and the body of the reply, which may have at most `most` bytes. Raise
        PlatformError if the call fails."""
        with self.exchange(call) as reply:
            return reply.headers, self._read(reply, call, most)

    @contextmanager
    def exchange(self, call: Call) -> Iterator[urllib3.BaseHTTPResponse]:
        """Yield the container's successful reply, to be read inside the `with` block. Raise
        PlatformError if the call fails."""
        if call.session not in ("", NEW_SESSION, *self._sessions):
            raise ValidationError(f"Session {call.session} does not exist or has expired")
        container = self._container
        if container is None or not self.in_service:
            raise ServiceUnavailable("The container is not in service")
        with ExitStack() as stack:
            reply = self._send(container, call, stack)
            if call.session == NEW_SESSION and SESSION_ID in reply.headers:
                self._sessions.add(reply.headers[SESSION_ID].partition(";")[0].strip())
            self._sessions.discard(reply.headers.get(CLOSED_SESSION_ID, "").strip())
            if not 200 <= reply.status < 300:
                raise self._model_error(reply, call)
            yield reply

    def _send(self, container: Container, call: Call, stack: ExitStack) -> urllib3.BaseHTTPResponse:
        """Send a call and return the reply. First load the model if it is not loaded or the
        container has lost it. Evict other models if there is no memory."""
        for _ in range(ATTEMPTS if self._models else 1):
            with ExitStack() as own:
                path = "/invocations"
                if self._models:
                    model = own.enter_context(self._models.using(call.target, call.deadline))
                    path = f"/models/{model.name}/invoke"
                with self._translated(call):
                    reply = container.send("POST", path, call.body, call.headers, call.deadline)
                own.callback(reply.close)
                if self._models and reply.status == NOT_FOUND:
                    self._models.forget(model)
                    self.journal.complain(
                        "lost-model", f"the container does not know {call.target} any more"
                    )
                elif self._models and reply.status == NO_ROOM and self._models.evict():
                    self.journal.count("evictions for a 507")
                else:
                    stack.enter_context(own.pop_all())
                    return reply
        raise ModelError(call.endpoint, NO_ROOM, f"{call.target} was refused {ATTEMPTS} times")

    def _read(self, reply: urllib3.BaseHTTPResponse, call: Call, most: float) -> bytes:
        body = bytearray()
        with self._translated(call):
            for part in parts_of(reply, call.deadline):
                body += part
                if len(body) > most:
                    self.journal.complain("reply-body", "the container sent a larger body")
                    raise ModelError(call.endpoint, reply.status, "")
        return bytes(body)

    @contextmanager
    def _translated(self, call: Call) -> Iterator[None]:
        """Translate urllib3's errors to PlatformErrors, and record what the container did."""
        try:
            yield
        except REFUSED as err:
            if self._container:
                self._container.refused += 1
            raise ServiceUnavailable("The container does not accept the call") from err
        except urllib3.exceptions.ReadTimeoutError as err:
            self.journal.complain(call.rule, "the container did not answer in time")
            raise ModelError(call.endpoint, 0, TOO_LATE) from err
        except (urllib3.exceptions.HTTPError, OSError) as err:
            self.journal.count("connections broken off by the container")
            self.journal.say(f"the container broke off a connection: {err}")
            raise InternalFailure("The container broke off the connection") from err

    def _model_error(self, reply: urllib3.BaseHTTPResponse, call: Call) -> ModelError:
        body = self._read(reply, call, self._rules["reply-body"].limit)
        self.journal.count(f"answers of {reply.status}")
        if reply.status >= 500:
            text = body[:200].decode(errors="replace").strip()
            self.journal.complain("status", f"the container answered {reply.status}: {text}")
        return ModelError(call.endpoint, reply.status, body)

    def _run(self) -> None:
        try:
            while not self._stopping.is_set() and not self.failure:
                self._live()
                self._stopping.wait(PAUSE)
        except CannotStart as err:
            self.failure = str(err)
        finally:
            self.settled.set()

    def _live(self) -> None:
        """Run one container from start to end."""
        begun = time.monotonic()
        self._container = container = self._begin()
        try:
            if self._await_healthy(container, begun + self._rules["start-up"].limit):
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

    def _begin(self) -> Container:
        self._lives += 1
        launch = replace(self.launch, folder=self.launch.folder / str(self._lives))
        if self.store is None:
            return Container(launch, self.journal)
        models = launch.folder / "models"
        environment = {"SAGEMAKER_MULTI_MODEL": "true", **launch.environment}
        container = Container(replace(launch, models=models, environment=environment), self.journal)
        self._models = Models(container, self.store, models, launch.memory)
        return container

    def _await_healthy(self, container: Container, deadline: float) -> bool:
        """Return whether /ping returns 200 before the deadline. If the container ends earlier, fail
        immediately, although the platform would restart it until the deadline."""
        wrong = "nothing listens on the port"
        while not self._stopping.is_set():
            if (code := container.exit_code()) is not None:
                return self._fail(
                    "exit", f"the container ended with exit code {code} before /ping answered 200"
                )
            if time.monotonic() > deadline:
                return self._fail(
                    "start-up", f"the ping health check did not pass; the last one: {wrong}"
                )
            if not (wrong := container.ping()):
                return True
            self._stopping.wait(TICK)
        return False

    def _fail(self, rule: str, what: str) -> bool:
        self.journal.complain(rule, what)
        self.failure = what if self._lives == 1 else ""
        return False

    def _watch(self, container: Container) -> None:
        """Watch the container until it dies, fails too many pings, or has to stop."""
        interval = self._rules["ping-interval"].limit
        most = self._rules["ping-status"].limit
        failed_pings = 0
        asked = time.monotonic()
        memory = self.launch.memory
        while not self._stopping.wait(TICK) and failed_pings < most:
            if container.killed:
                self.journal.say("the container was killed; it is started again")
                return
            if (code := container.exit_code()) is not None:
                self.journal.complain("exit", f"the container ended with exit code {code}")
                return
            if (used := container.memory()) > memory:
                self.journal.complain(
                    "memory", f"the container uses {used / 2**20:.0f} of {memory / 2**20:.0f} MB"
                )
                container.kill()
            container.check_refusals()
            if time.monotonic() - asked >= interval:
                asked = time.monotonic()
                wrong = container.ping()
                failed_pings = failed_pings + 1 if wrong else 0
                if wrong:
                    self._complain_of_ping(container, wrong)
        if failed_pings >= most:
            self.journal.say("the container is replaced")

    def _complain_of_ping(self, container: Container, wrong: str) -> None:
        """Complain about a failed ping, unless the container is ending, which is reported
        elsewhere."""
        self._stopping.wait(TICK)
        if not container.killed and container.exit_code() is None:
            self.journal.complain("ping-status", f"/ping: {wrong}")
