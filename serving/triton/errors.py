"""Translates Triton's errors, from gRPC and from streams, into ours. The texts that it knows are in quirks.py."""

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
from serving.triton import quirks


class BackendDied(Exception):
    """Signals that a process of the model has died. `details` is Triton's text about it. A caller sees the
    ModelRestarting that Registry.report makes of it."""

    def __init__(self, details: str) -> None:
        super().__init__(details)
        self.details = details


class RegionUnknown(Exception):
    """Signals that Triton was restarted and does not know the memory of an input. The gateway sends it again."""


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
ONLY_STREAMS = (
    "the model gives any number of responses to a request (it is decoupled): ask for them with "
    "Accept: text/event-stream or Accept: application/jsonlines"
)
OUT_OF_MEMORY = re.compile("|".join(quirks.OUT_OF_MEMORY))
NOT_ANSWERING = "tritonserver does not answer: it is starting or restarting; try again shortly"
TOO_LATE = "Triton did not answer in time; try again, or raise SERVE_REQUEST_TIMEOUT"


def translated(err: grpc.RpcError) -> Exception:
    """Return a ServingError, BackendDied or RegionUnknown for any gRPC error."""
    code, details = err.code(), without_trace(err.details() or "")
    if known := _by_text(details):
        return known
    if quirks.DECOUPLED in details:
        return NotAcceptable(ONLY_STREAMS)
    if details.startswith(quirks.UNKNOWN_REGION):
        return RegionUnknown(details)
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return TritonTimeout(TOO_LATE)
    if ERRORS[code] is TritonUnavailable:
        return TritonUnavailable(NOT_ANSWERING)
    return _of_kind(ERRORS[code], details)


def translated_text(message: str) -> Exception:
    """Return a ServingError or BackendDied for an error in a stream, which is a text without a status."""
    details = without_trace(message)
    return _by_text(details) or _of_kind(InvalidRequest if quirks.MISTAKES.match(message) else InferenceFailed, details)


def _by_text(details: str) -> Exception | None:
    """Return the error for texts that come with several statuses, and in streams with none."""
    if details.startswith(quirks.UNKNOWN_MODEL):
        return ModelNotReady(details)
    if dead := quirks.DEAD_PROCESS.fullmatch(details):
        return BackendDied(dead[1])
    if quirks.STOPPING.fullmatch(details):
        return TritonUnavailable(NOT_ANSWERING)
    if queue := quirks.QUEUE_POLICY.fullmatch(details):
        return Overloaded(f"{queue[1]}: the queue policy in the model's config.pbtxt says so; try again shortly")
    return None


def _of_kind(kind: type[ServingError], message: str) -> ServingError:
    """Return an error of that kind. If the model failed, the text may say that memory or /dev/shm was short, or that
    the request's tensors do not fit."""
    if kind is InferenceFailed and is_out_of_memory(message):
        return OutOfMemory(message)
    if kind is InferenceFailed and quirks.WRONG_SIZES.search(message):
        return InvalidRequest(message)
    return kind(message)


def is_out_of_memory(message: str) -> bool:
    """Return whether an error's text says that memory, or another resource that unloading frees, was short."""
    return bool(OUT_OF_MEMORY.search(message))


def without_trace(message: str) -> str:
    """Return a message of Triton's without the request's id in front and the python backend's traceback at the end."""
    return quirks.REQUEST_ID.sub("", message.split(quirks.TRACEBACK)[0]).strip()


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
