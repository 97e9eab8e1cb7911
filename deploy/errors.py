"""What goes wrong, in one line: what it was and what to do."""

import json
from typing import Any

from botocore import exceptions as aws

POLICY = "the policy that this program needs is docs/deploy-policy.json"
LOGIN = "run 'aws configure' or 'aws sso login', or name a profile with --profile or AWS_PROFILE"
ABSENT_CODES = {
    "NoSuchEntity",
    "NoSuchKey",
    "404",
    "ObjectNotFoundException",
    "RepositoryNotFoundException",
    "ResourceNotFoundException",
    "ResourceNotFound",
    "ImageNotFoundException",
}
ADVICE = {
    "403": POLICY,
    "AccessDenied": POLICY,
    "AccessDeniedException": POLICY,
    "ExpiredToken": LOGIN,
    "ExpiredTokenException": LOGIN,
    "InvalidClientTokenId": LOGIN,
    "UnrecognizedClientException": LOGIN,
    "InvalidSignatureException": LOGIN,
    "SignatureDoesNotMatch": LOGIN,
    "Throttling": "AWS limits the rate of calls: try again in a minute",
    "ThrottlingException": "AWS limits the rate of calls: try again in a minute",
    "TooManyRequestsException": "AWS limits the rate of calls: try again in a minute",
    "ResourceLimitExceeded": "ask for a higher quota in Service Quotas, or take another --instance-type",
    "LimitExceededException": "ask for a higher quota in Service Quotas",
    "ModelNotReadyException": "the model is still being loaded: try again in a minute",
    "ServiceUnavailable": "try again in a minute",
    "NoSuchBucket": "create the bucket, or name another",
}
KINDS: tuple[tuple[type[Exception], str], ...] = (
    (aws.NoCredentialsError, f"no AWS credentials were found: {LOGIN}"),
    (aws.PartialCredentialsError, f"the AWS credentials are not complete: {LOGIN}"),
    (aws.SSOError, "the AWS sign-in has ended: run 'aws sso login'"),
    (aws.TokenRetrievalError, "the AWS sign-in has ended: run 'aws sso login'"),
    (aws.NoRegionError, "no AWS region is set: give --region, or set AWS_REGION"),
)


class DeployError(Exception):
    """A command could not do its work; the text says why and what to do. Exit code 1."""


class UsageError(DeployError):
    """A command line that makes no sense. Exit code 2."""


def is_absent(error: aws.ClientError) -> bool:
    """Whether AWS says that the thing asked for does not exist."""
    code = error.response["Error"]["Code"]
    return code in ABSENT_CODES or (code.startswith("Validation") and "could not find" in _message(error).lower())


def explain(error: Exception) -> str:
    """An error of boto3 as one line: what AWS says, and what to do."""
    if isinstance(error, aws.ClientError):
        return _explain_reply(error)
    for kind, text in KINDS:
        if isinstance(error, kind):
            return text
    return one_line(str(error))


def one_line(text: str) -> str:
    """The text with every run of white space as one space."""
    return " ".join(text.split())


def _message(error: aws.ClientError) -> str:
    return error.response["Error"].get("Message", "")


def _explain_reply(error: aws.ClientError) -> str:
    code = error.response["Error"]["Code"]
    if code == "ModelError":
        reply: dict[str, Any] = dict(error.response)  # with fields of SageMaker's own
        return container_error(reply.get("OriginalStatusCode"), reply.get("OriginalMessage") or _message(error))
    if code.startswith("Validation") and "not found" in _message(error) and error.operation_name.startswith("Invoke"):
        return f"{one_line(_message(error))} ('python -m deploy status' shows what there is; check --name and --region)"
    text = f"{error.operation_name}: {one_line(_message(error)) or code}"
    return f"{text} ({ADVICE[code]})" if code in ADVICE else f"{text} ({code})"


def container_error(status: Any, text: str) -> str:
    """What the container itself answered; its errors are JSON with `error` and `code`."""
    try:
        document = json.loads(text)
        text = f"{document['error']} ({document['code']})"
    except (ValueError, KeyError, TypeError):
        pass
    return f"the container answered {status}: {one_line(text)}"
