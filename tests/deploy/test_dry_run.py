"""--dry-run prints the calls that the command makes, and makes none."""

import json
from pathlib import Path

import pytest

from tests.deploy.conftest import REQUESTS, Aws
from tests.deploy.shapes import IMAGE, assert_valid, plain, printed

S3 = "s3://bucket/folder/"
TOPIC = "arn:aws:sns:eu-west-1:123456789012:topic"
CREATIONS = {
    "default": [],
    "named image": ["--image", IMAGE, "--role", "arn:aws:iam::123456789012:role/service-role/other"],
    "archive": ["--model-data", "s3://bucket/model.tar.gz", "--env", "SERVE_WORKERS=2", "--instances", "2"],
    "folder": ["--model-data", S3, "--health-timeout", "600", "--download-timeout", "900"],
    "multi-model": ["--multi-model", S3, "--env", "SERVE_MODEL_MEMORY_SHARE=0.7"],
    "serverless": ["--serverless", "4096", "--max-concurrency", "10"],
    "asynchronous": ["--async", S3, "--async-failures", S3, "--on-error", TOPIC, "--async-concurrency", "4"],
    "gpu": ["--instance-type", "ml.g4dn.xlarge", "--inference-ami", "al2-ami-sagemaker-inference-gpu-3-1"],
    "tags, key and capture": [
        *["--tag", "team=a b", "--tag", "cost:center=7", "--kms-key", "alias/mine", "--data-capture", S3],
        *["--capture-percent", "20", "--async", S3],
    ],
    "network": ["--network-isolation", "--subnet", "subnet-1", "--subnet", "subnet-2", "--security-group", "sg-1"],
    "model only": ["--model-only"],
    "without waiting": ["--no-wait"],
}
UPDATES = {
    "image": ["--image", IMAGE + "1"],
    "environment": ["--image", IMAGE + "1", "--env", "SERVE_WORKERS=3", "--instances", "2"],
    "canary": ["--image", IMAGE + "1", "--traffic", "canary", "--percent", "20", "--alarm", "mine"],
    "linear": ["--image", IMAGE + "1", "--traffic", "linear", "--interval", "60", "--no-alarms"],
    "capture and tags": ["--data-capture", S3, "--kms-key", "alias/mine", "--tag", "team=b"],
    "another instance type": ["--image", IMAGE + "1", "--instance-type", "ml.c5.2xlarge", "--no-wait"],
}
OTHERS = {
    "autoscale": [],
    "autoscale by invocations": ["autoscale", "--invocations", "100", "--min", "2", "--scale-in-cooldown", "60"],
    "status": ["status"],
    "A/B": ["variant", "--weight", "10", "--image", IMAGE + "1", "--instances", "2", "--no-wait"],
    "shadow": ["variant", "--shadow", "50", "--env", "SERVE_WORKERS=3", "--image", IMAGE + "1", "--no-wait"],
    "logs": ["logs"],
    "logs of a job": ["logs", "--transform", "job-1", "--since", "2d"],
    "transform": ["transform", "--input", S3, "--output", S3],
    "transform of images": [
        "transform",
        "--input",
        S3,
        "--output",
        S3,
        "--content-type",
        "image/png",
        "--max-payload",
        "10",
        "--max-concurrent",
        "4",
        "--env",
        "SERVE_WORKERS=1",
    ],
    "invoke": ["invoke", "--text", "a man is eating food", "--model", "bert", "--target-model", "bert.tar.gz", "--raw"],
    "delete": ["delete", "--yes"],
}


def assert_same(aws: Aws, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """The dry run prints what botocore accepts, asks AWS nothing, and the command makes the same calls."""
    aws.calls.clear()
    REQUESTS.clear()
    capsys.readouterr()
    assert aws.deploy(*words, "--dry-run") == 0
    assert aws.calls == []
    assert REQUESTS == []
    promised = printed(capsys.readouterr().out)
    assert_valid(promised)
    assert aws.deploy(*words) == 0, capsys.readouterr().err
    assert len(REQUESTS) >= len(aws.calls) > 0
    assert plain(aws.calls) == plain(promised)


@pytest.mark.parametrize("words", CREATIONS.values(), ids=CREATIONS)
def test_create(aws: Aws, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert_same(aws, ["create", *words], capsys)


@pytest.mark.parametrize("words", UPDATES.values(), ids=UPDATES)
def test_update(aws: Aws, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    assert_same(aws, ["update", *words], capsys)


@pytest.mark.parametrize("words", OTHERS.values(), ids=OTHERS)
def test_other_commands(aws: Aws, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    for group in ("/aws/sagemaker/Endpoints/triton-multi-model", "/aws/sagemaker/TransformJobs"):
        aws.client("logs").create_log_group(logGroupName=group)
    if words[:1] == ["delete"]:
        assert aws.deploy("autoscale") == aws.deploy("update", "--image", IMAGE + "1") == 0
    assert_same(aws, words or ["autoscale"], capsys)


def test_scaling_to_zero(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE, "--async", S3) == 0
    assert_same(aws, ["autoscale", "--min", "0", "--backlog", "3"], capsys)


@pytest.mark.parametrize("word", ["--promote", "--remove"])
def test_the_end_of_a_trial(aws: Aws, word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("variant", word, "--dry-run") == 0
    promised = printed(capsys.readouterr().out)
    assert_valid(promised)
    (update,) = [parameters for _, operation, parameters in promised if operation == "UpdateEndpoint"]
    assert update["RetainAllVariantProperties"] == (word == "--remove")


def test_autoscale_remove(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE) == aws.deploy("autoscale") == 0
    assert_same(aws, ["autoscale", "--remove"], capsys)
    assert aws.inventory()["targets"] == aws.inventory()["policies"] == []


def test_an_asynchronous_invocation(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["invoke", "--text", "hello", "--async", "s3://inputs/here/"]
    assert aws.deploy(*words, "--dry-run") == 0
    promised = printed(capsys.readouterr().out)
    assert_valid(promised)
    aws.client("s3").create_bucket(Bucket="inputs", CreateBucketConfiguration={"LocationConstraint": "eu-west-1"})
    assert aws.deploy(*words) == 0
    names = [("s3", "PutObject"), ("sagemaker-runtime", "InvokeEndpointAsync"), ("s3", "GetObject")]
    assert [call[:2] for call in promised] == [call[:2] for call in aws.calls] == names
    assert plain(aws.calls)[:2] == plain(promised)[:2]


def test_a_streamed_invocation_has_the_shape_that_botocore_knows(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("invoke", "--text", "hello", "--model", "m", "--stream", "--dry-run") == 0
    ((_, operation, parameters),) = calls = printed(capsys.readouterr().out)
    assert_valid(calls)
    assert operation == "InvokeEndpointWithResponseStream"
    assert parameters["Accept"] == "text/event-stream"


@pytest.mark.parametrize("command", ["create", "update"])
def test_no_secret_is_printed(aws: Aws, command: str, capsys: pytest.CaptureFixture[str]) -> None:
    secrets = {
        "SERVE_MANAGEMENT_SECRET": "X-Key=hush-1",
        "HF_TOKEN": "hush3",
        "DB_PASSWORD": "hush4",
        "AWS_SECRET_ACCESS_KEY": "hush5",
        "MY_API_KEY": "hush6",
    }
    words = [word for name, value in secrets.items() for word in ("--env", f"{name}={value}")]
    words += ["--image", IMAGE]
    assert aws.deploy(command, *words, "--dry-run") == 0
    assert "hush" not in "".join(capsys.readouterr())
    assert aws.deploy("create", *words) == aws.deploy("status") == 0
    assert "hush" not in "".join(capsys.readouterr())
    (model,) = aws.inventory()["models"]
    there = aws.client("sagemaker").describe_model(ModelName=model)["PrimaryContainer"]["Environment"]
    assert there == secrets


def test_a_dry_run_needs_no_credentials_and_no_network(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    assert aws.deploy("create", "--dry-run", "--name", "other") == 0
    seen = capsys.readouterr()
    assert json.loads(seen.out[: seen.out.index("\n}\n") + 2])["operation"] == "DescribeRepositories"
    assert "no call is made" in seen.err
