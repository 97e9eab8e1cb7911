"""transform against moto's server."""

import re
from datetime import UTC, datetime
from typing import Any

import pytest
from moto.sagemaker.models import FakeTransformJob

from tests.deploy.conftest import Aws
from tests.deploy.shapes import IMAGE

WORDS = ["transform", "--input", "s3://b/lines.jsonl", "--output", "s3://b/out/"]


def job(aws: Aws) -> dict[str, Any]:
    (name,) = aws.inventory()["jobs"]
    found: dict[str, Any] = aws.client("sagemaker").describe_transform_job(TransformJobName=name)
    return found


def slow_job(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs begin as AWS's do; moto's are done at once."""
    original = FakeTransformJob.__init__

    def initialize(self: FakeTransformJob, *arguments: Any, **named: Any) -> None:
        original(self, *arguments, **named)
        self.transform_job_status = "InProgress"

    monkeypatch.setattr(FakeTransformJob, "__init__", initialize)


def end(aws: Aws, status: str, reason: str = "") -> None:
    (made,) = aws.backend.transform_jobs.values()
    made.transform_job_status, made.failure_reason = status, reason


def test_lines_go_through_the_newest_model(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_job(monkeypatch)
    for image in (IMAGE, IMAGE + "1"):
        assert aws.deploy("create", "--model-only", "--image", image) == 0
    aws.while_asleep = [lambda: end(aws, "Completed")]
    moment = datetime.fromtimestamp(aws.now, UTC)
    assert aws.deploy(*WORDS) == 0
    found = job(aws)
    assert found["TransformJobName"] == f"triton-multi-model-{moment:%Y%m%d-%H%M%S}"
    assert found["ModelName"] in aws.inventory()["models"]
    assert found["TransformInput"]["SplitType"] == found["TransformOutput"]["AssembleWith"] == "Line"
    assert found["BatchStrategy"] == "MultiRecord"
    assert re.search("is done, the results are in s3://b/out/\n$", capsys.readouterr().out)


def test_rows_of_csv_are_lines_too(aws: Aws) -> None:
    assert aws.deploy("create", "--model-only", "--image", IMAGE) == 0
    assert aws.deploy(*WORDS, "--content-type", "text/csv") == 0
    found = job(aws)
    assert found["TransformInput"]["SplitType"] == "Line"
    assert found["TransformOutput"]["Accept"] == "application/jsonlines"


def test_images_are_a_request_each(aws: Aws) -> None:
    assert aws.deploy("create", "--model-only", "--image", IMAGE) == 0
    words = ["--content-type", "image/png", "--env", "SAGEMAKER_TRITON_DEFAULT_MODEL_NAME=resnet"]
    assert aws.deploy(*WORDS, *words, "--instances", "2", "--max-payload", "20", "--max-concurrent", "5") == 0
    found = job(aws)
    assert found["TransformInput"]["SplitType"] == found["TransformOutput"]["AssembleWith"] == "None"
    assert found["BatchStrategy"] == "SingleRecord"
    assert found["Environment"] == {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "resnet"}
    assert (found["MaxPayloadInMB"], found["MaxConcurrentTransforms"]) == (20, 5)
    assert found["TransformResources"]["InstanceCount"] == 2


def test_a_failed_job_shows_its_log_and_the_reason(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_job(monkeypatch)
    assert aws.deploy("create", "--model-only", "--image", IMAGE) == 0

    def fail() -> None:
        (name,) = aws.inventory()["jobs"]
        aws.write_log("/aws/sagemaker/TransformJobs", f"{name}/i-7", "it is our line")
        end(aws, "Failed", "ClientError: too many errors")

    aws.while_asleep = [fail]
    assert aws.deploy(*WORDS) == 1
    err = capsys.readouterr().err
    assert "  i-7 it is our line\n" in err
    (query,) = [parameters for _, name, parameters in aws.calls if name == "FilterLogEvents"]
    assert query["logStreamNamePrefix"] == f"{aws.inventory()['jobs'][0]}/"  # moto gives all streams
    assert err.endswith("is Failed: ClientError: too many errors\n")


def test_there_must_be_a_model(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy(*WORDS) == 1
    assert "has no model in eu-west-1: 'create --model-only' makes one" in capsys.readouterr().err


WRONG = {
    "input": (["--input", "lines.jsonl"], "--input 'lines.jsonl' is not an S3 location"),
    "payload": (["--max-payload", "101"], "--max-payload must be 0 to 100 MB"),
    "product": (["--max-payload", "30", "--max-concurrent", "4"], "must be at most 100 MB"),
    "strategy": (["--split", "none", "--strategy", "multi"], "--strategy multi needs --split line"),
    "instances": (["--instances", "0"], "--instances must be 1 or more"),
    "variable": (["--env", "SERVE_WORKERS=-1"], "SERVE_WORKERS='-1' is wrong"),
}


@pytest.mark.parametrize(("words", "text"), WRONG.values(), ids=WRONG)
def test_a_command_line_that_makes_no_sense_is_refused(
    bare_aws: Aws, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bare_aws.deploy(*WORDS, *words) == 2
    assert text in capsys.readouterr().err
    assert bare_aws.calls == []
