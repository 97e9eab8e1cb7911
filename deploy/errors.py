"""Describes each error in one line, which says what was wrong and what to do."""

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
ADVICE = (  # pairs of a pattern for the error's code, and what to do
    (r"AccessDenied", POLICY),
    (
        r"ExpiredToken|InvalidClientToken|InvalidSignature|SignatureDoesNotMatch|"
        r"UnrecognizedClient",
        LOGIN,
    ),
    (r"Throttling", "AWS limits the rate of calls: try again in a minute"),
    (
        r"ResourceLimitExceeded",
        "ask for a higher quota in Service Quotas, or take another --instance-type",
    ),
    (r"ModelNotReady", "the model is still being loaded: try again in a minute"),
)
WITHOUT_ACCOUNT = "; docs/deploy.md shows how to try a dry run without an account"
WITHOUT_LOGIN = (aws.NoCredentialsError, aws.PartialCredentialsError, aws.SSOError)


class DeployError(Exception):
    """Raised if a command fails. The message says why and what to do. The exit code is 1."""


class UsageError(DeployError):
    """Raised if the options or the --config file are invalid. The exit code is 2."""


def is_absent(error: aws.ClientError) -> bool:
    """Return whether AWS says that the resource does not exist."""
    code = error.response["Error"]["Code"]
    if code.startswith("Validation"):  # SageMaker answers so for a missing endpoint or model
        return "could not find" in _message(error).lower()
    return code in ABSENT_CODES


def explain(error: Exception) -> str:
    """Describe a boto3 error in one line: what AWS says, and what to do."""
    if isinstance(error, aws.ClientError):
        return _explain_reply(error)
    text = one_line(str(error))
    return f"{text} ({LOGIN}{WITHOUT_ACCOUNT})" if isinstance(error, WITHOUT_LOGIN) else text


def one_line(text: str) -> str:
    """Return the text with each run of whitespace replaced by one space."""
    return " ".join(text.split())


def _message(error: aws.ClientError) -> str:
    return error.response["Error"].get("Message", "")


def _explain_reply(error: aws.ClientError) -> str:
    code = error.response["Error"]["Code"]
    if code == "ModelError":
        # convert it to a dict, because boto3's types lack some of the fields
        reply: dict[str, Any] = dict(error.response)
        text = reply.get("OriginalMessage") or _message(error)
        return _container_error(reply.get("OriginalStatusCode"), text)
    advice = next((text for pattern, text in ADVICE if re.search(pattern, code)), code)
    message = one_line(_message(error)) or code
    return f"{error.operation_name}: {message} ({advice})"


def _container_error(status: Any, text: str) -> str:
    """Describe in one line an error with which the container has answered. The container's errors
    are JSON objects with the fields `error` and `code`."""
    try:
        document = json.loads(text)
        text = f"{document['error']} ({document['code']})"
    except (ValueError, KeyError, TypeError):
        pass
    return f"the container answered {status}: {one_line(text)}"
