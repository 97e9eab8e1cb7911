"""Tags, keys and captured requests of the user's own, against moto's server."""

from typing import Any

import pytest

from tests.deploy.conftest import Aws
from tests.deploy.shapes import IMAGE

S3 = "s3://bucket/captured/"
KEY = "arn:aws:kms:eu-west-1:123456789012:key/00000000-0000-0000-0000-000000000000"


def tags(aws: Aws) -> dict[str, dict[str, str]]:
    """{kind: its tags} of endpoint, configuration and model."""
    sagemaker, found = aws.client("sagemaker"), {}
    for kind, listed in (
        ("endpoint", sagemaker.list_endpoints()["Endpoints"][0]["EndpointArn"]),
        ("config", sagemaker.list_endpoint_configs()["EndpointConfigs"][-1]["EndpointConfigArn"]),
        ("model", sagemaker.list_models()["Models"][-1]["ModelArn"]),
    ):
        found[kind] = {each["Key"]: each["Value"] for each in sagemaker.list_tags(ResourceArn=listed)["Tags"]}
    return found


def config(aws: Aws) -> dict[str, Any]:
    sagemaker = aws.client("sagemaker")
    name = sagemaker.describe_endpoint(EndpointName="triton-multi-model")["EndpointConfigName"]
    return dict(sagemaker.describe_endpoint_config(EndpointConfigName=name))


def test_tags_are_on_all_that_is_made_and_stay_after_an_update(aws: Aws) -> None:
    assert aws.deploy("create", "--image", IMAGE, "--tag", "team=a b", "--tag", "cost:center=7") == 0
    own = {"team": "a b", "cost:center": "7"}
    assert all(own.items() <= found.items() and "stack" in found for found in tags(aws).values())
    assert aws.deploy("update", "--image", IMAGE + "1", "--tag", "team=b") == 0
    assert all(({**own, "team": "b"}).items() <= found.items() for found in tags(aws).values())


def test_captured_requests_and_disks_have_the_key_and_an_update_keeps_both(aws: Aws) -> None:
    assert (
        aws.deploy("create", "--image", IMAGE, "--data-capture", S3, "--capture-percent", "20", "--kms-key", KEY) == 0
    )
    made = config(aws)
    assert made["KmsKeyId"] == made["DataCaptureConfig"]["KmsKeyId"] == KEY
    assert made["DataCaptureConfig"]["InitialSamplingPercentage"] == 20
    assert made["DataCaptureConfig"]["DestinationS3Uri"] == S3
    assert aws.deploy("update", "--image", IMAGE + "1") == 0
    assert config(aws)["DataCaptureConfig"] == made["DataCaptureConfig"]
    aws.calls.clear()
    assert aws.deploy("update", "--data-capture", "off") == 0
    (update,) = [parameters for _, name, parameters in aws.calls if name == "UpdateEndpoint"]
    assert update["ExcludeRetainedVariantProperties"] == [{"VariantPropertyType": "DataCaptureConfig"}]
    assert not config(aws).get("DataCaptureConfig")
    assert config(aws)["KmsKeyId"] == KEY


def test_asynchronous_results_have_the_key(aws: Aws) -> None:
    assert aws.deploy("create", "--image", IMAGE, "--async", S3, "--kms-key", KEY) == 0
    assert config(aws)["AsyncInferenceConfig"]["OutputConfig"]["KmsKeyId"] == KEY


def test_a_transform_job_has_the_key_and_the_tags(aws: Aws) -> None:
    assert aws.deploy("create", "--image", IMAGE, "--model-only") == 0
    assert aws.deploy("transform", "--input", S3, "--output", S3, "--kms-key", KEY, "--tag", "team=a") == 0
    (made,) = [parameters for _, name, parameters in aws.calls if name == "CreateTransformJob"]
    assert made["TransformOutput"]["KmsKeyId"] == made["TransformResources"]["VolumeKmsKeyId"] == KEY
    assert {"Key": "team", "Value": "a"} in made["Tags"]


WRONG = {
    "no value": (["--tag", "team"], "--tag 'team' is not KEY=VALUE"),
    "our own": (["--tag", "stack=x"], "--tag 'stack': by created-by and stack"),
    "AWS's": (["--tag", "aws:x=y"], "aws: is AWS's"),
    "a letter": (["--tag", "a*=b"], "is not KEY=VALUE of letters"),
    "too many": ([word for number in range(49) for word in ("--tag", f"k{number}=v")], "49 tags: 48"),
    "no folder": (["--data-capture", "/tmp"], "is not an S3 folder"),
    "percent alone": (["--capture-percent", "5"], "needs --data-capture"),
    "percent": (["--data-capture", S3, "--capture-percent", "0"], "--capture-percent is 1 to 100"),
    "serverless": (["--data-capture", S3, "--serverless", "2048"], "does not work with --serverless"),
}


@pytest.mark.parametrize(("words", "text"), WRONG.values(), ids=WRONG)
def test_what_aws_would_refuse_is_refused_before(
    bare_aws: Aws, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bare_aws.deploy("create", "--image", IMAGE, *words) == 2
    assert text in capsys.readouterr().err
    assert bare_aws.calls == []
