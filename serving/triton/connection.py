"""The gRPC channel to one tritonserver: made at first use, that is after gunicorn's fork, and kept."""

import contextlib
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any

import grpc
from tritonclient.grpc import service_pb2_grpc

from serving.triton.errors import never_sent, serving_errors

CONNECT_SECONDS = 0.5  # more than the longest pause between two attempts to connect
PROBE_SECONDS = 1.2  # on busy processors tritonserver has taken 0.7; nginx waits 2 s for /ping
CHANNEL_OPTIONS = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 100),  # a Triton that was started again is found at once
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 250),
    ("grpc.use_local_subchannel_pool", 1),
]


class Connection:
    """To a target of gRPC's, "unix:PATH" or "host:port". Safe to share between threads."""

    def __init__(self, address: str) -> None:
        self._address = address

    @cached_property
    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self._address, options=CHANNEL_OPTIONS)

    @cached_property
    def stub(self) -> Any:
        return service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def call(self, first: Callable[[], Any], again: Callable[[], Any]) -> Any:
        """`first`, and `again` when it could not be sent: after an attempt to connect that failed gRPC pauses and
        fails all calls meanwhile, though Triton may just have come up. Raises a ServingError."""
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
        """A quick call that is not an inference."""
        call = partial(getattr(self.stub, method), request, timeout=timeout)
        return self.call(call, call)

    def close(self) -> None:
        if channel := self.__dict__.pop("_channel", None):
            channel.close()
        self.__dict__.pop("stub", None)
