"""The gRPC channel to one tritonserver. It is opened at first use, which is after gunicorn's fork, and kept."""

import contextlib
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from serving.triton.errors import never_sent, serving_errors

CONNECT_SECONDS = 0.5  # more than the longest pause between two attempts to connect
PROBE_SECONDS = 1.2  # on busy processors tritonserver took 0.7 s; nginx waits 2 s for /ping
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),  # finds a restarted Triton at once
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.use_local_subchannel_pool", 1),
]


class Connection:
    """A channel to a gRPC target, "unix:PATH" or "host:port". Safe to share between threads."""

    def __init__(self, address: str) -> None:
        self._address = address

    @cached_property
    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self._address, options=CHANNEL_OPTIONS)

    @cached_property
    def stub(self) -> Any:
        return service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def call(self, first: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """Call `first`, then `again` if `first` could not be sent. After a failed attempt to connect gRPC pauses, and
        fails all calls in between, although Triton may just have come up. Raise a ServingError."""
        with serving_errors():
            try:
                return first()
            except grpc.RpcError as err:
                if not never_sent(err):
                    raise
            with contextlib.suppress(grpc.FutureTimeoutError):
                grpc.channel_ready_future(self._channel).result(timeout=CONNECT_SECONDS)
            return again()

    def probe(self, method: str, request: Any, timeout: float = PROBE_SECONDS) -> Any:
        """Make a quick call that is not an inference."""
        call = partial(getattr(self.stub, method), request, timeout=timeout)
        return self.call(call, call)

    def close(self) -> None:
        if channel := self.__dict__.pop("_channel", None):
            channel.close()
        self.__dict__.pop("stub", None)
