"""Errors, each in one line that says what was wrong and what to do."""

import json
import re
from typing import Any

from botocore import exceptions as aws

POLICY = "the policy that this program needs is docs/deploy-policy.json"
LOGIN = "run 'aws configure' or 'aws sso login', or name a profile with --profile or AWS_PROFILE"
ABSENT_CODES = {
    "NoSuchEntity",
    "ObjectNotFoundException",
    "RepositoryNotFoundException",
    "ResourceNotFound",
    "ResourceNotFoundException",
    "ImageNotFoundException",
}
ADVICE = (  # by what the error's code contains
    (r"AccessDenied", POLICY),
    (
        r"ExpiredToken|InvalidClientToken|InvalidSignature|SignatureDoesNotMatch|UnrecognizedClient",
        LOGIN,
    ),
    (r"Throttling", "AWS limits the rate of calls: try again in a minute"),
    (
        r"ResourceLimitExceeded",
        "ask for a higher quota in Service Quotas, or take another --instance-type",
    ),
    (r"ModelNotReady", "the model is still being loaded: try again in a minute"),
)
WITHOUT_LOGIN = (aws.NoCredentialsError, aws.PartialCredentialsError, aws.SSOError)


class DeployError(Exception):
    """A command failed; the text says why and what to do. Exit code 1."""


class UsageError(DeployError):
    """The options or the --config file are wrong. Exit code 2."""


def is_absent(error: aws.ClientError) -> bool:
    """Return whether AWS says that the resource does not exist."""
    code = error.response["Error"]["Code"]
    return code in ABSENT_CODES or (
        code.startswith("Validation") and "could not find" in _message(error).lower()
    )


def explain(error: Exception) -> str:
    """Return boto3's error in one line: what AWS says, and what to do."""
    if isinstance(error, aws.ClientError):
        return _explain_reply(error)
    return f"{one_line(str(error))}{f' ({LOGIN})' if isinstance(error, WITHOUT_LOGIN) else ''}"


def one_line(text: str) -> str:
    """Return the text with each run of white space replaced by one space."""
    return " ".join(text.split())


def _message(error: aws.ClientError) -> str:
    return error.response["Error"].get("Message", "")


def _explain_reply(error: aws.ClientError) -> str:
    code = error.response["Error"]["Code"]
    if code == "ModelError":
        reply: dict[str, Any] = dict(error.response)  # has fields that boto3's types do not know
        return _container_error(
            reply.get("OriginalStatusCode"), reply.get("OriginalMessage") or _message(error)
        )
    advice = next((text for pattern, text in ADVICE if re.search(pattern, code)), code)
    return f"{error.operation_name}: {one_line(_message(error)) or code} ({advice})"


def _container_error(status: Any, text: str) -> str:
    """Return the container's own error in one line; its errors are JSON with `error` and `code`."""
    try:
        document = json.loads(text)
        text = f"{document['error']} ({document['code']})"
    except (ValueError, KeyError, TypeError):
        pass
    return f"the container answered {status}: {one_line(text)}"
