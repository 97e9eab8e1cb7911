"""Triton's errors, from gRPC and streams, made ours."""

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from serving.errors import (
    BackendDied,
    InferenceFailed,
    InvalidRequest,
    ModelNotReady,
    NotAcceptable,
    OutOfMemory,
    Overloaded,
    RegionUnknown,
    ServingError,
    TritonTimeout,
    TritonUnavailable,
)
from serving.triton.out_of_memory import is_out_of_memory

ERRORS: dict[grpc.StatusCode, type[ServingError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotReady,  # the registry knew the model: it has just been unloaded
    grpc.StatusCode.DEADLINE_EXCEEDED: TritonTimeout,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: TritonUnavailable,
    grpc.StatusCode.CANCELLED: TritonUnavailable,  # Triton cancels what it has when it is stopped
    grpc.StatusCode.ABORTED: TritonUnavailable,
    grpc.StatusCode.UNKNOWN: InferenceFailed,
    grpc.StatusCode.INTERNAL: InferenceFailed,
    grpc.StatusCode.UNIMPLEMENTED: InferenceFailed,
    grpc.StatusCode.DATA_LOSS: InferenceFailed,
    grpc.StatusCode.PERMISSION_DENIED: InferenceFailed,
    grpc.StatusCode.UNAUTHENTICATED: InferenceFailed,
}
# The whole of the text: a caller can have any words of his own in one, as the name of an input. A process that died
# while it held a lock, on which the request waits, is not named (python_be.cc, SendMessageToStub).
BEFORE = r"(?:\[request id: .*?\] )?(?:in ensemble '[^']*', )*"
DEAD_BACKEND = re.compile(
    BEFORE + r"(Stub process '[^']*' is not healthy|Stub process is not healthy|Failed to obtain the health mutex)\.?"
)
# Of UNAVAILABLE, which an error within a stream does not say: it is stopped (server.cc, sequence_batch_scheduler.cc,
# dynamic_batch_scheduler.cc), or the queue policy of the model's config.pbtxt refuses (scheduler_utils.cc).
STOPPING = re.compile(
    BEFORE
    + r"(?:Server not ready|Server is stopping, scheduler for model has stopped accepting new inference requests)\.?"
)
QUEUE_POLICY = re.compile(BEFORE + r"(Exceeds maximum queue size|Request timeout expired)\.?")
# What ONNX Runtime and TorchScript say, in NVIDIA's backends and in ours, if an operator gets tensors of sizes that do
# not go together. The model is loaded, so they come from the request: more tokens than the model has positions.
WRONG_SIZES = re.compile(
    r"Non-zero status code returned while running .* node\..*"
    r"(?: was false\.|cannot be reshaped|dimension mismatch|mismatched dimensions|must match)"
    r"|failed in the TorchScript interpreter\..*RuntimeError: (?:The size of tensor |index out of range in self"
    r"|shape '.*' is invalid for|mat1 and mat2 |Calculated padded input size |Given .* expected input)",
    re.DOTALL,
)
UNKNOWN_MODEL = "Request for unknown model: "
UNKNOWN_REGION = "Unable to find shared memory region"  # system_shared_memory_manager.cc
DECOUPLED = "doesn't support models with decoupled transaction policy"
ONLY_STREAMS = (
    "the model gives any number of responses to a request (it is decoupled): ask for them with "
    "Accept: text/event-stream or Accept: application/jsonlines"
)
# An error within a stream comes as a text without its status: asked for the status (triton_grpc_error), Triton
# 24.10 crashes. These are the texts of infer_request.cc about a request that is wrong.
REQUEST_ID = re.compile(r"^\[request id: .*?\] ")
MISTAKES = re.compile(r"^(\[request id: .*?\] )?(unexpected |expected |incomplete |inference (input|request) |input ')")
NOT_ANSWERING = "tritonserver is not answering; it is being started (again): try again shortly"
TOO_LATE = "Triton did not answer in time; try again, or raise SERVE_REQUEST_TIMEOUT"


def to_serving_error(err: grpc.RpcError) -> ServingError:
    """One of ours for any gRPC error."""
    code, details = err.code(), without_trace(err.details() or "")
    if known := _by_text(details):
        return known
    if DECOUPLED in details:
        return NotAcceptable(ONLY_STREAMS)
    if details.startswith(UNKNOWN_REGION):
        return RegionUnknown(NOT_ANSWERING)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TritonTimeout(TOO_LATE)
    if ERRORS[code] is TritonUnavailable:
        return TritonUnavailable(NOT_ANSWERING)
    return _of_kind(ERRORS[code], details)


def to_stream_error(message: str) -> ServingError:
    """One of ours for an error within a stream."""
    details = without_trace(message)
    return _by_text(details) or _of_kind(InvalidRequest if MISTAKES.match(message) else InferenceFailed, details)


def _by_text(details: str) -> ServingError | None:
    """What comes with several statuses, and in streams with none."""
    if details.startswith(UNKNOWN_MODEL):
        return ModelNotReady(details)
    if dead := DEAD_BACKEND.fullmatch(details):
        return BackendDied(dead[1])
    if STOPPING.fullmatch(details):
        return TritonUnavailable(NOT_ANSWERING)
    if queue := QUEUE_POLICY.fullmatch(details):
        return Overloaded(f"{queue[1]}: the queue policy in the model's config.pbtxt says so; try again shortly")
    return None


def _of_kind(kind: type[ServingError], message: str) -> ServingError:
    """That error, unless it is one of the model whose text says that memory, or /dev/shm, was short, or that the
    request's tensors do not fit the model."""
    if kind is InferenceFailed and is_out_of_memory(message):
        return OutOfMemory(message)
    if kind is InferenceFailed and WRONG_SIZES.search(message):
        return InvalidRequest(message)
    return kind(message)


def without_trace(message: str) -> str:
    """Triton begins its messages with the request's id, its python backend ends them with a traceback; callers need
    neither."""
    return REQUEST_ID.sub("", message.split("\n\nAt:\n")[0]).strip()


def never_sent(err: grpc.RpcError) -> bool:
    """Whether no connection was there to send it on."""
    return err.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in (err.details() or "").lower()


@contextmanager
def serving_errors() -> Iterator[None]:
    try:
        yield
    except grpc.RpcError as err:
        raise to_serving_error(err) from err


@contextmanager
def http_errors() -> Iterator[None]:
    """A connection that cannot be made in time counts as none, an answer that does not come as one that is late."""
    try:
        yield
    except TimeoutError as err:
        raise TritonTimeout(TOO_LATE) from err
    except (http.client.HTTPException, OSError) as err:
        raise TritonUnavailable(NOT_ANSWERING) from err
