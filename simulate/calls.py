"""Sends a call to the container and reads the reply."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO

import urllib3

from simulate.container import REFUSED, Container, parts_of
from simulate.errors import InternalFailure, ModelError, PlatformError, ServiceUnavailable, timed_out
from simulate.models import NO_ROOM, NOT_FOUND, Models

ATTEMPTS = 3  # the container may lose a model, or have no room for it, and be asked again


@dataclass(frozen=True)
class Call:
    """A call to the endpoint.

    `headers` are those that the API passes on. The caller gets a reply before `deadline` (time.monotonic()), which
    comes from the rule `rule`. `target` and `session` are "" if there is none.
    """

    endpoint: str
    body: bytes | IO[bytes]
    headers: Mapping[str, str]
    deadline: float
    rule: str = "time"
    target: str = ""
    session: str = ""


@dataclass
class Exchange:
    """A reply with its body still unread; `close` ends the connection if the body was not read."""

    call: Call
    container: Container
    reply: urllib3.BaseHTTPResponse
    stack: ExitStack = field(default_factory=ExitStack)

    def read(self, most: float) -> bytes:
        """Return the whole body; raise ModelError, InternalFailure."""
        body = bytearray()
        try:
            for part in self.parts():
                body += part
                if len(body) > most:
                    self.container.journal.complain("reply-body", "the container sent a larger body")
                    raise ModelError(self.call.endpoint, self.reply.status, "")
        except urllib3.exceptions.ReadTimeoutError as err:
            raise too_late(self.call, self.container) from err
        except (urllib3.exceptions.HTTPError, OSError) as err:
            raise broken_off(self.container, err) from err
        return bytes(body)

    def parts(self) -> Iterator[bytes]:
        return parts_of(self.reply, self.call.deadline)

    def close(self) -> None:
        self.reply.close()
        self.stack.close()


def send(container: Container, models: Models | None, call: Call) -> Exchange:
    """Load the model if need be, also again if the container has lost it. Evict others if there is no room.

    Raise PlatformError.
    """
    if models is None:
        return Exchange(call, container, post(container, "/invocations", call))
    for _ in range(ATTEMPTS):
        with ExitStack() as stack:
            model = stack.enter_context(models.using(call.target, call.deadline))
            reply = post(container, f"/models/{model.name}/invoke", call)
            if reply.status == NOT_FOUND:
                models.forget(model)
                container.journal.complain("lost-model", f"the container does not know {call.target} any more")
                reply.close()
            elif reply.status == NO_ROOM and models.evict():
                container.journal.count("evictions for a 507")
                reply.close()
            else:
                return Exchange(call, container, reply, stack.pop_all())
    raise ModelError(call.endpoint, NO_ROOM, f"{call.target} was refused {ATTEMPTS} times")


def post(container: Container, path: str, call: Call) -> urllib3.BaseHTTPResponse:
    try:
        return container.send("POST", path, call.body, call.headers, call.deadline)
    except REFUSED as err:
        container.refused += 1
        raise ServiceUnavailable("The container does not accept the call") from err
    except urllib3.exceptions.ReadTimeoutError as err:
        raise too_late(call, container) from err
    except (urllib3.exceptions.HTTPError, OSError) as err:
        raise broken_off(container, err) from err


def too_late(call: Call, container: Container) -> PlatformError:
    """Count the broken rule; return the error for the caller."""
    container.journal.complain(call.rule, "the container did not answer in time")
    return timed_out(call.endpoint)


def broken_off(container: Container, err: Exception) -> PlatformError:
    """Note the broken connection; return the error for the caller."""
    container.journal.count("connections broken off by the container")
    container.journal.say_once(f"the container broke off a connection: {err}")
    return InternalFailure("The container broke off the connection")
