"""One call on its way to a container and back.

A call's headers are those that the API lets through; `deadline` is when the caller gets an answer at the latest, in
time.monotonic()'s seconds.
"""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import IO

import urllib3

from simulate.container import REFUSED, Container
from simulate.errors import InternalFailure, ModelError, PlatformError, timed_out
from simulate.inside import parts_of, read_all
from simulate.models import NO_ROOM, NOT_FOUND, Models

ATTEMPTS = 3  # to load a model again that the container has lost


@dataclass(frozen=True)
class Call:
    """`rule` names the one that bounds its time; `target` and `session` are "" where there is none."""

    endpoint: str
    body: bytes | IO[bytes]
    headers: Mapping[str, str]
    deadline: float
    rule: str = "time"
    target: str = ""
    session: str = ""


class NotListening(Exception):
    """Nothing was sent: another container may take the call."""


@dataclass
class Exchange:
    """A reply whose body is still to be read; `close` gives the connection back, or ends it where it was not read."""

    call: Call
    container: Container
    reply: urllib3.BaseHTTPResponse
    stack: ExitStack = field(default_factory=ExitStack)

    def read(self, most: float) -> bytes:
        """The whole body; raises ModelError, InternalFailure."""
        try:
            body = read_all(self.reply, self.call.deadline, most)
        except urllib3.exceptions.ReadTimeoutError as err:
            raise late(self.call, self.container) from err
        except (urllib3.exceptions.HTTPError, OSError) as err:
            raise broken(self.container, err) from err
        if body is None:
            self.container.journal.complain("reply-body", f"{self.container.name} has sent a larger one")
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
    """Loads the model where it has to, makes room where there is none, and loads again what the container has lost."""
    for _ in range(ATTEMPTS):
        stack = ExitStack()
        with stack:
            model = stack.enter_context(models.using(call.target, call.deadline))
            reply = post(container, f"/models/{model.name}/invoke", call)
            if reply.status == NOT_FOUND:
                models.lost(model)
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
        raise late(call, container) from err
    except (urllib3.exceptions.HTTPError, OSError) as err:
        raise broken(container, err) from err


def late(call: Call, container: Container) -> PlatformError:
    container.journal.complain(call.rule, f"{container.name} did not answer in time")
    return timed_out(call.endpoint)


def broken(container: Container, err: Exception) -> PlatformError:
    container.journal.count("connections broken off by a container")
    container.journal.say_once(f"{container.name} broke a connection off: {err}")
    return InternalFailure("The container broke the connection off")
