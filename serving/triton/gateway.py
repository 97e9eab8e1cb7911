"""Sends inference requests to Triton, and reads its replies and streams of responses."""

import contextlib
import math
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import grpc
from tritonclient.grpc import service_pb2

from serving.budget import NEVER, Deadline
from serving.errors import TritonTimeout, TritonUnavailable
from serving.triton.connection import NOWHERE, TOO_LATE, Connection, RegionUnknown, translated_text
from serving.triton.shared_memory import LEAST, Region, SharedMemory
from serving.triton.tensors import InferReply, InferRequest

# A stream is cancelled only if no response has arrived for this many seconds. With a response every
# 12 or 30 ms, Triton survived 88,000 such cancellations.
QUIET_SECONDS = 0.01


class TritonGateway(Connection):
    """A connection that also runs inferences. `timeout` is the time limit in seconds of a single
    reply, and `stream_timeout` that of a stream of responses. A request's own deadline may be
    earlier. Except for streams, large inputs are passed in files in /dev/shm whose names begin with
    `shared_prefix`, up to `shared_limit` bytes in total."""

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
        super().__init__(grpc_address, timeout, metrics_socket)
        self.stream_timeout = stream_timeout
        self.shared_memory = SharedMemory(shared_prefix, shared_limit, self._register)

    def infer(self, request: InferRequest, deadline: Deadline = NEVER) -> "Call":
        """Return a Call for an inference with one reply. It has not been sent yet, but its large
        inputs are already in shared memory if there is space."""
        return Call(self, request, deadline)

    def stream(self, request: InferRequest, deadline: Deadline = NEVER) -> "Responses":
        """Send a request to a model that may return any number of responses. Return an iterator
        over the responses."""
        return Responses(self, request, deadline)

    def _register(self, name: str, size: int) -> None:
        """Register a file in /dev/shm with Triton, which then maps it into its memory."""
        request = service_pb2.SystemSharedMemoryRegisterRequest(
            name=name, key=f"/{name}", byte_size=size
        )
        self._ask("SystemSharedMemoryRegister", request)


class Call:
    """An inference with one reply. `send` starts it without waiting; `result` waits for the reply.
    We never cancel a call, because that could crash Triton (quirks.py).

    A call whose inputs are in regions of shared memory has no deadline in Triton either. Otherwise
    we could not know when Triton stops reading the regions. The caller gives up at its own
    deadline, but Triton finishes the work, and only its answer frees the regions. So an overloaded
    model may work for callers that have given up. This is limited: when MOST_WAITING of a model's
    regions belong to such calls, further inputs are sent in messages.

    For a call without regions, it is cheaper to call only `result`, because gRPC starts a thread
    for each `send`.
    """

    def __init__(self, gateway: TritonGateway, request: InferRequest, deadline: Deadline) -> None:
        self._gateway = gateway
        self._request = request
        self._deadline = deadline
        self._future: Any = None
        self._end = NEVER.end
        self._regions: dict[str, Region] = {}
        if any(len(tensor.data) >= LEAST for tensor in request.inputs):
            self._regions = gateway.shared_memory.write(request.model, request.inputs)

    def send(self) -> None:
        """Send the call, and do not wait for the answer."""
        self._future = self._call(self._gateway.stub.ModelInfer.future)

    def result(self) -> InferReply:
        """Return the reply, after sending the call if necessary. Raise a ServingError or
        BackendDied."""
        try:
            message = self._answer()
        except RegionUnknown:
            self._gateway.shared_memory.forget(self._regions.values())
            message = self._gateway.call(self._send_in_message)
        finally:
            self._release()
        return InferReply.of(message)

    def __iter__(self) -> Iterator[InferReply]:
        """Yield the only reply. (Responses has the same interface, but yields any number of
        replies.)"""
        yield self.result()

    def close(self) -> None:
        """End the call without its reply. If it has been sent, wait for the answer, at most until
        the deadline."""
        if self._future:
            with contextlib.suppress(grpc.RpcError, grpc.FutureTimeoutError):
                self._future.result(self._end - monotonic())
        self._release()

    def give_up(self) -> None:
        """Do nothing, because a call is not cancelled. (Responses has the same interface.)"""

    def _answer(self) -> Any:
        """Send the call, if it has not been sent, and wait for the answer."""
        try:
            if self._regions and not self._future:
                self.send()  # the call has no deadline in Triton, so only a future can time out
            if self._future:
                return self._future.result(self._end - monotonic())
            return self._send_in_message()
        except grpc.FutureTimeoutError as err:
            raise TritonTimeout(TOO_LATE) from err
        except grpc.RpcError as err:
            return self._gateway.repeat(err, again=self._send_in_message)

    def _send_in_message(self) -> Any:
        """Give the regions back, send the call with all inputs in a message, and wait for the
        answer."""
        self._release()
        return self._call(self._gateway.stub.ModelInfer)

    def _call(self, infer: Any) -> Any:
        """Call `infer`, a function of gRPC's stub that returns either the answer or a future. Set
        `_end` to the time (time.monotonic) at which the caller gives up. Raise TooLate if the
        deadline has passed."""
        regions = {name: region.name for name, region in self._regions.items()}
        seconds = self._deadline.left(self._gateway.timeout)
        self._end = monotonic() + seconds
        timeout = None if regions else seconds
        message = self._request.message(regions)
        return infer(message, timeout=timeout, metadata=self._request.metadata)

    def _release(self) -> None:
        """Give the regions back. If the call was sent and Triton has not answered yet, one of
        gRPC's threads gives them back when Triton answers. A broken connection counts as an answer,
        because it means that tritonserver has ended."""
        if not self._regions:
            return
        regions = self._regions.values()
        self._regions = {}
        memory = self._gateway.shared_memory
        future = self._future
        if future is None:
            memory.give_back(regions)
            return
        self._future = None
        if not future.done():
            memory.mark_waiting(self._request.model, regions)
        future.add_done_callback(lambda _: memory.give_back(regions))


class Responses:
    """An iterator over the responses to one request, which yields each when it arrives. To end it
    early, the thread that reads it calls `close`, and any other thread calls `give_up`.

    If Triton is told to cancel a stream while it sends a response, it can crash, or stop answering
    any streams (quirks.py). So a stream that is no longer wanted is read to its end, and is
    cancelled only when it has been quiet for QUIET_SECONDS. After an error it is never cancelled.
    """

    def __init__(self, gateway: TritonGateway, request: InferRequest, deadline: Deadline) -> None:
        self._gateway = gateway
        self._request = request
        self._deadline = deadline
        self._call = self._send()
        self._has_begun = self._has_failed = self._is_given_up = False
        # when the reading thread began to wait for a response (time.monotonic()), or inf if it does
        # not wait
        self._waits_since = math.inf

    def __iter__(self) -> "Responses":
        return self

    def __next__(self) -> InferReply:
        """Wait for the next response. Raise a ServingError or BackendDied. After `give_up`, raise
        TritonUnavailable instead of returning a response."""
        # if there is no connection, send the request again, unless a response has already arrived
        again = None if self._has_begun else self._send_again
        self._waits_since = monotonic()
        try:
            message = self._gateway.call(partial(next, self._call), again)
        finally:
            self._waits_since = math.inf
        self._has_begun = True
        if message.error_message:
            self._has_failed = True
            raise translated_text(message.error_message)
        if self._is_given_up:
            raise TritonUnavailable("the stream was given up")
        return InferReply.of(message.infer_response)

    def _send_again(self) -> Any:
        """Send the request again, and wait for the first response."""
        self._call = self._send()
        self._waits_since = monotonic()
        return next(self._call)

    def _send(self) -> Any:
        # The stream of requests consists of this request alone, so Triton ends the stream of
        # responses after the last response to it.
        requests = iter([self._request.message({})])
        timeout = self._deadline.left(self._gateway.stream_timeout)
        return self._gateway.stub.ModelStreamInfer(
            requests, timeout=timeout, metadata=self._request.metadata
        )

    def give_up(self) -> None:
        """End the stream, whose responses are no longer needed: cancel it in Triton as soon as it
        is quiet. If a response arrives first, `__next__` raises TritonUnavailable."""
        if not self._is_given_up:
            self._is_given_up = True
            threading.Thread(target=self._cancel_when_quiet, name="cancel", daemon=True).start()

    def close(self) -> None:
        """End the stream, and wait for its end. Call this only from the thread that reads the
        responses."""
        self.give_up()
        self._waits_since = monotonic()
        with contextlib.suppress(grpc.RpcError):
            for _ in self._call:
                self._waits_since = monotonic()

    def _cancel_when_quiet(self) -> None:
        while self._call.is_active() and not self._has_failed:
            if monotonic() - self._waits_since >= QUIET_SECONDS:
                self._call.cancel()
                return
            sleep(QUIET_SECONDS)
