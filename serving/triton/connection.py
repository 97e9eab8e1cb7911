"""Connects to Triton, asks about the server and its models, and translates its errors. gateway.py
runs inferences.

The error texts that it recognizes are in quirks.py.
"""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import grpc
from tritonclient.grpc import service_pb2, service_pb2_grpc

from serving.budget import NEVER, Deadline
from serving.errors import (
    InferenceFailed,
    InvalidRequest,
    ModelNotReady,
    NotAcceptable,
    OutOfMemory,
    QueueFull,
    ServingError,
    TritonTimeout,
    TritonUnavailable,
)
from serving.host.network import ask
from serving.triton import quirks

# How long a call waits for a connection: longer than the longest pause between two attempts.
CONNECT_SECONDS = 0.5
LOAD_CONNECT_SECONDS = 10.0  # how long a load waits for a connection; platforms wait minutes
PROBE_SECONDS = 1.2  # tritonserver took up to 0.7 s on a busy machine; nginx waits 2 s for /ping
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # metadata contains the text of an error; above this size, the status is RESOURCE_EXHAUSTED
    ("grpc.max_metadata_size", 2**20),
    ("grpc.initial_reconnect_backoff_ms", 100),  # to reconnect quickly to a restarted Triton
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.use_local_subchannel_pool", 1),
]
METRICS_SECONDS = 1.0  # a scraper waits 2 s
NOWHERE = Path("/nonexistent")
ERRORS: dict[grpc.StatusCode, type[ServingError]] = {  # all other codes mean InferenceFailed
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequest,
    # the registry had found the model, so it has just been unloaded
    grpc.StatusCode.NOT_FOUND: ModelNotReady,
    grpc.StatusCode.DEADLINE_EXCEEDED: TritonTimeout,
    grpc.StatusCode.UNAVAILABLE: TritonUnavailable,
    grpc.StatusCode.CANCELLED: TritonUnavailable,  # Triton cancels its calls when it stops
    grpc.StatusCode.ABORTED: TritonUnavailable,
}
# gRPC's error message if the call was not sent
NOT_CONNECTED = "failed to connect to all addresses"
NOT_ANSWERING = "tritonserver does not answer: it is starting or restarting; try again shortly"
TOO_LATE = "Triton did not answer in time; try again, or raise SERVE_REQUEST_TIMEOUT"


class BackendDied(Exception):
    """Raised when one of the model's processes has died, with Triton's message. The caller gets the
    ModelRestarting that Registry.report creates from it."""


class RegionUnknown(Exception):
    """Raised when Triton was restarted and no longer knows an input's shared-memory region. The
    gateway sends the input again."""


@dataclass(frozen=True)
class IndexEntry:
    """One version of a model in Triton's repository index. `state` is READY, LOADING, UNLOADING or
    UNAVAILABLE."""

    name: str
    version: str
    state: str
    reason: str

    @property
    def has_failed(self) -> bool:
        """Return whether the load failed. A model that was never loaded has an empty reason."""
        return self.state == "UNAVAILABLE" and self.reason not in ("", "unloaded")


class Connection:
    """A connection to one tritonserver. Thread-safe.

    `grpc_address` is a gRPC target, "unix:PATH" or "host:port". The channel is opened at its first
    use, which is after gunicorn's fork, and kept open. `timeout` limits an inference, in seconds.
    All methods may raise a ServingError.
    """

    def __init__(self, grpc_address: str, timeout: float, metrics_socket: Path = NOWHERE) -> None:
        self._address = grpc_address
        self.timeout = timeout
        self.metrics_socket = metrics_socket

    @cached_property
    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self._address, options=CHANNEL_OPTIONS)

    @cached_property
    def stub(self) -> Any:
        return service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        self._channel.close()

    def call(
        self,
        send: Callable[[], Any],
        again: Callable[[], Any] | None = None,
        seconds: float = CONNECT_SECONDS,
    ) -> Any:
        """Call `send`. If the call could not be sent, repeat it, using `again` if given."""
        try:
            return send()
        except grpc.RpcError as err:
            return self.repeat(err, again or send, seconds)

    def repeat(
        self, error: grpc.RpcError, again: Callable[[], Any], seconds: float = CONNECT_SECONDS
    ) -> Any:
        """Repeat a call that failed with `error` if it was not sent. First wait up to `seconds` for
        a connection, because after a failed attempt to connect gRPC pauses and fails all calls
        until its next attempt, even if Triton has just come up. Raise the translated error."""
        is_unavailable = error.code() is grpc.StatusCode.UNAVAILABLE
        if not (is_unavailable and str(error.details()).startswith(NOT_CONNECTED)):
            raise translated(error) from error
        with contextlib.suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(self._channel).result(timeout=seconds)
        try:
            return again()
        except grpc.RpcError as err:
            raise translated(err) from err

    def _ask(
        self,
        method: str,
        request: Any,
        timeout: float = PROBE_SECONDS,
        seconds: float = CONNECT_SECONDS,
    ) -> Any:
        """Call one of Triton's methods other than inference."""
        return self.call(
            partial(getattr(self.stub, method), request, timeout=timeout), seconds=seconds
        )

    def metrics(self) -> bytes:
        """Return Triton's metrics in Prometheus' text format. Raise TritonUnavailable or
        TritonTimeout."""
        try:
            status, text = ask(self.metrics_socket, "/metrics", METRICS_SECONDS, most=None)
        except TimeoutError as err:
            raise TritonTimeout(TOO_LATE) from err
        except OSError as err:
            raise TritonUnavailable(NOT_ANSWERING) from err
        if status != 200:
            raise TritonUnavailable(f"Triton's metrics endpoint answered {status}")
        return text

    def is_live(self, deadline: Deadline = NEVER) -> bool:
        """Return whether Triton is live. Raise TritonUnavailable, TritonTimeout or TooLate."""
        timeout = deadline.left(PROBE_SECONDS)
        return bool(self._ask("ServerLive", service_pb2.ServerLiveRequest(), timeout).live)

    def index(self) -> list[IndexEntry]:
        """Return every version of every model that Triton knows."""
        reply = self._ask("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        return [
            IndexEntry(m.name, m.version, m.state, without_trace(m.reason)) for m in reply.models
        ]

    def config(self, model: str) -> Any:
        """Return the model's configuration as completed by Triton (a ModelConfig protobuf)."""
        request = service_pb2.ModelConfigRequest(name=model)
        return self._ask("ModelConfig", request, PROBE_SECONDS * 2).config

    def unload(self, model: str) -> None:
        """Make Triton start unloading a model and its parts; `index` shows when they are
        unloaded."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        request.parameters["unload_dependents"].bool_param = True
        self._ask("RepositoryModelUnload", request, self.timeout)

    def load(self, model: str, timeout: float) -> tuple[str, ...]:
        """Make Triton load a model from its repository, with its parts, and wait until it is
        loaded. Return the versions that were loaded. Raise a ServingError."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        self._ask("RepositoryModelLoad", request, timeout, LOAD_CONNECT_SECONDS)
        loaded = service_pb2.ModelMetadataRequest(name=model)
        return tuple(self._ask("ModelMetadata", loaded, timeout).versions)


def translated(err: grpc.RpcError) -> Exception:
    """Translate a gRPC error to a ServingError, BackendDied or RegionUnknown."""
    kind = ERRORS.get(err.code(), InferenceFailed)
    details = without_trace(err.details() or "")
    if details.endswith(quirks.DECOUPLED):
        return NotAcceptable(
            "the model gives any number of responses to a request (it is decoupled): ask "
            "for them with Accept: text/event-stream or Accept: application/jsonlines"
        )
    if details.startswith(quirks.UNKNOWN_REGION):
        return RegionUnknown(details)
    return _by_text(details, kind)


def translated_text(message: str) -> Exception:
    """Translate the error text of a stream, which has no status, to a ServingError or
    BackendDied."""
    kind = InvalidRequest if quirks.MISTAKES.match(message) else InferenceFailed
    return _by_text(without_trace(message), kind)


def _by_text(details: str, kind: type[ServingError]) -> Exception:
    """Return an error of `kind`, or of a more specific kind if the text implies one. If the model
    failed, the text may say that memory or /dev/shm ran out, or that the tensors' sizes do not
    match."""
    if details.startswith(quirks.UNKNOWN_MODEL):
        return ModelNotReady(details)
    if dead := quirks.DEAD_PROCESS.fullmatch(details):
        return BackendDied(dead[1])
    if queue := quirks.QUEUE_POLICY.fullmatch(details):
        return QueueFull(
            f"{queue[1]}: the queue policy in the model's config.pbtxt says so; try again shortly"
        )
    if kind is TritonUnavailable or quirks.STOPPING.fullmatch(details):
        return TritonUnavailable(NOT_ANSWERING)
    if kind is TritonTimeout:
        return TritonTimeout(TOO_LATE)
    if kind is InferenceFailed and is_out_of_memory(details):
        return OutOfMemory(details)
    if kind is InferenceFailed and quirks.WRONG_SIZES.search(details):
        return InvalidRequest(details)
    return kind(details)


def is_out_of_memory(message: str) -> bool:
    """Return whether an error's text says that memory ran out, or another resource that unloading
    models frees."""
    return bool(quirks.OUT_OF_MEMORY.search(message))


def without_trace(message: str) -> str:
    """Return Triton's message without the leading request id and the Python backend's trailing
    traceback."""
    return quirks.REQUEST_ID.sub("", message.split(quirks.TRACEBACK)[0]).strip()
