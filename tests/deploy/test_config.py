"""Tests --config FILE, which contains parts of AWS's requests, keyed by operation."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.account import IMAGE, Account, printed
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

EXAMPLES = ROOT / "deploy/examples"
CREATE = ("create", "--image", IMAGE)


def test_scale_an_asynchronous_endpoint_by_its_backlog(aws: Account) -> None:
    file = str(EXAMPLES / "asynchronous.yaml")
    assert aws.deploy(*CREATE, "--config", file) == aws.deploy("autoscale", "--config", file) == 0
    config, model = aws.described()
    assert config["AsyncInferenceConfig"]["OutputConfig"]["S3OutputPath"] == "s3://BUCKET/results/"
    assert model["PrimaryContainer"]["Environment"]["SERVE_MAX_BODY_MB"] == "1024"
    (target,), (policy,) = aws.inventory()["targets"], aws.inventory()["policies"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (0, 4)
    tracking = policy["TargetTrackingScalingPolicyConfiguration"]
    assert (
        tracking["CustomizedMetricSpecification"]["MetricName"]
        == "ApproximateBacklogSizePerInstance"
    )
    assert "PredefinedMetricSpecification" not in tracking


def test_create_a_serverless_endpoint_without_instances(
    aws: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    file = str(EXAMPLES / "serverless.json")
    assert aws.deploy(*CREATE, "--config", file) == 0
    (variant,) = aws.described()[0]["ProductionVariants"]
    assert variant["ServerlessConfig"] == {"MemorySizeInMB": 4096, "MaxConcurrency": 10}
    assert not {"InstanceType", "InitialInstanceCount"} & variant.keys()
    assert aws.deploy("status") == 0
    assert "4096 MB" in capsys.readouterr().out


def test_roll_an_update_and_keep_what_it_does_not_name(aws: Account) -> None:
    file = str(EXAMPLES / "rolling.yaml")
    assert aws.deploy(*CREATE, "--config", file) == 0
    assert aws.deploy("update", "--image", IMAGE + "1", "--config", file) == 0
    (request,) = [parameters for _, name, parameters in aws.calls if name == "UpdateEndpoint"]
    assert request["DeploymentConfig"]["RollingUpdatePolicy"]["WaitIntervalInSeconds"] == 300
    assert aws.deploy("update", "--env", "MINE=1") == 0  # without --config
    config, model = aws.described()
    assert config["DataCaptureConfig"]["DestinationS3Uri"] == "s3://BUCKET/captured/"
    for arn in (config["EndpointConfigArn"], model["ModelArn"]):
        tags = aws.client("sagemaker").list_tags(ResourceArn=arn)["Tags"]
        assert {tag["Key"]: tag["Value"] for tag in tags}["team"] == "search"
    assert aws.deploy("delete", "--yes") == 0
    assert aws.inventory()["models"] == set()


def test_make_instance_pools_that_botocore_accepts(
    aws: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    """moto does not support instance pools."""
    assert aws.deploy(*CREATE, "--config", str(EXAMPLES / "instance-pools.yaml"), "--dry-run") == 0
    _, (_, _, config), _ = printed(capsys.readouterr().out)
    assert [pool["Priority"] for pool in config["ProductionVariants"][0]["InstancePools"]] == [1, 2]


WRONG: dict[str, tuple[Any, str]] = {
    "operation": ({"CreateModle": {}}, "CreateModle"),
    "field": (
        {"CreateEndpointConfig": {"ProductionVariants": [{"InstanceTyp": "x"}]}},
        "InstanceTyp",
    ),
    "type": (
        {"CreateModel": {"PrimaryContainer": {"Environment": {"SERVE_WORKERS": 2}}}},
        "SERVE_WORKERS",
    ),
    "setting": (
        {"CreateModel": {"PrimaryContainer": {"Environment": {"SERVE_WORKERS": "x"}}}},
        "SERVE_WORKERS",
    ),
    "name": ({"CreateModel": {"ModelName": "mine"}}, "ModelName"),
    "part": ({"CreateModel": []}, "CreateModel"),
    "document": ([], "object"),
}


@pytest.mark.parametrize(("document", "named"), WRONG.values(), ids=WRONG)
def test_refuse_a_wrong_key_by_name_before_writing_anything(
    aws: Account, tmp_path: Path, document: Any, named: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file.json").write_text(json.dumps(document))
    assert exit_code(aws, *CREATE, "--config", str(tmp_path / "file.json")) == 2
    assert named in capsys.readouterr().err
    assert aws.writes() == []


HOSTILE = {
    "aliases": "a: &a [x]\nCreateModel: {Tags: *a}",
    "not YAML": "CreateModel: {",
    "Python objects": "CreateModel: !!python/object/apply:os.getpid []",
    "large": "# " + "x" * 70_000,
    "deep": "CreateModel: " + "{a: " * 2000 + "x" + "}" * 2000,
    "deeper than AWS": "CreateModel: " + "{a: " * 30 + "x" + "}" * 30,
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_refuse_a_file_that_is_not_a_configuration(aws: Account, tmp_path: Path, text: str) -> None:
    (tmp_path / "file.yaml").write_text(text)
    assert exit_code(aws, *CREATE, "--config", str(tmp_path / "file.yaml")) == 2
    assert aws.writes() == []


def exit_code(aws: Account, *words: str) -> int | str | None:
    """Return the exit code, even if argparse ends the program."""
    try:
        return aws.deploy(*words)
    except SystemExit as end:
        return end.code
