"""Defines the errors of the sagemaker-runtime API, in the format that botocore expects
(rest-json)."""

from functools import partial
from typing import Any

# fictitious values for messages and ARNs
ACCOUNT = "123456789012"
REGION = "us-east-1"
CONTAINER = "primary"  # the platform's name for an endpoint's only container
TOO_LATE = (
    f"Your invocation timed out while waiting for a response from container {CONTAINER}. "
    "Review the latency metrics for each container in Amazon CloudWatch, resolve the issue, "
    "and try again."
)


class PlatformError(Exception):
    """An error that the API returns to its caller. `status` and `code` are those in botocore's
    service model."""

    def __init__(self, status: int, code: str, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.code = code

    def document(self) -> dict[str, Any]:
        return {"Message": str(self)}


ValidationError = partial(PlatformError, 400, "ValidationError")  # the call is invalid
# the model is still being loaded
ModelNotReady = partial(PlatformError, 429, "ModelNotReadyException")
# the connection to the container broke, or the container ended
InternalFailure = partial(PlatformError, 500, "InternalFailure")
# no container accepts the call
ServiceUnavailable = partial(PlatformError, 503, "ServiceUnavailable")


class ModelError(PlatformError):
    """Raised if the container replies with an error or too large a body, or does not reply in time.
    `original_status` is the status of its reply, or 0 if it did not reply in time."""

    def __init__(self, endpoint: str, original_status: int, original: bytes | str) -> None:
        text = original if isinstance(original, str) else original.decode("utf-8", "replace")
        self.endpoint = endpoint
        self.original_status = original_status
        self.original = text
        self.is_client_error = 400 <= original_status < 500
        kind = "client" if self.is_client_error else "server"
        content = "and could not load the entire response body"
        if text:
            content = f'with message "{text}"'
        super().__init__(
            424,
            "ModelError",
            f"Received {kind} error ({original_status}) from {CONTAINER} {content}. See the "
            f"log of the simulator (on AWS: /aws/sagemaker/Endpoints/{endpoint} in account "
            f"{ACCOUNT}) for more information.",
        )

    def document(self) -> dict[str, Any]:
        code = "CLIENT_ERROR" if self.is_client_error else "INTERNAL_FAILURE"
        log_group = f"/aws/sagemaker/Endpoints/{self.endpoint}"
        return {
            "ErrorCode": f"{code}_FROM_MODEL",
            "LogStreamArn": f"arn:aws:logs:{REGION}:{ACCOUNT}:log-group:{log_group}",
            "Message": str(self),
            "OriginalMessage": self.original,
            "OriginalStatusCode": self.original_status,
        }
