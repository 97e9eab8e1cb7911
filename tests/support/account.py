"""Simulates an AWS account in this process: moto, a record of the calls, and replies for calls that
moto does not support."""

import json
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from botocore.awsrequest import AWSResponse
from botocore.loaders import create_loader
from botocore.session import get_session
from moto import mock_aws

from deploy.__main__ import main

REGION = "eu-west-1"
IMAGE = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/triton-multi-model:1.0"
Call = tuple[str, str, dict[str, Any]]  # service, operation, parameters
# parses each service's description only once, because SageMaker's takes 0.2 s
LOADER = create_loader()


def session() -> boto3.Session:
    core = get_session()
    core.register_component("data_loader", LOADER)
    return boto3.Session(region_name=REGION, botocore_session=core)


class Account:
    """A simulated account. `calls` are the calls that `deploy` made. The replies in `scripted`,
    keyed by operation, take precedence over moto's, each once."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.scripted: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._test_session = session()
        self._deploy_session = session()
        events = self._deploy_session.events
        events.register("before-parameter-build.*.*", self._record)
        events.register("before-call.*.*", self._scripted_reply)  # type: ignore[arg-type]

    def client(self, service: str) -> Any:
        """Return a client for the test's own calls, which are not recorded."""
        return self._test_session.client(service)  # type: ignore[call-overload]

    def deploy(self, *words: str) -> int:
        """Run a command of `python -m deploy`. Return its exit code."""
        return main(words, lambda profile_name: self._deploy_session, poll=0)

    def writes(self) -> list[Call]:
        """Return the calls that change something."""
        return [call for call in self.calls if not call[1].startswith(("Describe", "List", "Get"))]

    def inventory(self) -> dict[str, Any]:
        """Return everything that exists in the account, by kind."""
        sagemaker = self.client("sagemaker")
        scaling = self.client("application-autoscaling")
        endpoints = sagemaker.list_endpoints()["Endpoints"]
        configs = sagemaker.list_endpoint_configs()["EndpointConfigs"]
        models = sagemaker.list_models()["Models"]
        targets = scaling.describe_scalable_targets(ServiceNamespace="sagemaker")
        policies = scaling.describe_scaling_policies(ServiceNamespace="sagemaker")
        repositories = self.client("ecr").describe_repositories()["repositories"]
        return {
            "endpoints": {endpoint["EndpointName"] for endpoint in endpoints},
            "configs": {config["EndpointConfigName"] for config in configs},
            "models": {model["ModelName"] for model in models},
            "targets": targets["ScalableTargets"],
            "policies": policies["ScalingPolicies"],
            "repositories": {repository["repositoryName"] for repository in repositories},
        }

    def described(self, name: str = "triton-multi-model") -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the configuration and the model of an endpoint."""
        sagemaker = self.client("sagemaker")
        config_name = sagemaker.describe_endpoint(EndpointName=name)["EndpointConfigName"]
        config = sagemaker.describe_endpoint_config(EndpointConfigName=config_name)
        model_name = config["ProductionVariants"][0]["ModelName"]
        return config, sagemaker.describe_model(ModelName=model_name)

    def _record(self, params: dict[str, Any], model: Any, **_: Any) -> None:
        self.calls.append((model.service_model.service_name, model.name, dict(params)))

    def _scripted_reply(
        self, model: Any, params: dict[str, Any], **_: Any
    ) -> tuple[AWSResponse, dict[str, Any]] | None:
        """Return a reply for botocore to use without a call, as its Stubber does, or None to pass
        the call on to moto."""
        replies = self.scripted[model.name]
        if replies:
            reply = replies.pop(0)
            return _response(400 if "Error" in reply else 200), reply
        if model.name == "UpdateEndpoint":
            return _response(200), self._update(json.loads(params["body"]))
        return None

    def _update(self, request: dict[str, Any]) -> dict[str, Any]:
        """Implement UpdateEndpoint, which moto lacks: create the endpoint again with the new
        configuration."""
        sagemaker = self.client("sagemaker")
        name = request["EndpointName"]
        arn = sagemaker.describe_endpoint(EndpointName=name)["EndpointArn"]
        tags = sagemaker.list_tags(ResourceArn=arn)["Tags"]
        sagemaker.delete_endpoint(EndpointName=name)
        new = sagemaker.create_endpoint(
            EndpointName=name, EndpointConfigName=request["EndpointConfigName"], Tags=tags
        )
        return {"EndpointArn": new["EndpointArn"]}


def _response(status: int) -> AWSResponse:
    return AWSResponse("", status, {}, None)  # type: ignore[arg-type]


@contextmanager
def account() -> Iterator[Account]:
    """Yield an account with the execution role and the image's repository."""
    with mock_aws(), pytest.MonkeyPatch.context() as patch:
        for name in ("AWS_PROFILE", "AWS_ENDPOINT_URL"):
            patch.delenv(name, raising=False)
        patch.setenv("AWS_REGION", REGION)
        new = Account()
        trust = json.dumps({"Version": "2012-10-17", "Statement": []})
        new.client("iam").create_role(RoleName="triton-multi-model", AssumeRolePolicyDocument=trust)
        new.client("ecr").create_repository(repositoryName="triton-multi-model")
        yield new


def printed(text: str) -> list[Call]:
    """Return the calls that a dry run printed as JSON objects, one after the other."""
    decoder = json.JSONDecoder()
    calls = []
    position = 0
    while position < len(text.rstrip()):
        value, end = decoder.raw_decode(text, position)
        position = end + 1  # after the line break
        if "operation" in value:
            calls.append((value["service"], value["operation"], value["parameters"]))
    return calls
