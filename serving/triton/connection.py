"""Connects to Triton, asks about the server and its models, loads and unloads models, and
translates Triton's errors. gateway.py sends inference requests.

quirks.py contains the error texts that this module recognizes.
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

# How long a call waits for a connection. This is longer than gRPC's longest pause between two
# attempts to connect (grpc.max_reconnect_backoff_ms).
CONNECT_SECONDS = 0.5
LOAD_CONNECT_SECONDS = 10.0  # how long a load waits for a connection; SageMaker waits for minutes
# The time limit of a health check, and of most calls other than inferences. On a busy machine,
# tritonserver took up to 0.7 s for a health check; nginx waits 2 s for /ping.
PROBE_SECONDS = 1.2
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # An error's text is part of the metadata. If that is larger than this, gRPC reports
    # RESOURCE_EXHAUSTED instead of the error.
    ("grpc.max_metadata_size", 2**20),
    ("grpc.initial_reconnect_backoff_ms", 100),  # to reconnect quickly to a restarted Triton
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.use_local_subchannel_pool", 1),  # do not share a connection with other channels
]
METRICS_SECONDS = 1.0  # time limit for each read of Triton's metrics; a scraper waits 2 s
NOWHERE = Path("/nonexistent")
ERRORS: dict[grpc.StatusCode, type[ServingError]] = {  # any other status means InferenceFailed
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequest,
    # the registry has just found the model, so it must have been unloaded since
    grpc.StatusCode.NOT_FOUND: ModelNotReady,
    grpc.StatusCode.DEADLINE_EXCEEDED: TritonTimeout,
    grpc.StatusCode.UNAVAILABLE: TritonUnavailable,
    grpc.StatusCode.CANCELLED: TritonUnavailable,  # Triton cancels its calls when it stops
    grpc.StatusCode.ABORTED: TritonUnavailable,
}
# how gRPC's error message begins if the call was not sent
NOT_CONNECTED = "failed to connect to all addresses"
NOT_ANSWERING = "tritonserver does not answer: it is starting or restarting; try again shortly"
TOO_LATE = "Triton did not answer in time; try again, or raise SERVE_REQUEST_TIMEOUT"


class BackendDied(Exception):
    """Raised if one of the model's processes has died. Registry.report converts it to a
    ModelRestarting for the caller."""


class RegionUnknown(Exception):
    """Raised if Triton does not know the shared-memory region of an input, because it was
    restarted. Call.result then sends the call again, with all inputs in a message."""


@dataclass(frozen=True)
class IndexEntry:
    """One version of a model in Triton's repository index. `state` is READY, LOADING, UNLOADING or
    UNAVAILABLE. If the model was never loaded, everything except its name is ""."""

    name: str
    version: str
    state: str
    reason: str

    @property
    def has_failed(self) -> bool:
        """Return whether the load failed. A model that was unloaded is UNAVAILABLE too."""
        return self.state == "UNAVAILABLE" and self.reason not in ("", "unloaded")


class Connection:
    """A connection to one tritonserver. Thread-safe.

    `grpc_address` is a gRPC target, "unix:PATH" or "host:port". The channel is opened at its first
    use, which must be after gunicorn's fork, and kept open. `timeout` is the time limit of an
    inference in seconds. `metrics_socket` is the Unix socket on which Triton serves its metrics.
    All methods that call Triton may raise a ServingError.
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
        connect_seconds: float = CONNECT_SECONDS,
    ) -> Any:
        """Call `send`, which sends a gRPC call, and return its result. If the call could not be
        sent, wait up to `connect_seconds` for a connection, and then call `again` or, if that is
        None, `send` again."""
        try:
            return send()
        except grpc.RpcError as err:
            return self.repeat(err, again or send, connect_seconds)

    def repeat(
        self,
        error: grpc.RpcError,
        again: Callable[[], Any],
        connect_seconds: float = CONNECT_SECONDS,
    ) -> Any:
        """If the call that failed with `error` was not sent, repeat it by calling `again`, and
        return the result. Otherwise raise the error that `translated` returns for it.

        First wait up to `connect_seconds` for a connection. After a failed attempt to connect, gRPC
        pauses, and until its next attempt all calls fail, even if Triton has started meanwhile.
        """
        is_unavailable = error.code() is grpc.StatusCode.UNAVAILABLE
        if not (is_unavailable and str(error.details()).startswith(NOT_CONNECTED)):
            raise translated(error) from error
        with contextlib.suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(self._channel).result(timeout=connect_seconds)
        try:
            return again()
        except grpc.RpcError as err:
            raise translated(err) from err

    def _ask(
        self,
        method: str,
        request: Any,
        timeout: float = PROBE_SECONDS,
        connect_seconds: float = CONNECT_SECONDS,
    ) -> Any:
        """Call a gRPC method of Triton that is not an inference, and return the reply."""
        send = partial(getattr(self.stub, method), request, timeout=timeout)
        return self.call(send, connect_seconds=connect_seconds)

    def metrics(self) -> bytes:
        """Return Triton's metrics in Prometheus' text format. Raise TritonUnavailable or
        TritonTimeout if it does not return any."""
        try:
            status, text = ask(self.metrics_socket, "/metrics", METRICS_SECONDS, most=None)
        except TimeoutError as err:
            problem = f"Triton's metrics did not arrive within {METRICS_SECONDS:g} s"
            raise TritonTimeout(problem) from err
        except OSError as err:
            raise TritonUnavailable(NOT_ANSWERING) from err
        if status != 200:
            raise TritonUnavailable(f"Triton's metrics endpoint answered {status}")
        return text

    def is_live(self, deadline: Deadline = NEVER) -> bool:
        """Return whether Triton is live. Raise TooLate if the deadline has passed, and a
        ServingError such as TritonUnavailable if Triton does not answer."""
        timeout = deadline.left(PROBE_SECONDS)
        return bool(self._ask("ServerLive", service_pb2.ServerLiveRequest(), timeout).live)

    def index(self) -> list[IndexEntry]:
        """Return every version of every model that Triton knows."""
        reply = self._ask("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        return [
            IndexEntry(model.name, model.version, model.state, without_trace(model.reason))
            for model in reply.models
        ]

    def config(self, model: str) -> Any:
        """Return the model's configuration, a ModelConfig, as Triton has completed it."""
        request = service_pb2.ModelConfigRequest(name=model)
        return self._ask("ModelConfig", request, 2 * PROBE_SECONDS).config

    def unload(self, model: str) -> None:
        """Make Triton start unloading a model and its parts, and return before they are unloaded.
        `index` shows when they are. If the model is being loaded, wait for that (quirks.py)."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        request.parameters["unload_dependents"].bool_param = True
        self._ask("RepositoryModelUnload", request, self.timeout)

    def load(self, model: str, timeout: float) -> tuple[str, ...]:
        """Make Triton load a model from its repository, with its parts, and wait until it is
        loaded. Return the versions that were loaded. Raise a ServingError."""
        load = service_pb2.RepositoryModelLoadRequest(model_name=model)
        self._ask("RepositoryModelLoad", load, timeout, LOAD_CONNECT_SECONDS)
        describe = service_pb2.ModelMetadataRequest(name=model)
        return tuple(self._ask("ModelMetadata", describe, timeout).versions)


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
    """Return an error of `kind`, or of a more specific kind if the text implies one. If `kind` is
    InferenceFailed, the text may say that memory or /dev/shm ran out, or that the sizes of tensors
    are wrong."""
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
    """Return whether an error's text says that memory ran out, or another resource that can be
    freed by unloading models."""
    return bool(quirks.OUT_OF_MEMORY.search(message))


def without_trace(message: str) -> str:
    """Return Triton's message without the request id at its beginning, the traceback that the
    Python backend appends, and a misleading note."""
    text = message.split(quirks.TRACEBACK)[0]
    text = text.split(quirks.NOTE)[0]
    return quirks.REQUEST_ID.sub("", text).strip()
