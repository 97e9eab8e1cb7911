"""Defines every error that a caller can see. nginx.conf, /openapi.json and docs/errors.md must
agree with CODES."""

from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

LONGEST = 2_000  # characters of a message; a longer one is cut


class Row(NamedTuple):
    """Describes an error code: its HTTP status, when it occurs, and what to do about it.
    `retry_after` is in seconds. `also` lists further statuses that nginx returns with this code."""

    status: int
    when: str
    remedy: str
    retry_after: int | None = None
    also: tuple[int, ...] = ()


CODES = {
    "invalid_request": Row(
        400,
        "a parameter or tensor is wrong, or the request names no model or more than one",
        "fix it as the message says",
        also=(414, 431),
    ),
    "decoding_error": Row(
        400, "an instance cannot be decoded", "fix it; the message names the instance and the field"
    ),
    "load_failed": Row(
        400, "multi-model mode: the archive cannot be loaded", "fix it as the message says"
    ),
    "forbidden": Row(
        403,
        "this caller may not manage models",
        "send the header that `SERVE_MANAGEMENT_SECRET` names",
    ),
    "origin_refused": Row(
        403,
        "a page of another origin sent a request other than GET or HEAD, or `Host` is not "
        "localhost on a loopback address",
        "name the origin in `SERVE_ORIGINS`",
    ),
    "not_found": Row(404, "there is no such route", "use one of [these](calling.md#routes)"),
    "model_not_found": Row(
        404,
        "there is no such model",
        "name one that the message lists or, on demand, one in the repository",
    ),
    "version_not_found": Row(
        404,
        "the model has no such version; in multi-model mode this gets 400",
        "name one that the message lists, or none",
    ),
    "model_not_loaded": Row(
        404, "the model is not loaded", "`POST /models`, as the platform does; on demand, call it"
    ),
    "method_not_allowed": Row(
        405, "the route does not support this method", "use one that `Allow` lists"
    ),
    "not_acceptable": Row(
        406,
        "the model cannot return what `Accept` asks for",
        "accept JSON, or a type that the message lists",
    ),
    "model_already_loaded": Row(
        409, "multi-model mode: the model is loaded already", "call it, or unload it first"
    ),
    "session_not_found": Row(
        410, "the session has ended, was idle too long, or never began", "begin a new session"
    ),
    "payload_too_large": Row(
        413,
        "the body or the answer exceeds a limit on bytes, parts or memory, or the route takes no "
        "body",
        "send less at a time, or raise [the limit](security.md#bounds)",
    ),
    "unsupported_media_type": Row(
        415,
        "the Content-Type or Content-Encoding is not supported",
        "send one that the message lists",
    ),
    "internal_error": Row(
        500,
        "the server failed, or its disk (`SERVE_RUN_DIR`) is full",
        "search the log for the request id",
    ),
    "inference_failed": Row(
        500,
        "the model or its client failed on a valid request",
        "search the log for the request id",
    ),
    "overloaded": Row(
        503,
        "too many requests are in flight, or they take too much memory",
        "retry; send fewer at once, or raise the limit that the message names",
        retry_after=1,
    ),
    "too_many_connections": Row(
        503,
        "nginx holds too many requests, uploads included",
        "retry; send fewer at once, or raise `SERVE_MAX_CONCURRENCY`",
        retry_after=1,
    ),
    "queue_full": Row(
        503,
        "the model's queue is full, or the request waited in it too long",
        "retry, or change the queue policy in config.pbtxt",
        retry_after=1,
    ),
    "model_not_ready": Row(503, "the model is being loaded", "retry", retry_after=1),
    "model_restarting": Row(503, "a process of the model died", "retry", retry_after=2),
    "model_refused": Row(
        503,
        "the model's processes died too often",
        "find the cause in the log; `Retry-After` says when the model is tried again",
        retry_after=300,
    ),
    "model_failed": Row(
        503,
        "the model cannot be loaded, or its client cannot be created",
        "fix the model, and restart the container unless models load on demand or `SERVE_RELOAD` "
        "is on",
    ),
    "triton_unavailable": Row(
        503, "tritonserver is starting or restarting", "retry", retry_after=1
    ),
    "frontend_unavailable": Row(503, "gunicorn is starting or restarting", "retry", retry_after=1),
    "timeout": Row(
        504,
        "the request waited longer than `SERVE_REQUEST_TIMEOUT` for its turn",
        "send fewer at once",
    ),
    "triton_timeout": Row(
        504, "Triton took more than 90% of `SERVE_REQUEST_TIMEOUT`", "retry, or raise the limit"
    ),
    "out_of_memory": Row(
        507,
        "loading or calling the model needs more memory, or more of `/dev/shm`, than is available",
        "unload other models, or use a larger machine",
    ),
}


class ServingError(Exception):
    """An error that a caller sees. Its message is `text` with `args` filled in. CODES[code]
    determines its HTTP status and its Retry-After header (ModelRefused sets its own)."""

    text: ClassVar[str] = "{}"
    code: ClassVar[str] = "internal_error"
    status = CODES[code].status
    retry_after = CODES[code].retry_after

    def __init_subclass__(cls, code: str) -> None:
        cls.code = code
        cls.status = CODES[code].status
        cls.retry_after = CODES[code].retry_after
        # keep the class in this module if a model's own client.py defines another for its code
        KINDS.setdefault(code, cls)

    def __str__(self) -> str:
        return self.text.format(*self.args)

    def facts(self) -> dict[str, Any]:
        """Return the arguments with which `rebuilt` recreates this error in another process."""
        return {"code": self.code, "facts": self.args}

    def fields(self) -> dict[str, str]:
        """Return the fields of an error reply: `error`, the message, and `code`. A long message is
        truncated, because it may quote the caller's input."""
        text = str(self)
        if len(text) > LONGEST:
            text = f"{text[:LONGEST]}…"
        return {"error": text, "code": self.code}


KINDS: dict[str, type[ServingError]] = {ServingError.code: ServingError}


def rebuilt(code: str, facts: Sequence[Any]) -> ServingError:
    """Recreate an error that another process of this container raised. `code` and `facts` are what
    its method facts() returned."""
    return KINDS[code](*facts)


class ConfigError(Exception):
    """A mistake that the operator or a model's author made in `source`, which is a file, a folder
    or a parameter. `problem` says what is wrong, and `remedy` how to fix it."""

    def __init__(self, source: object, problem: str, remedy: str = "") -> None:
        self.source = source
        self.problem = " ".join(problem.split())
        self.remedy = remedy
        text = f"{source} {self.problem}".strip()
        if remedy:
            text += f": {remedy}"
        super().__init__(text)


def described(err: BaseException) -> str:
    """Return the error's message. If the error is not one of this module, put its type first."""
    is_ours = isinstance(err, ServingError | ConfigError)
    return str(err) if is_ours else f"{type(err).__name__}: {err}"


class InvalidRequest(ServingError, code="invalid_request"): ...


class Forbidden(ServingError, code="forbidden"): ...


class NotFound(ServingError, code="not_found"): ...


class MethodNotAllowed(ServingError, code="method_not_allowed"): ...


class NotAcceptable(ServingError, code="not_acceptable"): ...


class PayloadTooLarge(ServingError, code="payload_too_large"): ...


class UnsupportedMediaType(ServingError, code="unsupported_media_type"): ...


class InferenceFailed(ServingError, code="inference_failed"): ...


class ModelNotReady(ServingError, code="model_not_ready"): ...


class TritonUnavailable(ServingError, code="triton_unavailable"): ...


class Overloaded(ServingError, code="overloaded"): ...


class QueueFull(ServingError, code="queue_full"): ...


class TritonTimeout(ServingError, code="triton_timeout"): ...


class LoadFailed(ServingError, code="load_failed"): ...


class ModelAlreadyLoaded(ServingError, code="model_already_loaded"): ...


class ModelNotFound(ServingError, code="model_not_found"): ...


class VersionNotFound(ServingError, code="version_not_found"): ...


class TooLate(ServingError, code="timeout"): ...


class OutOfMemory(ServingError, code="out_of_memory"): ...


class DecodingError(ServingError, code="decoding_error"):
    def __init__(self, reason: str, field: str = "", instance: int | None = None) -> None:
        self.reason = reason
        self.field = field
        self.instance = instance
        super().__init__(reason, field, instance)

    def at(self, instance: int, field: str = "") -> "DecodingError":
        """Return a copy of this error for this `instance` and, if it is given, this `field`."""
        return DecodingError(self.reason, field=field or self.field, instance=instance)

    def __str__(self) -> str:
        position = []
        if self.instance is not None:
            position.append(f"instance {self.instance}")
        if self.field:
            position.append(f"field '{self.field}'")
        return ": ".join(filter(None, [", ".join(position), self.reason]))


class ModelNotLoaded(ServingError, code="model_not_loaded"):
    """Tells SageMaker, by its status 404, to load the model and repeat the call."""

    text = (
        "the model '{}' is not loaded; POST /models loads it, or with SERVE_MODELS=on-demand its "
        "first call"
    )


class ModelFailed(ServingError, code="model_failed"):
    """Reports a model that cannot work until it is corrected. If /ping returns this error during
    startup, `serve` gives up (serving/pid1/system.py)."""

    text = "model '{}' cannot be served until it is corrected: {}"

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(name, reason)
        self.reason = reason


class ModelRestarting(ServingError, code="model_restarting"):
    text = "model '{}' is being restarted ({}); try again shortly"


class ModelRefused(ServingError, code="model_refused"):
    text = "model '{}' is not served: {}; it is loaded again in {} s"

    def __init__(self, name: str, reason: str, seconds: int) -> None:
        super().__init__(name, reason, seconds)
        self.retry_after = seconds


class SessionNotFound(ServingError, code="session_not_found"):
    """Has the status 410, because SageMaker takes a 404 in multi-model mode to mean that the model
    is not loaded."""

    text = (
        "there is no session '{}': it has ended, was idle for longer than "
        "its model allows (max_sequence_idle_microseconds), or never began; "
        "X-Amzn-SageMaker-Session-Id: NEW_SESSION begins one"
    )
