"""The endpoint: starts a container, checks its health, starts it again when it dies, and sends it the calls."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http import HTTPStatus
from pathlib import Path

from serving.headers import CLOSED_SESSION_ID, NEW_SESSION, SESSION_ID
from simulate.calls import Call, Exchange, send
from simulate.container import Container
from simulate.errors import ACCOUNT, ModelError, ServiceUnavailable, ValidationError
from simulate.journal import Journal
from simulate.models import Models
from simulate.runner import CannotStart, Launch

TICK = 0.2  # seconds between two checks of the container
PAUSE = 1.0  # seconds before a container starts again
VARIANT = "AllTraffic"


@dataclass(frozen=True)
class Reply:
    """A container's successful reply."""

    headers: Mapping[str, str]
    body: bytes


class Endpoint:
    """`name` is "" if calls may use any name. `launch.folder` is for the files of all its containers, one after the
    other. `store` is the folder that stands for S3 of a multi-model endpoint. Safe to share between threads.

    `settled` is set as soon as a container is in service, or `failure` says why none ever was.
    """

    def __init__(self, name: str, launch: Launch, store: Path | None, journal: Journal) -> None:
        self.name, self.launch, self.store, self.journal = name, launch, store, journal
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

    @property
    def status(self) -> str:
        """DescribeEndpoint's EndpointStatus."""
        if self.in_service:
            return "InService"
        return "Failed" if self.failure else "Updating" if self.settled.is_set() else "Creating"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Stop the container; return when it has ended."""
        self._stopping.set()
        self._thread.join()

    def kill(self) -> None:
        """Send SIGKILL to the container, as the kernel does."""
        if (container := self._container) is not None:
            container.kill()

    def check_name(self, name: str) -> None:
        """Raise ValidationError, as the platform does until an endpoint is in service."""
        if self.status in ("Creating", "Failed") or (self.name and name != self.name):
            raise ValidationError(f"Endpoint {name} of account {ACCOUNT} not found.")

    def invoke(self, call: Call, most: float) -> Reply:
        """Return the whole reply, of at most `most` bytes. Raise PlatformError."""
        with self.exchange(call) as exchange:
            return Reply(exchange.reply.headers, exchange.read(most))

    @contextmanager
    def exchange(self, call: Call) -> Iterator[Exchange]:
        """Yield the container's successful reply, to be read inside the context; raise PlatformError."""
        if call.session not in ("", NEW_SESSION, *self._sessions):
            raise ValidationError(f"Session {call.session} does not exist or has expired")
        container = self._container
        if container is None or not self.in_service:
            raise ServiceUnavailable("The container is not in service")
        exchange = send(container, self._models, call)
        try:
            headers = exchange.reply.headers
            if call.session == NEW_SESSION and SESSION_ID in headers:
                self._sessions.add(headers[SESSION_ID].partition(";")[0].strip())
            self._sessions.discard(headers.get(CLOSED_SESSION_ID, "").strip())
            self._check_status(exchange)
            yield exchange
        finally:
            exchange.close()

    def _check_status(self, exchange: Exchange) -> None:
        status = exchange.reply.status
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return
        body = exchange.read(self._rules["reply-body"].limit)
        self.journal.count(f"answers of {status}")
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            text = body[:200].decode(errors="replace").strip()
            self.journal.complain("status", f"the container answered {status}: {text}")
        raise ModelError(exchange.call.endpoint, status, body)

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
        """Run one container from its start to its end."""
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
        folder = self.launch.folder / str(self._lives)
        if self.store is None:
            return Container(replace(self.launch, folder=folder), self.journal)
        environment = {"SAGEMAKER_MULTI_MODEL": "true", **self.launch.environment}
        models = folder / "models"
        container = Container(replace(self.launch, folder=folder, models=models, environment=environment), self.journal)
        self._models = Models(self.name, container, self.store, models, self.launch.memory)
        return container

    def _await_healthy(self, container: Container, deadline: float) -> bool:
        """Return whether /ping answers 200 before the deadline. A container that ends earlier fails the endpoint at
        once; the platform would start it again until the deadline."""
        wrong = "nothing listens on the port"
        while not self._stopping.is_set():
            if (code := container.exit_code()) is not None:
                return self._fail("exit", f"the container ended with exit code {code} before /ping answered 200")
            if time.monotonic() > deadline:
                return self._fail("start-up", f"the ping health check did not pass; the last one: {wrong}")
            if not (wrong := container.ping()):
                return True
            self._stopping.wait(TICK)
        return False

    def _fail(self, rule: str, what: str) -> bool:
        self.journal.complain(rule, what)
        if self._lives == 1:
            self.failure = what
        return False

    def _watch(self, container: Container) -> None:
        """Check the container until it dies, fails too many pings, or has to stop."""
        interval, most = self._rules["ping-interval"].limit, self._rules["ping-status"].limit
        failed_pings, asked = 0, time.monotonic()
        while not self._stopping.wait(TICK):
            if (code := container.exit_code()) is not None:
                return self._died(container, code)
            self._check_memory(container)
            container.check_refusals()
            if time.monotonic() - asked >= interval:
                asked = time.monotonic()
                failed_pings = failed_pings + 1 if (wrong := container.ping()) else 0
                if wrong and not self._is_dying(container):
                    self.journal.complain("ping-status", f"/ping: {wrong}")
            if failed_pings >= most:
                return self.journal.say("the container is replaced")
        return None

    def _is_dying(self, container: Container) -> bool:
        """Return whether the container is about to end: its end is reported, so its failed ping is not."""
        self._stopping.wait(TICK)
        return container.killed or container.exit_code() is not None

    def _died(self, container: Container, code: int) -> None:
        if container.killed:
            self.journal.say("the container was killed; it is started again")
        else:
            self.journal.complain("exit", f"the container ended with exit code {code}")

    def _check_memory(self, container: Container) -> None:
        used, most = container.memory(), self.launch.memory
        if used > most:
            self.journal.complain("memory", f"the container uses {used / 2**20:.0f} MB of {most / 2**20:.0f} MB")
            container.kill()
