"""Sends a call to a container and reads the reply."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO

import urllib3

from simulate.container import REFUSED, Container
from simulate.errors import InternalFailure, ModelError, PlatformError, timed_out
from simulate.inside import parts_of, read_all
from simulate.models import NO_ROOM, NOT_FOUND, Models

ATTEMPTS = 3  # the container may lose a model, or have no room for it, and be asked again


@dataclass(frozen=True)
class Call:
    """A call to the endpoint.

    `headers` are those that the API passes on. The caller gets a reply before `deadline` (time.monotonic()), which
    comes from the rule `rule`. `target` and `session` are "" when there is none.
    """

    endpoint: str
    body: bytes | IO[bytes]
    headers: Mapping[str, str]
    deadline: float
    rule: str = "time"
    target: str = ""
    session: str = ""


class NotListening(Exception):
    """The container refused the connection. Nothing was sent, so another container may get the call."""


@dataclass
class Exchange:
    """A reply with its body still unread. `close` returns the connection to the pool, or ends it if the body was not
    read."""

    call: Call
    container: Container
    reply: urllib3.BaseHTTPResponse
    stack: ExitStack = field(default_factory=ExitStack)

    def read(self, most: float) -> bytes:
        """The whole body; raises ModelError, InternalFailure."""
        try:
            body = read_all(self.reply, self.call.deadline, most)
        except urllib3.exceptions.ReadTimeoutError as err:
            raise too_late(self.call, self.container) from err
        except (urllib3.exceptions.HTTPError, OSError) as err:
            raise broken_off(self.container, err) from err
        if body is None:
            self.container.journal.complain("reply-body", f"{self.container.name} sent a larger body")
            raise ModelError(self.call.endpoint, self.reply.status, "")
        return body

    def parts(self) -> Iterator[bytes]:
        return parts_of(self.reply, self.call.deadline)

    def close(self) -> None:
        self.reply.close()
        self.stack.close()


def send(container: Container, models: Models | None, call: Call) -> Exchange:
    """Raises NotListening, PlatformError."""
    if models is None:
        return Exchange(call, container, post(container, "/invocations", call))
    return send_to_model(container, models, call)


def send_to_model(container: Container, models: Models, call: Call) -> Exchange:
    """Loads the model if need be, also again if the container has lost it, and evicts others if there is no room."""
    for _ in range(ATTEMPTS):
        stack = ExitStack()
        with stack:
            model = stack.enter_context(models.using(call.target, call.deadline))
            reply = post(container, f"/models/{model.name}/invoke", call)
            if reply.status == NOT_FOUND:
                models.forget(model)
                container.journal.complain("lost-model", f"{container.name} does not know {call.target} any more")
                reply.close()
            elif reply.status == NO_ROOM and models.evict():
                container.journal.count("evictions for a 507")
                reply.close()
            else:
                return Exchange(call, container, reply, stack.pop_all())
    raise ModelError(call.endpoint, NO_ROOM, f"{call.target} was refused {ATTEMPTS} times")


def post(container: Container, path: str, call: Call) -> urllib3.BaseHTTPResponse:
    try:
        return container.client.send("POST", path, call.body, call.headers, call.deadline)
    except REFUSED as err:
        container.refused += 1
        raise NotListening from err
    except urllib3.exceptions.ReadTimeoutError as err:
        raise too_late(call, container) from err
    except (urllib3.exceptions.HTTPError, OSError) as err:
        raise broken_off(container, err) from err


def too_late(call: Call, container: Container) -> PlatformError:
    """Counts the broken rule; returns the error for the caller."""
    container.journal.complain(call.rule, f"{container.name} did not answer in time")
    return timed_out(call.endpoint)


def broken_off(container: Container, err: Exception) -> PlatformError:
    """Notes the broken connection; returns the error for the caller."""
    container.journal.count("connections broken off by a container")
    container.journal.say_once(f"{container.name} broke off a connection: {err}")
    return InternalFailure("The container broke off the connection")
