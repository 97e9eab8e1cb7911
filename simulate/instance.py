"""One instance of the endpoint: starts a container, checks its health, and starts it again when it dies."""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import urllib3

from simulate.calls import Call, Exchange, NotListening, send
from simulate.chaos import Chaos
from simulate.container import Container
from simulate.journal import Journal
from simulate.models import Models
from simulate.runner import CannotStart, Launch, Runner

TICK = 0.2  # seconds between two checks of a container
PAUSE = 1.0  # seconds before a container starts again


@dataclass(frozen=True)
class Plan:
    """What every instance runs. `store` is the folder that stands for S3 of a multi-model endpoint, `memory` is an
    instance's memory in bytes, `folder` is for the simulator's files."""

    endpoint: str
    runner: Runner
    environment: Mapping[str, str]
    folder: Path
    memory: int
    model: Path | None = None
    store: Path | None = None


class Instance:
    """`in_service`: it accepts calls. `failure`: why it never did. `settled` is set as soon as either is known."""

    def __init__(self, number: int, plan: Plan, journal: Journal, chaos: Chaos) -> None:
        self.name = f"instance {number}"
        self._number, self._plan, self._chaos = number, plan, chaos
        self._journal, self._rules = journal, journal.rules
        self.settled = threading.Event()
        self.in_service = False
        self.failure = ""
        self.calls = 0
        self._lives = 0
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._container: Container | None = None
        self._models: Models | None = None
        # `--pdeathsig` (simulate/inplace.py) kills the container when the thread that started it ends.
        self._thread = threading.Thread(target=self._run, name=self.name)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Asks the container to stop and returns at once; `join` waits for its end."""
        self._stopping.set()

    def join(self) -> None:
        self._thread.join()

    def kill(self) -> None:
        """Sends SIGKILL to the container, as the kernel does."""
        if (container := self._container) is not None:
            container.kill()

    def has_model(self, target: str) -> bool:
        models = self._models
        return models is not None and models.has(target)

    def send(self, call: Call) -> Exchange:
        """Raises NotListening, PlatformError."""
        container = self._container
        if container is None or not self.in_service:
            raise NotListening
        self._count(1)
        try:
            exchange = send(container, self._models, call)
        except BaseException:
            self._count(-1)
            raise
        exchange.stack.callback(self._count, -1)
        return exchange

    def hand_on(
        self, method: str, path: str, body: bytes | None, headers: Mapping[str, str], deadline: float
    ) -> urllib3.BaseHTTPResponse:
        """The container's answer to what is no call of the platform's API. Raises NotListening, urllib3's errors."""
        container = self._container
        if container is None:
            raise NotListening
        return container.client.send(method, path, body, headers, deadline)

    def _count(self, number: int) -> None:
        with self._lock:
            self.calls += number

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
        """Runs one container from its start to its end."""
        begun = time.monotonic()
        container = self._begin()
        try:
            if self._await_healthy(container, begun + self._rules["start-up"].limit):
                self._journal.say(f"{self.name}: in service after {time.monotonic() - begun:.1f} s")
                container.check_ports()
                self.in_service = True
                self.settled.set()
                self._watch(container)
        finally:
            self.in_service = False
            if self._models is not None:
                self._models.close()
            container.end()
            self._container = None

    def _begin(self) -> Container:
        """Starts a container; with --chaos slow-disk, fetching its model takes time first."""
        plan, self._lives = self._plan, self._lives + 1
        folder = plan.folder / f"{self._number}-{self._lives}"
        models = folder / "models" if plan.store else None
        environment = {**({"SAGEMAKER_MULTI_MODEL": "true"} if plan.store else {}), **plan.environment}
        self._chaos.wait_for_disk()
        name = f"{plan.folder.name}-{folder.name}"
        launch = Launch(name=name, folder=folder, environment=environment, model=plan.model, models=models)
        container = Container(self.name, plan.runner, launch, self._journal)
        if plan.store and models:
            self._models = Models(
                endpoint=plan.endpoint,
                container=container,
                store=plan.store,
                folder=models,
                memory=plan.memory,
                chaos=self._chaos,
            )
        self._container = container
        return container

    def _await_healthy(self, container: Container, deadline: float) -> bool:
        """Whether /ping answers 200 before the deadline. A container that ends earlier fails the instance at once; the
        platform would start it again until the deadline."""
        wrong = "nothing listens on the port"
        while not self._stopping.is_set():
            if (code := container.exit_code()) is not None:
                return self._fail("exit", f"{self.name} ended with exit code {code} before /ping answered 200")
            if time.monotonic() > deadline:
                return self._fail("start-up", f"{self.name} did not pass the ping health check; the last one: {wrong}")
            if not (wrong := container.ping()):
                return True
            self._stopping.wait(TICK)
        return False

    def _fail(self, rule: str, what: str) -> bool:
        self._journal.complain(rule, what)
        if self._lives == 1:
            self.failure = what
        return False

    def _watch(self, container: Container) -> None:
        """Checks the container until it dies, fails too many pings, or has to stop."""
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
                    self._journal.complain("ping-status", f"{self.name}: /ping: {wrong}")
            if failed_pings >= most:
                return self._journal.say(f"{self.name} is replaced")
        return None

    def _is_dying(self, container: Container) -> bool:
        """Whether the container is about to end: its end is reported, so its failed ping is not."""
        self._stopping.wait(TICK)
        return container.killed or container.exit_code() is not None

    def _died(self, container: Container, code: int) -> None:
        if container.killed:
            self._journal.say(f"{self.name} was killed; its container is started again")
        else:
            self._journal.complain("exit", f"{self.name} ended with exit code {code}")

    def _check_memory(self, container: Container) -> None:
        used = container.memory()
        if used > self._plan.memory:
            most = self._plan.memory / 2**20
            self._journal.complain("memory", f"{self.name} uses {used / 2**20:.0f} MB of {most:.0f} MB")
            container.kill()
