"""Regions and partitions, as botocore has them."""

import boto3
import pytest

from deploy.errors import UsageError
from deploy.regions import Partition, guessed, partition_of
from tests.deploy.conftest import Aws


@pytest.mark.parametrize(
    ("region", "partition"),
    [
        ("eu-west-1", Partition("aws", "amazonaws.com")),
        ("cn-north-1", Partition("aws-cn", "amazonaws.com.cn")),
        ("us-gov-west-1", Partition("aws-us-gov", "amazonaws.com")),
    ],
)
def test_a_region_has_its_partition(region: str, partition: Partition) -> None:
    assert partition_of(region) == guessed(region) == partition


def test_they_are_those_that_boto3_lists() -> None:
    session = boto3.Session()
    listed = [
        region
        for partition in session.get_available_partitions()
        for region in session.get_available_regions("sagemaker", partition)
    ]
    for region in listed:
        partition_of(region)
    with pytest.raises(UsageError) as refused:
        partition_of("x")
    assert str(refused.value).endswith(", ".join(sorted(listed)))


def test_a_region_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"'eu-wset-1' has no SageMaker.*did you mean eu-west-1"):
        partition_of("eu-wset-1")
    assert guessed("nowhere") == Partition()


def test_arns_and_hosts_are_the_partitions(bare_aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("create", "push --tag v1", "delete", "autoscale --min 0"):
        assert bare_aws.deploy(*command.split(), "--region", "cn-north-1", "--dry-run") in (0, 1)
    printed = capsys.readouterr().out
    assert "arn:aws-cn:iam::123456789012:role/triton-multi-model" in printed
    assert "dkr.ecr.cn-north-1.amazonaws.com.cn/triton-multi-model" in printed
    assert "arn:aws-cn:cloudwatch:" in printed
    assert "arn:aws:" not in printed


def test_a_misspelt_region_makes_no_call(bare_aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert bare_aws.deploy("status", "--region", "us-est-1") == 2
    assert "us-east-1" in capsys.readouterr().err
    assert bare_aws.calls == []
