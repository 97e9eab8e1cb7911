"""The endpoint: its instances, which of them gets a call, and what the caller gets for the container's reply."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from http import HTTPStatus

from serving.headers import CLOSED_SESSION_ID, NEW_SESSION, SESSION_ID
from simulate.calls import Call, Exchange, NotListening
from simulate.chaos import Chaos
from simulate.errors import ACCOUNT, ModelError, ServiceUnavailable, ValidationError
from simulate.instance import Instance, Plan
from simulate.journal import Journal

RANDOM, LEAST_OUTSTANDING = "RANDOM", "LEAST_OUTSTANDING_REQUESTS"  # ProductionVariant's RoutingStrategy
ROUTING = (RANDOM, LEAST_OUTSTANDING)
VARIANT = "AllTraffic"


@dataclass(frozen=True)
class Reply:
    """A container's successful reply."""

    headers: Mapping[str, str]
    body: bytes


class Endpoint:
    """`name` is "" when calls may use any name. Safe to share between threads."""

    def __init__(self, plan: Plan, instances: int, routing: str, journal: Journal, chaos: Chaos) -> None:
        self.plan, self.name = plan, plan.endpoint
        self.journal, self._routing, self._chaos = journal, routing, chaos
        self.multi_model = plan.store is not None
        self.instances = [Instance(number + 1, plan, journal, chaos) for number in range(instances)]
        self._sessions: dict[str, Instance] = {}
        self._stopping = threading.Event()
        self._killer = threading.Thread(target=self._kill_now_and_then, name="chaos")

    def start(self) -> None:
        for instance in self.instances:
            instance.start()
        if self._chaos.rates.kill:
            self._killer.start()

    @property
    def status(self) -> str:
        """DescribeEndpoint's EndpointStatus."""
        if self.in_service():
            return "InService"
        if self.failure:
            return "Failed"
        return "Updating" if all(instance.settled.is_set() for instance in self.instances) else "Creating"

    @property
    def failure(self) -> str:
        """Why the endpoint failed, when one of its instances never came into service; else ""."""
        return next((instance.failure for instance in self.instances if instance.failure), "")

    def settled(self) -> bool:
        """Whether all instances have come into service, or one has failed."""
        return bool(self.failure) or all(instance.settled.is_set() for instance in self.instances)

    def stop(self) -> None:
        """Returns when every container has ended."""
        self._stopping.set()
        for instance in self.instances:
            instance.stop()
        for instance in self.instances:
            instance.join()
        if self._chaos.rates.kill:
            self._killer.join()

    def kill(self) -> None:
        """Sends SIGKILL to every container."""
        for instance in self.instances:
            instance.kill()

    def in_service(self) -> list[Instance]:
        """The instances that accept calls."""
        return [instance for instance in self.instances if instance.in_service]

    def check_name(self, name: str) -> None:
        """Raises ValidationError, as the platform does until an endpoint is in service."""
        if self.status in ("Creating", "Failed") or (self.name and name != self.name):
            raise ValidationError(f"Endpoint {name} of account {ACCOUNT} not found.")

    def invoke(self, call: Call, most: float) -> Reply:
        """The whole reply, of at most `most` bytes. Raises PlatformError."""
        with self.exchange(call) as exchange:
            return Reply(exchange.reply.headers, exchange.read(most))

    @contextmanager
    def exchange(self, call: Call) -> Iterator[Exchange]:
        """The container's successful reply, to be read inside the context; raises PlatformError."""
        exchange = self._send(call)
        try:
            self._check_status(exchange)
            yield exchange
        finally:
            exchange.close()

    def _send(self, call: Call) -> Exchange:
        """Sends the call to an instance; tries the next one only when a container refuses the connection."""
        for instance in self._candidates(call):
            try:
                exchange = instance.send(call)
            except NotListening:
                continue
            self._note_session(call, exchange, instance)
            return exchange
        raise ServiceUnavailable("No container of the endpoint accepts the call")

    def _candidates(self, call: Call) -> list[Instance]:
        """The instances that may get the call, the best first."""
        if call.session and call.session != NEW_SESSION:
            return [self.instance_of(call.session)]
        serving = self.in_service()
        first = self._chaos.choose(len(serving)) if serving else 0
        order = serving[first:] + serving[:first]
        if self._routing == LEAST_OUTSTANDING:
            order.sort(key=lambda instance: instance.calls)
        return sorted(order, key=lambda instance: not instance.has_model(call.target))

    def instance_of(self, session: str) -> Instance:
        """The instance that has the session; raises ValidationError."""
        if session not in self._sessions:
            raise ValidationError(f"Session {session} does not exist or has expired")
        return self._sessions[session]

    def _note_session(self, call: Call, exchange: Exchange, instance: Instance) -> None:
        if call.session == NEW_SESSION and (header := exchange.reply.headers.get(SESSION_ID)):
            self._sessions[header.partition(";")[0].strip()] = instance
        if header := exchange.reply.headers.get(CLOSED_SESSION_ID):
            self._sessions.pop(header.strip(), None)

    def _check_status(self, exchange: Exchange) -> None:
        status = exchange.reply.status
        if HTTPStatus.OK <= status < HTTPStatus.MULTIPLE_CHOICES:
            return
        body = exchange.read(self.journal.rules["reply-body"].limit)
        self.journal.count(f"answers of {status}")
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            text = body[:200].decode(errors="replace").strip()
            self.journal.complain("status", f"{exchange.container.name} answered {status}: {text}")
        raise ModelError(exchange.call.endpoint, status, body)

    def _kill_now_and_then(self) -> None:
        while not self._stopping.wait(self._chaos.seconds_to_next_kill()):
            serving = self.in_service()
            if serving:
                victim = serving[self._chaos.choose(len(serving))]
                self.journal.count("kills")
                self.journal.say(f"--chaos kills {victim.name}")
                victim.kill()
