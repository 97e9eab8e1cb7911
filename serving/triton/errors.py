"""Translates Triton's errors, from gRPC and from streams, into ours."""

import http.client
import re
from collections.abc import Iterator
from contextlib import contextmanager

import grpc

from serving.errors import (
    InferenceFailed,
    InvalidRequest,
    ModelNotReady,
    NotAcceptable,
    OutOfMemory,
    Overloaded,
    ServingError,
    TritonTimeout,
    TritonUnavailable,
)


class BackendDied(Exception):
    """A process of the model has died, which Triton does not mend. `details` is what Triton said of it. A caller sees
    the ModelRestarting that Registry.report makes of it."""

    def __init__(self, details: str) -> None:
        super().__init__(details)
        self.details = details


class RegionUnknown(Exception):
    """Triton was restarted, so it does not know the shared memory that holds an input. The gateway sends it again."""


ERRORS: dict[grpc.StatusCode, type[ServingError]] = {
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.OUT_OF_RANGE: InvalidRequest,
    grpc.StatusCode.FAILED_PRECONDITION: InvalidRequest,
    grpc.StatusCode.ALREADY_EXISTS: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: ModelNotReady,  # the registry knew the model, so it has just been unloaded
    grpc.StatusCode.DEADLINE_EXCEEDED: TritonTimeout,
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.UNAVAILABLE: TritonUnavailable,
    grpc.StatusCode.CANCELLED: TritonUnavailable,  # Triton cancels its calls when it is stopped
    grpc.StatusCode.ABORTED: TritonUnavailable,
    grpc.StatusCode.UNKNOWN: InferenceFailed,
    grpc.StatusCode.INTERNAL: InferenceFailed,
    grpc.StatusCode.UNIMPLEMENTED: InferenceFailed,
    grpc.StatusCode.DATA_LOSS: InferenceFailed,
    grpc.StatusCode.PERMISSION_DENIED: InferenceFailed,
    grpc.StatusCode.UNAUTHENTICATED: InferenceFailed,
}
# Matched against the whole text, because a caller can put any words into one, such as the name of an input. A process
# that died while it held the lock for which the request waits is not named (python_be.cc, SendMessageToStub).
BEFORE = r"(?:\[request id: .*?\] )?(?:in ensemble '[^']*', )*"
DEAD_BACKEND = re.compile(
    BEFORE + r"(Stub process '[^']*' is not healthy|Stub process is not healthy|Failed to obtain the health mutex)\.?"
)
# The texts of UNAVAILABLE, because an error in a stream has no status: Triton is being stopped (server.cc,
# sequence_batch_scheduler.cc, dynamic_batch_scheduler.cc), or the queue policy in config.pbtxt refuses the request
# (scheduler_utils.cc).
STOPPING = re.compile(
    BEFORE
    + r"(?:Server not ready|Server is stopping, scheduler for model has stopped accepting new inference requests)\.?"
)
QUEUE_POLICY = re.compile(BEFORE + r"(Exceeds maximum queue size|Request timeout expired)\.?")
# What ONNX Runtime and TorchScript say, in NVIDIA's backends and in ours, if an operator gets tensors of sizes that do
# not go together. The model is loaded, so they come from the request: more tokens than the model has positions.
WRONG_SIZES = re.compile(
    r"onnx runtime error 2: "  # INVALID_ARGUMENT
    r"|Non-zero status code returned while running .* node\..*"
    r"(?: was false\.|cannot be reshaped|dimension mismatch|mismatched dimensions|must match|should not be greater"
    r"|Unknown Category)"
    r"|failed in the TorchScript interpreter\..*RuntimeError: (?:The size of tensor |index out of range in self"
    r"|shape '.*' is invalid for|mat1 and mat2 |Calculated padded input size |Given .* expected input)",
    re.DOTALL,
)
# Texts of frameworks, of Triton and of the system; those of Triton's SageMaker endpoint are all among them.
OUT_OF_MEMORY = (
    r"CUDA out of memory",
    r"CUDA_OUT_OF_MEMORY",
    r"(?i:out of memory)",
    r"MemoryError",
    r"OutOfMemory",
    r"(?<![A-Za-z])OOM(?![a-z])",  # not in BLOOM, nor in a model's name like ROOM_3
    r"Dst tensor is not initialized",
    r"Src tensor is not initialized",
    r"CNMEM_STATUS_OUT_OF_MEMORY",
    r"CUDNN_STATUS_NOT_INITIALIZED",
    r"CUBLAS_STATUS_ALLOC_FAILED",
    r"CUBLAS_STATUS_NOT_INITIALIZED",
    r"[Ff]ailed to allocate memory",
    r"No space left on device",
    r"Cannot allocate memory",
    r"bad_alloc",
    r"RESOURCE_EXHAUSTED",
    r"Failed to increase the shared memory pool size",
)
_OUT_OF_MEMORY = re.compile("|".join(OUT_OF_MEMORY))
UNKNOWN_MODEL = "Request for unknown model: "
UNKNOWN_REGION = "Unable to find shared memory region"  # system_shared_memory_manager.cc
DECOUPLED = "doesn't support models with decoupled transaction policy"
ONLY_STREAMS = (
    "the model gives any number of responses to a request (it is decoupled): ask for them with "
    "Accept: text/event-stream or Accept: application/jsonlines"
)
# An error in a stream is a text without a status; Triton 24.10 crashes if asked for the status (triton_grpc_error).
# These are the texts of infer_request.cc about wrong requests.
REQUEST_ID = re.compile(r"^\[request id: .*?\] ")
MISTAKES = re.compile(r"^(\[request id: .*?\] )?(unexpected |expected |incomplete |inference (input|request) |input ')")
NOT_ANSWERING = "tritonserver is not answering; it is being started (again): try again shortly"
TOO_LATE = "Triton did not answer in time; try again, or raise SERVE_REQUEST_TIMEOUT"


def translated(err: grpc.RpcError) -> Exception:
    """Return a ServingError, BackendDied or RegionUnknown for any gRPC error."""
    code, details = err.code(), without_trace(err.details() or "")
    if known := _by_text(details):
        return known
    if DECOUPLED in details:
        return NotAcceptable(ONLY_STREAMS)
    if details.startswith(UNKNOWN_REGION):
        return RegionUnknown(details)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TritonTimeout(TOO_LATE)
    if ERRORS[code] is TritonUnavailable:
        return TritonUnavailable(NOT_ANSWERING)
    return _of_kind(ERRORS[code], details)


def translated_text(message: str) -> Exception:
    """Return a ServingError or BackendDied for an error in a stream, which is a text without a status."""
    details = without_trace(message)
    return _by_text(details) or _of_kind(InvalidRequest if MISTAKES.match(message) else InferenceFailed, details)


def _by_text(details: str) -> Exception | None:
    """Return the error for texts that come with several statuses, and in streams with none."""
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
    """Return an error of that kind. If the model failed, the text may say that memory or /dev/shm was short, or that
    the request's tensors do not fit."""
    if kind is InferenceFailed and is_out_of_memory(message):
        return OutOfMemory(message)
    if kind is InferenceFailed and WRONG_SIZES.search(message):
        return InvalidRequest(message)
    return kind(message)


def is_out_of_memory(message: str) -> bool:
    """Whether an error's text says that memory, or another resource that unloading frees, was short."""
    return bool(_OUT_OF_MEMORY.search(message))


def without_trace(message: str) -> str:
    """Return a message of Triton's without the request's id in front and the python backend's traceback at the end."""
    return REQUEST_ID.sub("", message.split("\n\nAt:\n")[0]).strip()


def never_sent(err: grpc.RpcError) -> bool:
    """Return whether the call failed because there was no connection."""
    return err.code() is grpc.StatusCode.UNAVAILABLE and "failed to connect" in (err.details() or "").lower()


@contextmanager
def http_errors() -> Iterator[None]:
    """Translate a failed connection into TritonUnavailable, and a missing answer into TritonTimeout."""
    try:
        yield
    except TimeoutError as err:
        raise TritonTimeout(TOO_LATE) from err
    except (http.client.HTTPException, OSError) as err:
        raise TritonUnavailable(NOT_ANSWERING) from err
