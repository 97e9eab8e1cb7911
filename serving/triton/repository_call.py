"""A load or an unload by Triton's SageMaker endpoint, on its way."""

import contextlib
import select
import time
from pathlib import Path

import orjson

from serving.errors import TritonUnavailable
from serving.host.http import LocalConnection
from serving.triton.errors import NOT_ANSWERING, http_errors, without_trace

SAGEMAKER_SECONDS = 3.0  # from Triton's being live to its SageMaker endpoint's being up


class RepositoryCall:
    """A call to Triton's SageMaker endpoint, sent over a connection of its own; `result` waits for the answer."""

    def __init__(self, endpoint: Path, method: str, path: str, body: bytes | None, model: str, timeout: float) -> None:
        self._connection = LocalConnection(endpoint, timeout)
        headers = {"X-Amzn-SageMaker-Target-Model": model, "Content-Type": "application/json"}
        self._connect()
        with http_errors():
            self._connection.request(method, path, body=body, headers=headers)

    def _connect(self) -> None:
        """The endpoint comes up a little later than gRPC."""
        deadline = time.monotonic() + SAGEMAKER_SECONDS
        while True:
            try:
                return self._connection.connect()
            except OSError as err:
                if time.monotonic() > deadline:
                    raise TritonUnavailable(NOT_ANSWERING) from err
                time.sleep(0.05)

    def has_reply(self, seconds: float) -> bool:
        """Whether `result` would return at once, after that time at the latest."""
        connected = self._connection.sock
        return connected is None or bool(select.select([connected], [], [], seconds)[0])

    def result(self) -> tuple[int, str]:
        """The status and, of an error, the message; raises TritonTimeout or TritonUnavailable."""
        with contextlib.closing(self._connection), http_errors():
            reply = self._connection.getresponse()
            body = reply.read()
        try:
            return reply.status, without_trace(str(orjson.loads(body)["error"]))
        except (orjson.JSONDecodeError, KeyError, TypeError):
            return reply.status, body.decode("utf-8", "replace") or f"Triton answered {reply.status}"
