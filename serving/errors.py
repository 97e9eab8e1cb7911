"""Every error that a caller can see: one tree, each leaf a status and a code.

A class takes facts and builds the message: what was wrong and what to do. The body that leaves is
`{"error": message, "code": code, "request_id": id}` (see predictor.py).
"""

from collections.abc import Iterable

LONGEST = 2_000  # characters of a text


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "none"


class ConfigError(Exception):
    """What an operator did, who is no caller: a wrong config.pbtxt, archive or client. It has no status: who shows it
    decides. `place` is the file, folder or parameter, `what` is wrong there, `remedy` what to do."""

    def __init__(self, place: object, what: str, remedy: str = "") -> None:
        self.place, self.what, self.remedy = place, " ".join(what.split()), remedy
        super().__init__(" ".join(filter(None, (str(place), self.what))) + (f": {remedy}" if remedy else ""))


class ServingError(Exception):
    """Base of all. `retry_after` (seconds) becomes the Retry-After header. A subclass inherits what it leaves out."""

    status = 500
    code = "internal_error"
    retry_after: int | None = None

    def __init_subclass__(cls, status: int = 0, code: str = "", retry_after: int | None = None) -> None:
        cls.status, cls.code = status or cls.status, code or cls.code
        cls.retry_after = retry_after or cls.retry_after

    def facts(self) -> dict[str, str]:
        """What a caller is told; what the text quotes of the caller's own may be long, and is cut."""
        text = str(self)
        return {"error": text if len(text) <= LONGEST else f"{text[:LONGEST]}…", "code": self.code}


class InvalidRequest(ServingError, status=400, code="invalid_request"):
    """The request itself is wrong; sending it again does not help."""


class DecodingError(ServingError, status=400, code="decoding_error"):
    """One instance cannot be decoded: which, in what field, and what was expected there."""

    def __init__(self, reason: str, *, field: str = "", instance: int | None = None) -> None:
        self.reason, self.field, self.instance = reason, field, instance
        super().__init__(reason)

    def at(self, instance: int, field: str = "") -> "DecodingError":
        """The same error, with its place in the request."""
        return DecodingError(self.reason, field=field or self.field, instance=instance)

    def __str__(self) -> str:
        place = [] if self.instance is None else [f"instance {self.instance}"]
        place += [f"field '{self.field}'"] if self.field else []
        return f"{', '.join(place)}: {self.reason}" if place else self.reason


class Forbidden(ServingError, status=403, code="forbidden"):
    """Managing models is closed to this caller: see SERVE_MANAGEMENT_SECRET."""


class ModelNotFound(ServingError, status=404, code="model_not_found"):
    def __init__(self, name: str, available: Iterable[str]) -> None:
        super().__init__(f"there is no model '{name}'; the models served are: {_listed(available)}")


class VersionNotFound(ServingError, status=404, code="version_not_found"):
    def __init__(self, name: str, version: str, available: Iterable[str]) -> None:
        super().__init__(f"model '{name}' has no version '{version}'; its versions are: {_listed(available)}")


class NotFound(ServingError, status=404, code="not_found"):
    """An unknown route."""


class MethodNotAllowed(ServingError, status=405, code="method_not_allowed"):
    """The route exists, and takes other methods."""


class NotAcceptable(ServingError, status=406, code="not_acceptable"):
    """Accept asks for a form that this model cannot give."""


class PayloadTooLarge(ServingError, status=413, code="payload_too_large"):
    """The body, or what it unpacks to or asks for, is beyond a limit."""


class UnsupportedMediaType(ServingError, status=415, code="unsupported_media_type"):
    """Content-Type or Content-Encoding is not one that is taken."""


class SessionNotFound(ServingError, status=410, code="session_not_found"):
    """The session has ended, was idle for too long, or never began. Not 404: in multi-model mode that would say
    that the model is not loaded."""

    def __init__(self, session_id: str) -> None:
        super().__init__(
            f"there is no session '{session_id}': it has ended, was idle for longer than its model allows "
            "(max_sequence_idle_microseconds), or never began; X-Amzn-SageMaker-Session-Id: NEW_SESSION begins one"
        )


class InferenceFailed(ServingError, status=500, code="inference_failed"):
    """Triton or the model's client failed on a request that looked right."""


class ModelNotReady(ServingError, status=503, code="model_not_ready", retry_after=1):
    """The model is being loaded; waiting helps."""


class ModelFailed(ServingError, status=503, code="model_failed"):
    """The model cannot be loaded, or its client not be made: waiting does not mend it. A start ends with it
    (serving/supervisor/linux.py)."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"model '{name}' cannot be served, and to try again does not help: {reason}")


class TritonUnavailable(ServingError, status=503, code="triton_unavailable", retry_after=1):
    """tritonserver does not answer: it is being started."""


class BackendDied(ServingError, status=503, code="model_restarting", retry_after=1):
    """A process of a model has died, which Triton does not mend. `details` is what Triton said of it, in one line.
    Callers see the ModelRestarting that it becomes (serving/inference/registry.py)."""

    def __init__(self, details: str) -> None:
        super().__init__(f"{details}; it is being started again: try again shortly")
        self.details = details


class ModelRestarting(ServingError, status=503, code="model_restarting", retry_after=2):
    """A process of this model has died; the model alone is being started again."""

    def __init__(self, name: str, reason: str) -> None:
        super().__init__(f"model '{name}' is being started again ({reason}); try again shortly")


class ModelRefused(ServingError, status=503, code="model_refused"):
    """The processes of this model died too often: it is not served until `seconds` have passed."""

    def __init__(self, name: str, reason: str, seconds: int) -> None:
        super().__init__(
            f"model '{name}' is not served: {reason}; it is tried again in {seconds} s, or when it is loaded anew"
        )
        self.retry_after = seconds


class RegionUnknown(TritonUnavailable):
    """Triton was started again since it was told of the shared memory that holds an input."""


class Overloaded(ServingError, status=503, code="overloaded", retry_after=1):
    """More requests than can be worked on; trying again a little later helps."""


class TritonTimeout(ServingError, status=504, code="triton_timeout"):
    """Triton did not answer within the time of the request."""


class TooLate(ServingError, status=504, code="timeout"):
    """The request's time was over before its work was: it waited for its turn."""

    def __init__(self) -> None:
        super().__init__(
            "more requests come than can be answered in time, and this one waited too long: send fewer at once, serve "
            "on more or larger machines, or raise SERVE_REQUEST_TIMEOUT"
        )


class LoadFailed(ServingError, status=400, code="load_failed"):
    """Multi-model mode: Triton cannot load this archive; what it said is in the message."""


class ModelNotLoaded(ServingError, status=404, code="model_not_loaded"):
    """Multi-model mode: the platform loads the model and sends the call again."""

    def __init__(self, name: str) -> None:
        super().__init__(f"the model '{name}' is not loaded; POST /models loads it")


class ModelAlreadyLoaded(ServingError, status=409, code="model_already_loaded"):
    """Multi-model mode: a load of what is loaded."""


class OutOfMemory(ServingError, status=507, code="out_of_memory"):
    """No memory, or another resource that unloading other models frees."""


def by_code(code: str, text: str) -> ServingError:
    """Return the error of that code, as another process of ours described it."""
    kinds = {kind.code: kind for kind in ServingError.__subclasses__()}
    error = Exception.__new__(kinds.get(code, ServingError), text)
    error.args = (text,)
    return error
