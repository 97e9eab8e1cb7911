"""A request straight to a container that `docker run` or `make run` started, without AWS."""

from collections.abc import Iterator

import urllib3

from deploy.calls import READ_TIMEOUT
from deploy.errors import DeployError, container_error, one_line
from deploy.request import Request

# The headers in which SageMaker passes InvokeEndpoint's fields to the container.
HEADERS = {
    "Accept": "Accept",
    "CustomAttributes": "X-Amzn-SageMaker-Custom-Attributes",
    "TargetVariant": "X-Amzn-SageMaker-Target-Variant",
    "TargetModel": "X-Amzn-SageMaker-Target-Model",
    "InferenceId": "X-Amzn-SageMaker-Inference-Id",
    "InferenceComponentName": "X-Amzn-SageMaker-Inference-Component",
}


def send(url: str, request: Request) -> urllib3.BaseHTTPResponse:
    """The container's reply with its body still unread; raises DeployError for an error or without a reply."""
    headers = {HEADERS[field]: text for field, text in request.fields.items()} | {"Content-Type": request.content_type}
    target = f"{url.rstrip('/')}/invocations"
    try:
        reply = urllib3.PoolManager(timeout=READ_TIMEOUT, retries=False).request(
            "POST", target, body=request.body, headers=headers, preload_content=False
        )
    except (urllib3.exceptions.HTTPError, ValueError) as err:
        raise DeployError(f"no reply from {target}: {one_line(str(err))}") from None
    if reply.status != 200:
        raise DeployError(container_error(reply.status, reply.read().decode(errors="replace")))
    return reply


def parts(reply: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """The reply's body, part by part as it arrives."""
    while part := reply.read1(65536):
        yield part
