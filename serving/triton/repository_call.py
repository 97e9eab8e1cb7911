"""A load or an unload by Triton's SageMaker endpoint, in progress."""

import contextlib
import select
import time
from pathlib import Path

import orjson

from serving.errors import TritonUnavailable
from serving.host.network import LocalConnection
from serving.triton.errors import NOT_ANSWERING, http_errors, without_trace

SAGEMAKER_SECONDS = 3.0  # Triton's SageMaker endpoint comes up so much later than gRPC


class RepositoryCall:
    """A call to Triton's SageMaker endpoint, on its own connection. `result` waits for the answer."""

    def __init__(self, endpoint: Path, method: str, path: str, body: bytes | None, model: str, timeout: float) -> None:
        self._connection = LocalConnection(endpoint, timeout)
        headers = {"X-Amzn-SageMaker-Target-Model": model, "Content-Type": "application/json"}
        self._connect()
        with http_errors():
            self._connection.request(method, path, body=body, headers=headers)

    def _connect(self) -> None:
        """Connect, and wait for an endpoint that is still coming up."""
        deadline = time.monotonic() + SAGEMAKER_SECONDS
        while True:
            try:
                return self._connection.connect()
            except OSError as err:
                if time.monotonic() > deadline:
                    raise TritonUnavailable(NOT_ANSWERING) from err
                time.sleep(0.05)

    def has_reply(self, seconds: float) -> bool:
        """Return whether `result` would return at once. Wait for that up to `seconds`."""
        connected = self._connection.sock
        return connected is None or bool(select.select([connected], [], [], seconds)[0])

    def result(self) -> tuple[int, str]:
        """Return the status and the message of an error. Raise TritonTimeout or TritonUnavailable."""
        with contextlib.closing(self._connection), http_errors():
            reply = self._connection.getresponse()
            body = reply.read()
        try:
            return reply.status, without_trace(str(orjson.loads(body)["error"]))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return reply.status, body.decode("utf-8", "replace") or f"Triton answered {reply.status}"
