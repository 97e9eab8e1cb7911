"""A request straight to a container, without AWS: what `docker run` or `make run` has started."""

from collections.abc import Iterator

import urllib3

from deploy.calls import READ_TIMEOUT
from deploy.errors import DeployError, container_error, one_line
from deploy.request import Request

# InvokeEndpoint's fields as SageMaker hands them to the container (serving/bodies/invocation.py reads them).
HEADERS = {
    "Accept": "Accept",
    "CustomAttributes": "X-Amzn-SageMaker-Custom-Attributes",
    "TargetModel": "X-Amzn-SageMaker-Target-Model",
    "InferenceId": "X-Amzn-SageMaker-Inference-Id",
}


def send(url: str, request: Request) -> urllib3.BaseHTTPResponse:
    """The container's reply, whose body is not read yet; raises DeployError when it is an error or there is none."""
    headers = {HEADERS[field]: text for field, text in request.fields.items()} | {"Content-Type": request.content_type}
    target = f"{url.rstrip('/')}/invocations"
    try:
        reply = urllib3.PoolManager(timeout=READ_TIMEOUT, retries=False).request(
            "POST", target, body=request.body, headers=headers, preload_content=False
        )
    except (urllib3.exceptions.HTTPError, ValueError) as err:
        raise DeployError(f"no answer from {target}: {one_line(str(err))}") from None
    if reply.status != 200:
        raise DeployError(container_error(reply.status, reply.read().decode(errors="replace")))
    return reply


def parts(reply: urllib3.BaseHTTPResponse) -> Iterator[bytes]:
    """The reply's body as it comes."""
    while part := reply.read1(65536):
        yield part
