"""create, autoscale, update, invoke and delete against moto's server, as a user types them."""

import re
from typing import Any

import pytest

from tests.deploy.conftest import Aws, RuntimeStandIn
from tests.deploy.shapes import IMAGE, assert_valid
from tests.support.harness import ROOT

TAGS = [{"Key": "created-by", "Value": "triton-multi-model"}, {"Key": "stack", "Value": "other"}]


def make_foreign(aws: Aws, name: str, tags: list[Any]) -> None:
    """An endpoint of somebody else's, and all that belongs to one."""
    sagemaker = aws.client("sagemaker")
    role = "arn:aws:iam::123456789012:role/other"
    sagemaker.create_model(ModelName=name, ExecutionRoleArn=role, PrimaryContainer={"Image": IMAGE}, Tags=tags)
    variant = {"VariantName": "AllTraffic", "ModelName": name, "InstanceType": "ml.m5.large", "InitialInstanceCount": 1}
    sagemaker.create_endpoint_config(EndpointConfigName=name, ProductionVariants=[variant], Tags=tags)
    sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name, Tags=tags)
    aws.client("application-autoscaling").register_scalable_target(
        ServiceNamespace="sagemaker",
        ResourceId=f"endpoint/{name}/variant/AllTraffic",
        MinCapacity=1,
        MaxCapacity=2,
        ScalableDimension="sagemaker:variant:DesiredInstanceCount",
    )


def test_a_round_trip_leaves_nothing_behind_and_touches_nothing_else(
    aws: Aws, runtime: RuntimeStandIn, capsys: pytest.CaptureFixture[str]
) -> None:
    make_foreign(aws, "triton-multi-model-0a1b2c3d", [])
    make_foreign(aws, "triton-multi-model-other", TAGS)
    before = aws.inventory()
    page = str(ROOT / "model_repository/resnet/example.png")
    assert aws.deploy("create", "--image", IMAGE) == 0
    assert "triton-multi-model" in aws.inventory()["endpoints"]
    assert aws.deploy("autoscale", "--max", "3", "--concurrency", "4") == 0
    assert aws.deploy("update", "--image", IMAGE + "1") == 0
    capsys.readouterr()
    assert aws.deploy("invoke", page, "--model", "resnet", "--endpoint-url", runtime.url) == 0
    assert re.search(r"resnet version 1\ninstance 0\n  6 +0\.95", capsys.readouterr().out)
    assert aws.deploy("delete", "--yes") == 0
    assert aws.inventory() == before
    assert_valid(aws.calls)
