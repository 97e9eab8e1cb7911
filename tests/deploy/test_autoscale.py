"""autoscale against moto's server."""

from typing import Any

import pytest

from tests.deploy.conftest import Aws
from tests.deploy.shapes import IMAGE


def policy(aws: Aws) -> dict[str, Any]:
    (found,) = aws.inventory()["policies"]
    tracking: dict[str, Any] = found["TargetTrackingScalingPolicyConfiguration"]
    return tracking


def test_another_metric_replaces_the_policy(aws: Aws) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    assert aws.deploy("autoscale", "--min", "2", "--max", "5", "--invocations", "120") == 0
    metric = "PredefinedMetricSpecification"
    assert policy(aws)[metric]["PredefinedMetricType"] == "SageMakerVariantInvocationsPerInstance"
    assert policy(aws)["TargetValue"] == 120
    assert aws.deploy("autoscale", "--concurrency", "4", "--scale-out-cooldown", "30", "--max", "6") == 0
    found = policy(aws)
    assert found[metric]["PredefinedMetricType"] == "SageMakerVariantConcurrentRequestsPerModelHighResolution"
    assert (found["TargetValue"], found["ScaleInCooldown"], found["ScaleOutCooldown"]) == (4, 600, 30)
    (target,) = aws.inventory()["targets"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 6)


def test_there_may_be_nothing_to_remove(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE) == aws.deploy("autoscale", "--remove") == 0
    assert capsys.readouterr().out.endswith("endpoint triton-multi-model is not scaled\n")


def test_an_asynchronous_endpoint_scales_to_zero_by_its_backlog_and_starts_again(aws: Aws) -> None:
    assert aws.deploy("create", "--image", IMAGE, "--async", "s3://bucket/results/") == 0
    assert aws.deploy("autoscale", "--min", "0", "--max", "3") == 0
    found = aws.inventory()
    assert (found["targets"][0]["MinCapacity"], found["targets"][0]["MaxCapacity"]) == (0, 3)
    tracking, step = sorted(found["policies"], key=lambda each: str(each["PolicyType"]), reverse=True)
    metric = tracking["TargetTrackingScalingPolicyConfiguration"]
    assert metric["TargetValue"] == 5
    assert metric["CustomizedMetricSpecification"]["MetricName"] == "ApproximateBacklogSizePerInstance"
    (alarm,) = aws.client("cloudwatch").describe_alarms(AlarmNames=["triton-multi-model-backlog"])["MetricAlarms"]
    assert alarm["MetricName"] == "HasBacklogWithoutCapacity"
    assert alarm["AlarmActions"] == [step["PolicyARN"]]
    assert aws.deploy("autoscale", "--min", "1", "--backlog", "2") == 0
    (kept,) = aws.inventory()["policies"]
    assert kept["TargetTrackingScalingPolicyConfiguration"]["TargetValue"] == 2
    assert "triton-multi-model-backlog" not in aws.inventory()["alarms"]


@pytest.mark.parametrize("words", [["autoscale", "--remove"], ["delete", "--yes"]])
def test_the_alarm_of_the_backlog_goes_with_the_scaling(aws: Aws, words: list[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE, "--async", "s3://bucket/results/") == 0
    assert aws.deploy("autoscale", "--min", "0") == aws.deploy(*words) == 0
    found = aws.inventory()
    assert [found["alarms"], found["policies"], found["targets"]] == [[], [], []]


@pytest.mark.parametrize("words", [["--min", "0"], ["--backlog", "3"]])
def test_only_an_asynchronous_endpoint_has_a_backlog(
    aws: Aws, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    assert aws.deploy("autoscale", *words) == 1
    assert "are for an asynchronous endpoint (create --async)" in capsys.readouterr().err
    assert aws.inventory()["targets"] == []


WRONG = {
    "bounds": (["--min", "3", "--max", "2"], "--min must be 0 or more, and --max 1 or more and at least --min"),
    "none": (["--min", "0", "--max", "0"], "--max 1 or more"),
    "backlog": (["--backlog", "0"], "--backlog must be above 0"),
    "aim": (["--concurrency", "0"], "--concurrency must be above 0"),
    "cooldown": (["--scale-in-cooldown", "-1"], "a cooldown cannot be negative"),
}


@pytest.mark.parametrize(("words", "text"), WRONG.values(), ids=WRONG)
def test_a_command_line_that_makes_no_sense_is_refused(
    bare_aws: Aws, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bare_aws.deploy("autoscale", *words) == 2
    assert text in capsys.readouterr().err
    assert bare_aws.calls == []
