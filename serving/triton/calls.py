"""Calls on their way: an inference, a stream of responses, a load or an unload."""

import contextlib
import select
import time
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import grpc
import orjson
import urllib3

from serving.errors import RegionUnknown, ServingError, TritonUnavailable
from serving.inference.deadline import left
from serving.inference.timings import stage
from serving.triton.errors import NOT_ANSWERING, http_errors, serving_errors, to_stream_error, without_trace
from serving.triton.tensors import Regions, Reply, read_reply

if TYPE_CHECKING:
    from serving.triton.gateway import TritonGateway

SAGEMAKER_SECONDS = 3.0  # from Triton's being live to its SageMaker endpoint's being up


class Call:
    """An inference: `send` puts it on its way, so that something else can be done meanwhile; `result` waits for it.

    `method` calls with a request and waits, or returns a future, as gRPC's multi-callables do. To wait is cheaper: for
    a future gRPC starts a thread. `build` makes the request, of which the `regions` hold inputs, by their names.
    """

    def __init__(
        self, gateway: "TritonGateway", method: Any, build: Callable[[Regions], Any], regions: Regions
    ) -> None:
        self._gateway, self._method, self._build, self._regions = gateway, method, build, regions
        self._request = build(regions)
        self._future: Any = None

    @stage("triton")
    def send(self) -> None:
        self._future = self._method.future(self._request, timeout=left(self._gateway.timeout))

    @stage("triton")
    def result(self) -> Reply:
        """The reply; sends first what has not been sent. Raises a ServingError."""
        try:
            response = self._answer()
        except ServingError:
            self._gateway.shared_memory.give_up(self._regions.values())
            raise
        self._gateway.shared_memory.give_back(self._regions.values())
        return read_reply(response)

    def _answer(self) -> Any:
        try:
            return self._gateway.connected(self._future.result if self._future else self._wait, self._wait)
        except RegionUnknown:
            self._gateway.shared_memory.forget(self._regions.values())
            self._request = self._build({})
            return self._gateway.connected(self._wait, self._wait)

    def _wait(self) -> Any:
        return self._method(self._request, timeout=left(self._gateway.timeout))

    def cancel(self) -> None:
        """Tells Triton that nobody waits any more."""
        if self._future:
            self._future.cancel()
        self._gateway.shared_memory.give_up(self._regions.values())


class Responses:
    """The responses to one request, each as it comes; `cancel`, from any thread, or `close` ends them early.

    After an error nothing is cancelled but waited for: a cancellation on its heels can crash Triton 24.10.
    """

    def __init__(self, gateway: "TritonGateway", send: Callable[[], Any]) -> None:
        self._gateway, self._send = gateway, send
        self._call = send()
        self._begun = self._failed = False

    def __iter__(self) -> "Responses":
        return self

    def __next__(self) -> Reply:
        with stage("triton"), serving_errors():
            message = next(self._call) if self._begun else self._first()
        if message.error_message:
            self._failed = True
            raise to_stream_error(message.error_message)
        return read_reply(message.infer_response)

    def _first(self) -> Any:
        self._begun = True
        return self._gateway.connected(lambda: next(self._call), self._again)

    def _again(self) -> Any:
        self._call = self._send()
        return next(self._call)

    def cancel(self) -> None:
        """Tells Triton that nobody waits any more."""
        if not self._failed:
            self._call.cancel()

    def close(self) -> None:
        """The same, by the thread that read; after an error it reads on to the end."""
        self.cancel()
        if self._failed:
            with contextlib.suppress(grpc.RpcError):
                deque(self._call, maxlen=0)


class RepositoryCall:
    """A call to Triton's SageMaker endpoint, sent over a connection of its own; `result` waits for the answer."""

    def __init__(self, address: str, method: str, path: str, body: bytes | None, model: str, timeout: float) -> None:
        host, port = address.rsplit(":", 1)
        self._connection = urllib3.connection.HTTPConnection(host, int(port), timeout=timeout)
        headers = {"X-Amzn-SageMaker-Target-Model": model, "Content-Type": "application/json"}
        self._connect()
        with http_errors():
            self._connection.request(method, path, body=body, headers=headers)

    def _connect(self) -> None:
        """The endpoint comes up a little later than gRPC."""
        deadline = time.monotonic() + SAGEMAKER_SECONDS
        while True:
            try:
                return self._connection.connect()
            except (urllib3.exceptions.HTTPError, OSError) as err:
                if time.monotonic() > deadline:
                    raise TritonUnavailable(NOT_ANSWERING) from err
                time.sleep(0.05)

    def has_reply(self, seconds: float) -> bool:
        """Whether `result` would return at once, after that time at the latest."""
        connected = self._connection.sock
        return connected is None or bool(select.select([connected], [], [], seconds)[0])

    def result(self) -> tuple[int, str]:
        """The status and, of an error, the message; raises TritonTimeout or TritonUnavailable."""
        with contextlib.closing(self._connection), http_errors():
            reply = self._connection.getresponse()
            body = reply.data
        try:
            return reply.status, without_trace(str(orjson.loads(body)["error"]))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return reply.status, body.decode("utf-8", "replace") or f"Triton answered {reply.status}"
