"""Connects to Triton, and asks about the server and its models. No inference comes this way."""

import contextlib
from collections.abc import Callable
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
from serving.triton.errors import http_errors, never_sent, translated, without_trace

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
    """A connection to one tritonserver; safe to share between threads.

    `grpc_address` is a target of gRPC's, "unix:PATH" or "host:port". The channel is opened at its first use, which is
    after gunicorn's fork, and kept. `timeout` bounds an inference, in seconds. All methods raise ServingErrors.
    """

    def __init__(self, grpc_address: str, timeout: float, metrics_socket: Path = NOWHERE) -> None:
        self._address, self.timeout, self.metrics_socket = grpc_address, timeout, metrics_socket

    @cached_property
    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self._address, options=CHANNEL_OPTIONS)

    @cached_property
    def stub(self) -> Any:
        return service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def close(self) -> None:
        if channel := self.__dict__.pop("_channel", None):
            channel.close()
        self.__dict__.pop("stub", None)

    def call(self, send: Callable[[], Any], seconds: float = CONNECT_SECONDS) -> Any:
        """Make a call, and repeat it if it could not be sent."""
        try:
            return send()
        except grpc.RpcError as err:
            return self.again(err, send, seconds)

    def again(self, failure: grpc.RpcError, send: Callable[[], Any], seconds: float = CONNECT_SECONDS) -> Any:
        """Repeat a call if its failure says that it could not be sent. Wait `seconds` for a connection first: after a
        failed attempt to connect gRPC pauses, and fails all calls in between, although Triton may just have come up.
        Raise what the failure, or that of the second attempt, is translated to."""
        if not never_sent(failure):
            raise translated(failure) from failure
        with contextlib.suppress(grpc.FutureTimeoutError):
            grpc.channel_ready_future(self._channel).result(timeout=seconds)
        try:
            return send()
        except grpc.RpcError as err:
            raise translated(err) from err

    def _ask(
        self, method: str, request: Any, timeout: float = PROBE_SECONDS, connect_seconds: float = CONNECT_SECONDS
    ) -> Any:
        """Make a call that is not an inference."""
        return self.call(partial(getattr(self.stub, method), request, timeout=timeout), connect_seconds)

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
        return bool(self._ask("ServerLive", service_pb2.ServerLiveRequest(), timeout).live)

    def is_ready(self) -> bool:
        """Return whether Triton is ready. Raise TritonUnavailable or TritonTimeout."""
        return bool(self._ask("ServerReady", service_pb2.ServerReadyRequest()).ready)

    def is_model_ready(self, model: str, version: str = "") -> bool:
        """Return whether the model is loaded; `version` "" means any."""
        request = service_pb2.ModelReadyRequest(name=model, version=version)
        try:
            return bool(self._ask("ModelReady", request).ready)
        except (InvalidRequest, ModelNotReady, InferenceFailed):  # how Triton says that it does not know the model
            return False

    def index(self) -> list[IndexEntry]:
        """Return every version of every model that Triton knows."""
        reply = self._ask("RepositoryIndex", service_pb2.RepositoryIndexRequest())
        return [IndexEntry(m.name, m.version, m.state, without_trace(m.reason)) for m in reply.models]

    def config(self, model: str) -> Any:
        """Return the model's configuration as Triton completed it (the ModelConfig protobuf)."""
        request = service_pb2.ModelConfigRequest(name=model)
        return self._ask("ModelConfig", request, PROBE_SECONDS * 2).config

    def unload(self, model: str) -> None:
        """Make Triton begin to unload a model and its parts; `index` says when that has ended."""
        request = service_pb2.RepositoryModelUnloadRequest(model_name=model)
        request.parameters["unload_dependents"].bool_param = True
        self._ask("RepositoryModelUnload", request, self.timeout)

    def load(self, model: str, timeout: float) -> None:
        """Make Triton load a model whose repository it knows, and its parts, and wait for it. Raise a ServingError."""
        request = service_pb2.RepositoryModelLoadRequest(model_name=model)
        self._ask("RepositoryModelLoad", request, timeout, LOAD_CONNECT_SECONDS)
