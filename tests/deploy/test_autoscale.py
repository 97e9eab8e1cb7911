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


WRONG = {
    "bounds": (["--min", "3", "--max", "2"], "--min must be 1 or more, and --max at least --min"),
    "zero": (["--min", "0"], "cannot scale to zero"),
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
