"""The gateway to Triton: the connection, an inference, a stream of responses, and calls about models."""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.budget import NEVER, Deadline
from serving.errors import InferenceFailed, InvalidRequest, ModelNotReady, TritonUnavailable
from serving.host.network import LocalConnection
from serving.triton.errors import RegionUnknown, http_errors, never_sent, translated, translated_text, without_trace
from serving.triton.shared_memory import LEAST, Region, SharedMemory
from serving.triton.tensors import InferReply, InferRequest

CONNECT_SECONDS = 0.5  # more than the longest pause between two attempts to connect
LOAD_CONNECT_SECONDS = 10.0  # of a load, for which a platform waits for minutes
PROBE_SECONDS = 1.2  # on busy processors tritonserver took 0.7 s; nginx waits 2 s for /ping
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),  # finds a restarted Triton at once
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.use_local_subchannel_pool", 1),
]
METRICS_SECONDS = 1.0  # a scraper waits for 2
NOWHERE = Path("/nonexistent")


@dataclass(frozen=True)
class IndexEntry:
    """One version of a model in Triton's repository index; `state` is READY, LOADING, UNLOADING, UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str

    @property
    def has_failed(self) -> bool:
        """Return whether the load failed. A model that was never loaded has no reason."""
        return self.state == "UNAVAILABLE" and self.reason not in ("", "unloaded")


class Connection:
    """A channel to a gRPC target, "unix:PATH" or "host:port". It is opened at its first use, which is after gunicorn's
    fork, and kept. Safe to share between threads."""

    def __init__(self, address: str) -> None:
        self._address = address

    @cached_property
    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self._address, options=CHANNEL_OPTIONS)

    @cached_property
    def stub(self) -> Any:
        return service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def call(self, first: Callable[[], Any], again: Callable[[], Any], seconds: float = CONNECT_SECONDS) -> Any:
        """Call `first`, then `again` if `first` could not be sent, once there is a connection or after so many seconds.
        After a failed attempt to connect gRPC pauses, and fails all calls in between, although Triton may just have
        come up. Raise a ServingError."""
        try:
            return first()
        except grpc.RpcError as err:
            if not never_sent(err):
                raise translated(err) from err
        with contextlib.suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(self._channel).result(timeout=seconds)
        try:
            return again()
        except grpc.RpcError as err:
            raise translated(err) from err

    def probe(
        self, method: str, request: Any, timeout: float = PROBE_SECONDS, connect_seconds: float = CONNECT_SECONDS
    ) -> Any:
        """Make a call that is not an inference."""
        call = partial(getattr(self.stub, method), request, timeout=timeout)
        return self.call(call, call, connect_seconds)

    def close(self) -> None:
        if channel := self.__dict__.pop("_channel", None):
            channel.close()
        self.__dict__.pop("stub", None)


class Call:
    """An inference. `send` starts it without waiting; `result` waits for the reply.

    `result` without `send` is cheaper, because gRPC starts a thread for each call that is sent first.
    """

    def __init__(
        self, connection: Connection, memory: SharedMemory, request: InferRequest, deadline: Deadline, timeout: float
    ) -> None:
        self._connection, self._memory, self._request = connection, memory, request
        self._deadline, self._timeout = deadline, timeout
        large = [each for each in request.inputs if len(each.data) >= LEAST]
        self._regions = memory.write(large) if large else {}
        self._message = request.message({name: region.name for name, region in self._regions.items()})
        self._future: Any = None

    def send(self) -> None:
        infer, metadata = self._connection.stub.ModelInfer, self._request.metadata
        self._future = infer.future(self._message, timeout=self._left(), metadata=metadata)

    def result(self) -> InferReply:
        """Return the reply. Send the call first if that was not done. Raise a ServingError or BackendDied."""
        try:
            message = self._answer()
        except Exception:
            self._give(self._memory.give_up)
            raise
        self._give(self._memory.give_back)
        return InferReply.of(message)

    def _give(self, back: Callable[[Iterable[Region]], None]) -> None:
        """Release the regions at most once: two calls that share a region would corrupt each other's answers."""
        regions, self._regions = self._regions, {}
        if regions:
            back(regions.values())

    def _answer(self) -> Any:
        try:
            return self._connection.call(self._future.result if self._future else self._wait, self._wait)
        except RegionUnknown:
            self._memory.forget(self._regions.values())
            self._message = self._request.message({})
            return self._connection.call(self._wait, self._wait)

    def _wait(self) -> Any:
        infer, metadata = self._connection.stub.ModelInfer, self._request.metadata
        return infer(self._message, timeout=self._left(), metadata=metadata)

    def _left(self) -> float:
        return self._deadline.left(self._timeout)

    def cancel(self) -> None:
        """Cancel the call in Triton: nobody waits for it any more."""
        if self._future:
            self._future.cancel()
        self._give(self._memory.give_up)


class Responses:
    """The responses to one request, as they come. `cancel`, from any thread, or `close` ends them early.

    After an error the stream is read to its end and not cancelled: a cancellation then can crash Triton 24.10.
    """

    def __init__(self, connection: Connection, send: Callable[[], Any]) -> None:
        self._connection, self._send = connection, send
        self._call = send()
        self._begun = self._failed = False

    def __iter__(self) -> "Responses":
        return self

    def __next__(self) -> InferReply:
        try:
            message = next(self._call) if self._begun else self._first()
        except grpc.RpcError as err:
            raise translated(err) from err
        if message.error_message:
            self._failed = True
            raise translated_text(message.error_message)
        return InferReply.of(message.infer_response)

    def _first(self) -> Any:
        self._begun = True
        return self._connection.call(lambda: next(self._call), self._again)

    def _again(self) -> Any:
        self._call = self._send()
        return next(self._call)

    def cancel(self) -> None:
        """Cancel the call in Triton: nobody waits for it any more."""
        if not self._failed:
            self._call.cancel()

    def close(self) -> None:
        """Cancel, in the thread that reads. After an error, read on to the end."""
        self.cancel()
        if self._failed:
            with contextlib.suppress(grpc.RpcError):
                deque(self._call, maxlen=0)


class TritonGateway:
    """Calls to one tritonserver; safe to share between threads.

    `grpc_address` is a target of gRPC's, "unix:PATH" or "host:port"; `timeout` and `stream_timeout` bound an inference
    and a stream of responses, in seconds, if the request's deadline is not earlier. Large inputs go through files in
    /dev/shm whose names begin with `shared_prefix`, at most `shared_limit` bytes.
    """

    def __init__(
        self,
        grpc_address: str,
        timeout: float,
        *,
        metrics_socket: Path = NOWHERE,
        stream_timeout: float = 480.0,
        shared_prefix: str = "",
        shared_limit: int = 0,
    ) -> None:
        self.timeout, self.stream_timeout = timeout, stream_timeout
        self.metrics_socket = metrics_socket
        self._connection = Connection(grpc_address)
        self.shared_memory = SharedMemory(shared_prefix, shared_limit, self._register)

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def infer(self, request: InferRequest, deadline: Deadline = NEVER) -> Call:
        """Return a call that is not sent yet."""
        return Call(self._connection, self.shared_memory, request, deadline, self.timeout)

    def stream(self, request: InferRequest, deadline: Deadline = NEVER) -> Responses:
        """Return the responses of a model that gives any number of them."""
        message, stub = request.message({}), self._connection.stub
        # The stream of requests ends after this one, so that of the responses ends after its last.
        return Responses(
            self._connection,
            lambda: stub.ModelStreamInfer(
                iter([message]), timeout=deadline.left(self.stream_timeout), metadata=request.metadata
            ),
        )

    def _register(self, name: str, size: int) -> None:
        """Make Triton map a file of /dev/shm."""
        request = service_pb2.SystemSharedMemoryRegisterRequest(name=name, key=f"/{name}", byte_size=size)
        self._connection.probe("SystemSharedMemoryRegister", request)

    def metrics(self) -> bytes:
        """Return Triton's metrics in Prometheus' text format. Raise TritonUnavailable or TritonTimeout."""
        with closing(LocalConnection(self.metrics_socket, METRICS_SECONDS)) as connection, http_errors():
            connection.request("GET", "/metrics")
            reply = connection.getresponse()
            text = reply.read()
        if reply.status != 200:
            raise TritonUnavailable(f"Triton's metrics endpoint answered {reply.status}")
        return text

    def is_live(self, deadline: Deadline = NEVER) -> bool:
        """Return whether Triton is live. Raise TritonUnavailable, TritonTimeout or TooLate."""
        timeout = deadline.left(PROBE_SECONDS)
        return bool(self._connection.probe("ServerLive", service_pb2.ServerLiveRequest(), timeout).live)

    def is_ready(self) -> bool:
        """Return whether Triton is ready. Raise TritonUnavailable or TritonTimeout."""
        return bool(self._connection.probe("ServerReady", service_pb2.ServerReadyRequest()).ready)

    def is_model_ready(self, model: str, version: str = "") -> bool:
        """Return whether the model is loaded; `version` "" means any."""
        request = service_pb2.ModelReadyRequest(name=model, version=version)
        try:
            return bool(self._connection.probe("ModelReady", request).ready)
        except (InvalidRequest, ModelNotReady, InferenceFailed):  # how Triton says that it does not know the model
            return False

    def index(self) -> list[IndexEntry]:
        """Return every version of every model that Triton knows."""
        reply = self._connection.probe("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        return [IndexEntry(m.name, m.version, m.state, without_trace(m.reason)) for m in reply.models]

    def config(self, model: str) -> Any:
        """Return the model's configuration as Triton completed it (the ModelConfig protobuf)."""
        request = service_pb2.ModelConfigRequest(name=model)
        return self._connection.probe("ModelConfig", request, PROBE_SECONDS * 2).config

    def unload(self, model: str) -> None:
        """Make Triton begin to unload a model and its parts; `index` says when that has ended."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        request.parameters["unload_dependents"].bool_param = True
        self._connection.probe("RepositoryModelUnload", request, self.timeout)

    def load(self, model: str, timeout: float) -> None:
        """Make Triton load a model whose repository it knows, and its parts, and wait for it. Raise a ServingError."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        self._connection.probe("RepositoryModelLoad", request, timeout, LOAD_CONNECT_SECONDS)
