"""Makes read and write calls to AWS. A dry run prints the write calls instead."""

import json
from collections.abc import Mapping
from itertools import chain
from typing import Any

import boto3
from botocore import UNSIGNED, xform_name
from botocore.client import Config
from botocore.exceptions import ClientError, WaiterError
from botocore.validate import ParamValidator

from deploy.environment import masked
from deploy.errors import DeployError, UsageError, is_absent, one_line

Reply = dict[str, Any]
RUNTIME = "sagemaker-runtime"
READ_TIMEOUT = 70  # seconds; SageMaker itself waits 60 s for a container's reply
WAIT = 7200.0  # seconds; AWS itself gives up creating or updating an endpoint sooner


class Aws:
    """Calls AWS's operations. Services and operations are named as in botocore's models
    ("sagemaker", "CreateModel").

    `runtime_url` replaces the URL of the runtime API, for a simulator. `poll` is the number of
    seconds between checks of an endpoint that is changing.
    """

    def __init__(
        self,
        session: boto3.Session,
        region: str,
        *,
        dry_run: bool,
        runtime_url: str | None,
        poll: float,
    ) -> None:
        self.region = region
        self.dry_run = dry_run
        self._session = session
        self._runtime_url = runtime_url
        self._poll = poll
        self._clients: dict[str, Any] = {}

    def read(self, service: str, operation: str, **parameters: Any) -> Reply:
        """Make a call, even in a dry run, and return the reply. Raise botocore's errors."""
        reply: Reply = getattr(self._client(service), xform_name(operation))(**parameters)
        return reply

    def find(self, service: str, operation: str, **parameters: Any) -> Reply | None:
        """Make a call that changes nothing. Return the reply, or None if the resource does not
        exist."""
        try:
            return self.read(service, operation, **parameters)
        except ClientError as err:
            if is_absent(err):
                return None
            raise

    def list(self, service: str, operation: str, key: str, **parameters: Any) -> list[Any]:
        """Return the items of all pages of a listing. `key` is the field of a page that contains
        its items."""
        pages = self._client(service).get_paginator(xform_name(operation)).paginate(**parameters)
        return [*chain.from_iterable(page.get(key, ()) for page in pages)]

    def write(self, service: str, operation: str, parameters: Reply) -> Reply:
        """Make a call that changes something, and return the reply. In a dry run, print the call
        instead, and return an empty reply."""
        if not self.dry_run:
            return self.read(service, operation, **parameters)
        call = {"service": service, "operation": operation, "parameters": printable(parameters)}
        print(json.dumps(call, indent=2, ensure_ascii=False), flush=True)
        return {}

    def remove(self, service: str, operation: str, **parameters: Any) -> None:
        """Make a call that deletes a resource. Ignore the error if the resource does not exist."""
        try:
            self.write(service, operation, parameters)
        except ClientError as err:
            if not is_absent(err):
                raise

    def report(self, text: str) -> None:
        """Print a result to stdout, except in a dry run, which prints only calls there."""
        if not self.dry_run:
            print(text, flush=True)

    def wait(self, waiter: str, endpoint: str) -> None:
        """Wait with one of botocore's waiters, except in a dry run. Raise DeployError if the
        endpoint fails, or after about WAIT seconds."""
        if self.dry_run:
            return
        attempts = int(WAIT / max(self._poll, 1))  # tests poll without a delay
        config = {"Delay": self._poll, "MaxAttempts": attempts}
        try:
            self._client("sagemaker").get_waiter(waiter).wait(
                EndpointName=endpoint, WaiterConfig=config
            )
        except WaiterError as err:
            last: Reply = dict(err.last_response)
            status = last.get("EndpointStatus", "unknown")
            reason = one_line(last.get("FailureReason") or str(err))
            raise DeployError(
                f"the endpoint '{endpoint}' is {status}: {reason} "
                f"(its log: aws logs tail /aws/sagemaker/Endpoints/{endpoint} --since 1h)"
            ) from None

    def check(self, service: str, operation: str, parameters: Reply) -> None:
        """Check `parameters` against botocore's model of the operation. Raise a UsageError that
        lists the invalid fields."""
        report = ParamValidator().validate(parameters, self.input_shape(service, operation))
        if report.has_errors():
            raise UsageError(f"{operation}: {one_line(report.generate_report())}")

    def input_shape(self, service: str, operation: str) -> Any:
        """Return botocore's model of the operation's parameters."""
        return self._client(service).meta.service_model.operation_model(operation).input_shape

    def _client(self, service: str) -> Any:
        if service not in self._clients:
            url = self._runtime_url if service == RUNTIME else None
            self._clients[service] = self._connect(service, url)
        return self._clients[service]

    def _connect(self, service: str, url: str | None) -> Any:
        """Create a client for the service, at `url` if that is given. If there are no credentials,
        do not sign the calls to `url`. Never retry a call to the runtime API. Raise DeployError if
        the region or a URL is invalid."""
        unsigned: dict[str, Any] = {}
        if url and self._session.get_credentials() is None:
            unsigned["signature_version"] = UNSIGNED
        retries: Any = {"total_max_attempts": 1} if service == RUNTIME else {"mode": "standard"}
        config = Config(read_timeout=READ_TIMEOUT, connect_timeout=10, retries=retries, **unsigned)
        try:
            return self._session.client(
                service, region_name=self.region, endpoint_url=url, config=config
            )  # type: ignore[call-overload]
        except ValueError as err:
            raise DeployError(
                f"{err} (check --region and the variables AWS_ENDPOINT_URL…)"
            ) from None


def printable(value: Any) -> Any:
    """Convert the parameters of a call to values that can be printed as JSON. Replace bodies by
    their sizes, and mask secrets in a container's environment."""
    if isinstance(value, bytes):
        return f"<{len(value)} bytes>"
    if isinstance(value, Mapping):
        return {
            key: masked(part) if key == "Environment" else printable(part)
            for key, part in value.items()
        }
    if isinstance(value, list | tuple):
        return [printable(item) for item in value]
    return value
