"""All calls to AWS are made here, or in a dry run printed.

A dry run makes no call at all, not even one that reads. So every call names the reply that a dry run assumes
(`assumed`): for `create`, that nothing exists yet; for the other commands, that everything exists.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import boto3
from botocore import UNSIGNED, xform_name
from botocore.client import Config
from botocore.exceptions import ClientError

from deploy.environment import masked
from deploy.errors import DeployError, is_absent

Reply = dict[str, Any]
RETRIES = {"mode": "standard"}  # three attempts, or AWS_MAX_ATTEMPTS
ONCE = {"total_max_attempts": 1}  # no retries: a slow model would get the request again
RUNTIME = "sagemaker-runtime"
READ_TIMEOUT = 70  # seconds; SageMaker itself gives up on a container after 60


class Calls(Protocol):
    """AWS's operations by name, as botocore's models spell them ("sagemaker", "CreateModel")."""

    def call(self, service: str, operation: str, parameters: Reply, assumed: Reply | None = None) -> Reply:
        """The reply; raises botocore's errors."""

    def find(self, service: str, operation: str, parameters: Reply, assumed: Reply | None = None) -> Reply | None:
        """The reply, or None when the resource does not exist."""

    def pages(
        self, service: str, operation: str, parameters: Reply, key: str, assumed: Sequence[Any] = ()
    ) -> list[Any]:
        """All items of a paginated listing; each page holds its items under `key`."""


class LiveCalls:
    """Calls AWS. `endpoints` gives other URLs for some services (a simulator)."""

    def __init__(self, session: boto3.Session, region: str, endpoints: Mapping[str, str]) -> None:
        self._session, self._region, self._endpoints = session, region, endpoints
        self._clients: dict[str, Any] = {}

    def call(self, service: str, operation: str, parameters: Reply, assumed: Reply | None = None) -> Reply:
        reply: Reply = getattr(self._client(service), xform_name(operation))(**parameters)
        return reply

    def find(self, service: str, operation: str, parameters: Reply, assumed: Reply | None = None) -> Reply | None:
        try:
            return self.call(service, operation, parameters)
        except ClientError as err:
            if is_absent(err):
                return None
            raise

    def pages(
        self, service: str, operation: str, parameters: Reply, key: str, assumed: Sequence[Any] = ()
    ) -> list[Any]:
        pages = self._client(service).get_paginator(xform_name(operation)).paginate(**parameters)
        return [item for page in pages for item in page.get(key, ())]

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            self._clients[service] = self._connect(service)
        return self._clients[service]

    def _connect(self, service: str) -> Any:
        options: dict[str, Any] = {"endpoint_url": self._endpoints.get(service), "config": self._config(service)}
        try:
            return self._session.client(service, region_name=self._region, **options)  # type: ignore[call-overload]
        except ValueError as err:
            raise DeployError(f"{err} (check --region and the variables AWS_ENDPOINT_URL…)") from None

    def _config(self, service: str) -> Config:
        """Without credentials, calls to another URL are not signed."""
        unsigned = service in self._endpoints and self._session.get_credentials() is None
        options: dict[str, Any] = {"signature_version": UNSIGNED} if unsigned else {}
        retries = ONCE if service == RUNTIME else RETRIES
        return Config(read_timeout=READ_TIMEOUT, connect_timeout=10, retries=retries, **options)  # type: ignore[arg-type]


class PrintedCalls:
    """Prints each call as a JSON object (service, operation, parameters) instead of making it."""

    def __init__(self, out: Callable[[str], None]) -> None:
        self._out = out

    def call(self, service: str, operation: str, parameters: Reply, assumed: Reply | None = None) -> Reply:
        shown = {"service": service, "operation": operation, "parameters": printable(parameters)}
        self._out(json.dumps(shown, indent=2, ensure_ascii=False))
        return assumed or {}

    def find(self, service: str, operation: str, parameters: Reply, assumed: Reply | None = None) -> Reply | None:
        self.call(service, operation, parameters)
        return assumed

    def pages(
        self, service: str, operation: str, parameters: Reply, key: str, assumed: Sequence[Any] = ()
    ) -> list[Any]:
        self.call(service, operation, parameters)
        return list(assumed)


def printable(value: Any) -> Any:
    """JSON-able parameters: bodies as their size, secrets in a container's environment masked."""
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {key: masked(each) if key == "Environment" else printable(each) for key, each in value.items()}
    return [printable(each) for each in value] if isinstance(value, list | tuple) else value
