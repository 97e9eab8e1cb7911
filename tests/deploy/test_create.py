"""create against moto's server: waiting, failing, repeating."""

import pytest

from tests.deploy.conftest import Aws, slow_creation
from tests.deploy.shapes import IMAGE
from tests.deploy.test_round_trip import make_foreign

LOGS = "/aws/sagemaker/Endpoints/triton-multi-model"


def test_it_waits_until_the_endpoint_is_in_service(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_creation(monkeypatch)
    aws.while_asleep = [lambda: None] * 12 + [lambda: aws.set_endpoint("InService")]
    assert aws.deploy("create", "--image", IMAGE) == 0
    seen = capsys.readouterr()
    assert seen.out == "endpoint triton-multi-model is InService\n"
    times = [line for line in seen.err.splitlines() if line.startswith("0:")]
    assert times == [
        "0:00:00 endpoint triton-multi-model: Creating",
        "0:01:00 endpoint triton-multi-model: Creating",
        "0:02:00 endpoint triton-multi-model: Creating",
        "0:02:10 endpoint triton-multi-model: InService",
    ]


def test_a_failed_creation_shows_the_last_lines_of_the_log_and_the_reason(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_creation(monkeypatch)
    lines = [f"line {number}" for number in range(40)]
    aws.while_asleep = [
        lambda: aws.write_log(LOGS, "AllTraffic/i-0123", *lines),
        lambda: aws.set_endpoint("Failed", "The primary container did not pass\n the ping health check."),
    ]
    assert aws.deploy("create", "--image", IMAGE) == 1
    err = capsys.readouterr().err
    assert "  i-0123 line 10\n" in err
    assert "line 9\n" not in err
    reason = "The primary container did not pass the ping health check."
    assert err.endswith(f"create: the endpoint 'triton-multi-model' is Failed: {reason}\n")


def test_a_failed_creation_without_a_log_says_so(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    slow_creation(monkeypatch, "Failed")
    assert aws.deploy("create", "--image", IMAGE) == 1
    assert f"the log group {LOGS} is empty" in capsys.readouterr().err


def test_a_failed_endpoint_is_made_anew_by_the_next_create(aws: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        slow_creation(patch, "Failed")
        assert aws.deploy("create", "--image", IMAGE) == 1
    kept = aws.inventory()
    aws.calls.clear()
    assert aws.deploy("create", "--image", IMAGE) == 0
    assert aws.inventory() == kept
    assert [name for name in aws.names() if not name.startswith(("Describe", "List", "Get"))] == [
        "DeleteEndpoint",
        "CreateEndpoint",
    ]


def test_what_failed_half_way_can_be_repeated_and_deleted(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    before = aws.inventory()
    wrong = ["--instance-type", "ml.m5.tiny"]  # refused by AWS after the model has been made
    assert aws.deploy("create", "--image", IMAGE, *wrong) == 1
    err = capsys.readouterr().err
    assert "CreateEndpointConfig: Value 'ml.m5.tiny' at 'instanceType'" in err
    assert len(aws.inventory()["models"]) == 1
    assert aws.deploy("create", "--image", IMAGE) == 0
    assert len(aws.inventory()["models"]) == 1
    assert aws.deploy("create", "--image", IMAGE + "2", "--model-only") == 0
    assert len(aws.inventory()["models"]) == 2
    assert aws.deploy("delete", "--yes") == 0
    assert aws.inventory() == before


def test_the_same_create_twice_changes_nothing(aws: Aws) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    kept = aws.inventory()
    aws.calls.clear()
    assert aws.deploy("create", "--image", IMAGE) == 0
    assert not [name for name in aws.names() if not name.startswith(("Describe", "List", "Get"))]
    assert aws.inventory() == kept


def test_an_endpoint_with_other_settings_is_for_update(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    assert aws.deploy("create", "--image", IMAGE, "--instances", "2") == 1
    assert capsys.readouterr().err.endswith("exists with other settings: 'update' changes it\n")


def test_somebody_elses_endpoint_is_left_alone(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    make_foreign(aws, "triton-multi-model", [])
    before = aws.inventory()
    for words in (["create", "--image", IMAGE], ["update", "--image", IMAGE], ["autoscale"], ["status"]):
        assert aws.deploy(*words) == 1
        assert "was not made by this program" in capsys.readouterr().err
    assert aws.deploy("delete", "--yes") == 0  # what the refused create had made
    assert aws.inventory() == before


def test_the_image_and_the_role_must_be_there(bare_aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert bare_aws.deploy("create") == 1
    assert "run 'push' first, or give --image" in capsys.readouterr().err
    assert bare_aws.deploy("create", "--image", IMAGE) == 1
    assert "there is no role 'triton-multi-model': docs/deploy.md says how" in capsys.readouterr().err


def test_an_asynchronous_endpoint_and_a_multi_model_one_are_what_was_asked_for(aws: Aws) -> None:
    sagemaker = aws.client("sagemaker")
    assert aws.deploy("create", "--image", IMAGE, "--async", "s3://b/out/", "--async-concurrency", "3") == 0
    (config,) = aws.inventory()["configs"]
    found = sagemaker.describe_endpoint_config(EndpointConfigName=config)["AsyncInferenceConfig"]
    assert found["OutputConfig"]["S3OutputPath"] == "s3://b/out/"
    assert found["ClientConfig"] == {"MaxConcurrentInvocationsPerInstance": 3}
    (model,) = aws.inventory()["models"]
    environment = sagemaker.describe_model(ModelName=model)["PrimaryContainer"]["Environment"]
    assert environment == {"SERVE_MAX_BODY_MB": "1024", "SERVE_REQUEST_TIMEOUT": "3600"}
    assert aws.deploy("create", "--name", "many", "--image", IMAGE, "--multi-model", "s3://b/archives/") == 0
    (model,) = [name for name in aws.inventory()["models"] if name.startswith("many-")]
    container = sagemaker.describe_model(ModelName=model)["PrimaryContainer"]
    assert container == {"Image": IMAGE, "Mode": "MultiModel", "ModelDataUrl": "s3://b/archives/"}


def test_a_name_like_a_setting_is_questioned(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE, "--env", "SERVE_WORKER=2", "--env", "MINE=1") == 0
    warnings = [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")]
    assert warnings == ["warning: SERVE_WORKER is no variable that is read here; did you mean SERVE_WORKERS?"]


WRONG = {
    "value of a setting": (["--env", "SERVE_WORKERS=many"], "SERVE_WORKERS='many' is wrong: it must be a whole number"),
    "settings that contradict": (
        ["--env", "SAGEMAKER_TRITON_ALLOW_GRPC=true", "--env", "SAGEMAKER_TRITON_GRPC_PORT=8080"],
        "both 8080",
    ),
    "pair": (["--env", "SERVE_WORKERS"], "--env takes KEY=VALUE, got 'SERVE_WORKERS'"),
    "long value": (["--env", "A=" + "x" * 1025], "--env A: the value has 1025 characters, SageMaker allows 1024"),
    "model data": (["--model-data", "s3://b/model.zip"], "--model-data 's3://b/model.zip'"),
    "multi-model folder": (["--multi-model", "s3://b/x"], "must end with /"),
    "no S3": (["--multi-model", "/tmp/"], "'/tmp/' is not an S3 folder"),
    "serverless memory": (["--serverless", "5000"], "--serverless must be 1024, 2048, 3072, 4096, 5120, 6144 MB"),
    "serverless concurrency": (["--serverless", "1024", "--max-concurrency", "201"], "must be 1 to 200"),
    "serverless zero": (["--serverless", "1024", "--max-concurrency", "0"], "must be 1 to 200"),
    "serverless GPU": (["--serverless", "1024", "--instance-type", "ml.g4dn.xlarge"], "which has no instances"),
    "serverless multi-model": (["--serverless", "1024", "--multi-model", "s3://b/x/"], "exclude each other"),
    "serverless in a VPC": (["--serverless", "1024", "--subnet", "a", "--security-group", "b"], "exclude each other"),
    "concurrency of instances": (["--max-concurrency", "3"], "--max-concurrency is for --serverless"),
    "async multi-model": (["--async", "s3://b/", "--multi-model", "s3://b/x/"], "has no TargetModel"),
    "topic without async": (["--on-error", "arn"], "need --async"),
    "two sources": (["--multi-model", "s3://b/x/", "--model-data", "s3://b/y/"], "exclude each other"),
    "health timeout": (["--health-timeout", "30"], "--health-timeout must be 60 to 3600 seconds"),
    "no instance": (["--instances", "0"], "--instances must be 1 or more"),
    "instance type": (["--instance-type", "c5.xlarge"], "SageMaker's names begin with ml."),
    "half a network": (["--subnet", "subnet-1"], "--subnet and --security-group need each other"),
    "name": (
        ["--name", "a_b"],
        "--name 'a_b' must be letters and digits, with - only between them, at most 46 characters",
    ),
}


@pytest.mark.parametrize(("words", "text"), WRONG.values(), ids=WRONG)
def test_a_command_line_that_makes_no_sense_is_refused_before_any_call(
    bare_aws: Aws, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bare_aws.deploy("create", *words) == 2
    err = capsys.readouterr().err
    assert text in err
    assert err.startswith("python -m deploy create: ")
    assert err.count("\n") == 1
    assert bare_aws.calls == []
