"""An asynchronous invocation: puts the body into S3, makes the call, waits for the result or the failure in S3."""

import uuid

from deploy.calls import RUNTIME, Reply
from deploy.context import Context
from deploy.errors import DeployError, UsageError, one_line
from deploy.request import Request
from deploy.waiting import elapsed

POLL = 2.0  # seconds between two polls
ASSUMED = {"OutputLocation": "s3://BUCKET/output", "FailureLocation": "s3://BUCKET/failure"}


def invoke(context: Context, request: Request, folder: str, seconds: float) -> Reply | None:
    """GetObject's reply for the result; None in a dry run.

    Raises DeployError with the container's failure, or when there is neither result nor failure after `seconds`.
    """
    bucket, prefix = split(folder)
    key = f"{prefix.rstrip('/')}/{uuid.uuid4()}".lstrip("/")
    upload = {"Bucket": bucket, "Key": key, "Body": request.body, "ContentType": request.content_type}
    context.calls.call("s3", "PutObject", upload)
    parameters = {
        "EndpointName": context.name,
        "InputLocation": f"s3://{bucket}/{key}",
        "ContentType": request.content_type,
        **request.fields,
    }
    reply = context.calls.call(RUNTIME, "InvokeEndpointAsync", parameters, ASSUMED)
    context.say(f"the result will be {reply['OutputLocation']}")
    return _result(context, reply, seconds)


def split(url: str) -> tuple[str, str]:
    """s3://BUCKET/KEY -> bucket and key."""
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    if scheme != "s3" or not bucket:
        raise UsageError(f"'{url}' is not an S3 location: s3://BUCKET/PREFIX/")
    return bucket, key


def _result(context: Context, reply: Reply, seconds: float) -> Reply | None:
    started = context.clock()
    while True:
        if done := _get(context, reply["OutputLocation"], {}):
            return done
        if done is not None:
            return None
        failure = _get(context, reply["FailureLocation"], None) if reply.get("FailureLocation") else None
        if failure:
            raise DeployError(f"the request failed: {one_line(failure['Body'].read().decode(errors='replace'))}")
        if context.clock() - started > seconds:
            raise DeployError(f"no result after {elapsed(seconds)}; it may still appear at {reply['OutputLocation']}")
        context.sleep(POLL)


def _get(context: Context, url: str, assumed: Reply | None) -> Reply | None:
    bucket, key = split(url)
    return context.calls.find("s3", "GetObject", {"Bucket": bucket, "Key": key}, assumed)
