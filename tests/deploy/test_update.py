"""update against moto's server, whose missing UpdateEndpoint the tests supply."""

from typing import Any

import pytest
from moto.sagemaker.responses import SageMakerResponse

from deploy.specification import ASYNCHRONOUS
from tests.deploy.conftest import Aws, update_endpoint
from tests.deploy.shapes import IMAGE


def the(aws: Aws, operation: str) -> dict[str, Any]:
    (found,) = [parameters for _, name, parameters in aws.calls if name == operation]
    return found


def test_only_what_is_named_changes_and_the_old_ones_go(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--image", IMAGE, "--env", "SERVE_WORKERS=2", "--model-data", "s3://b/m.tar.gz", "--network-isolation"]
    assert aws.deploy("create", *words, "--instances", "3", "--async", "s3://b/out/") == 0
    aws.calls.clear()
    assert aws.deploy("update", "--env", "SERVE_INFERENCE_THREADS=4", "--env", "SERVE_WORKERS=") == 0
    container = the(aws, "CreateModel")["PrimaryContainer"]
    environment = {**ASYNCHRONOUS, "SERVE_WORKERS": "", "SERVE_INFERENCE_THREADS": "4"}
    assert container == {"Image": IMAGE, "ModelDataUrl": "s3://b/m.tar.gz", "Environment": environment}
    config = the(aws, "CreateEndpointConfig")
    assert config["ProductionVariants"][0]["InitialInstanceCount"] == 3
    assert config["AsyncInferenceConfig"]["OutputConfig"]["S3OutputPath"] == "s3://b/out/"
    there = aws.inventory()
    assert there["models"] == [the(aws, "CreateModel")["ModelName"]]
    assert there["configs"] == [config["EndpointConfigName"]]
    assert capsys.readouterr().out.endswith(f"is InService with {config['EndpointConfigName']}\n")


def test_the_same_settings_are_no_update(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE, "--env", "SERVE_WORKERS=2") == 0
    assert aws.deploy("update", "--env", "SERVE_WORKERS=2") == 0
    assert capsys.readouterr().out.endswith("has these settings already, nothing to do\n")
    assert "UpdateEndpoint" not in aws.names()


def test_the_alarms_watch_errors_and_latency_of_this_endpoint(aws: Aws) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    assert aws.deploy("update", "--image", IMAGE + "1", "--max-5xx", "5", "--max-latency", "800") == 0
    alarms = {alarm["MetricName"]: alarm for alarm in aws.client("cloudwatch").describe_alarms()["MetricAlarms"]}
    assert set(alarms) == {"Invocation5XXErrors", "ModelLatency"}
    assert alarms["Invocation5XXErrors"]["Threshold"] == 0.05
    assert alarms["ModelLatency"]["Threshold"] == 800_000  # microseconds
    assert alarms["ModelLatency"]["ExtendedStatistic"] == "p99"
    dimensions = [
        {"Name": "EndpointName", "Value": "triton-multi-model"},
        {"Name": "VariantName", "Value": "AllTraffic"},
    ]
    assert all(alarm["Dimensions"] == dimensions for alarm in alarms.values())
    rollback = the(aws, "UpdateEndpoint")["DeploymentConfig"]["AutoRollbackConfiguration"]["Alarms"]
    assert sorted(each["AlarmName"] for each in rollback) == sorted(alarm["AlarmName"] for alarm in alarms.values())


def test_somebody_elses_alarm_of_that_name_is_left_alone(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    aws.client("cloudwatch").put_metric_alarm(
        AlarmName="triton-multi-model-rollback-5xx",
        MetricName="mine",
        Namespace="mine",
        Period=60,
        Threshold=7.0,
        EvaluationPeriods=1,
        ComparisonOperator="GreaterThanThreshold",
        Statistic="Sum",
    )
    assert aws.deploy("update", "--image", IMAGE + "1") == 1
    assert "was not made by this program: name your own alarms with --alarm" in capsys.readouterr().err
    assert aws.deploy("delete", "--yes") == 0
    assert aws.inventory()["alarms"] == ["triton-multi-model-rollback-5xx"]


def test_a_rollback_is_a_failure_with_its_reason(
    aws: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    (old,) = aws.inventory()["configs"]

    def begin(self: SageMakerResponse) -> Any:
        reply = update_endpoint(self)
        aws.set_endpoint("Updating")
        return reply

    def roll_back() -> None:
        aws.backend.endpoints["triton-multi-model"].endpoint_config_name = old
        aws.set_endpoint("InService", "alarm triton-multi-model-rollback-5xx rang")

    monkeypatch.setattr(SageMakerResponse, "update_endpoint", begin)
    aws.while_asleep = [lambda: aws.set_endpoint("RollingBack"), roll_back]
    assert aws.deploy("update", "--image", IMAGE + "1") == 1
    err = capsys.readouterr().err
    assert "0:00:10 endpoint triton-multi-model: RollingBack" in err
    assert err.endswith(f"was rolled back, {old} is still served: alarm triton-multi-model-rollback-5xx rang\n")
    assert old in aws.inventory()["configs"]
    monkeypatch.setattr(SageMakerResponse, "update_endpoint", update_endpoint)
    assert aws.deploy("update", "--image", IMAGE + "2") == 0
    assert len(aws.inventory()["configs"]) == len(aws.inventory()["models"]) == 1


def test_a_scaled_endpoint_keeps_its_instance_type(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE) == aws.deploy("autoscale") == 0
    assert aws.deploy("update", "--instance-type", "ml.c5.2xlarge") == 1
    assert "run 'autoscale --remove', 'update', 'autoscale'" in capsys.readouterr().err
    assert aws.deploy("update", "--image", IMAGE + "1", "--instance-type", "ml.c5.xlarge") == 0
    assert the(aws, "UpdateEndpoint")["RetainAllVariantProperties"] is True


def test_a_serverless_endpoint_is_updated_without_guards(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE, "--serverless", "2048") == 0
    assert aws.deploy("update", "--serverless", "4096") == 0
    assert set(the(aws, "UpdateEndpoint")) == {"EndpointName", "EndpointConfigName"}
    assert aws.deploy("update", "--instances", "2") == 2
    assert "the endpoint is serverless" in capsys.readouterr().err
    assert aws.deploy("autoscale") == 1
    assert "scales by itself" in capsys.readouterr().err
    assert aws.deploy("create", "--name", "other", "--image", IMAGE) == 0
    assert aws.deploy("update", "--name", "other", "--serverless", "2048") == 2
    assert "delete it and create it with --serverless" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("status", "advice"), [("Creating", "try again when it is InService"), ("Failed", "'create' replaces it")]
)
def test_an_endpoint_that_is_not_in_service_is_not_updated(
    aws: Aws, status: str, advice: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    aws.set_endpoint(status)
    assert aws.deploy("update", "--image", IMAGE + "1") == 1
    assert f"is {status}: {advice}" in capsys.readouterr().err


def test_there_must_be_an_endpoint(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    for words in (["update"], ["autoscale"], ["status"]):
        assert aws.deploy(*words) == 1
        assert "there is no endpoint 'triton-multi-model' in eu-west-1: 'create' makes one" in capsys.readouterr().err


WRONG = {
    "canary": (["--traffic", "canary", "--percent", "60"], "--percent must be 1 to 50 with --traffic canary"),
    "linear": (["--traffic", "linear", "--percent", "5"], "--percent must be 10 to 50 with --traffic linear"),
    "interval": (["--interval", "4000"], "--interval must be 0 to 3600 seconds"),
    "alarms": (["--alarm", "x", "--no-alarms"], "exclude each other"),
    "threshold": (["--max-5xx", "101"], "--max-5xx is a percentage"),
}


@pytest.mark.parametrize(("words", "text"), WRONG.values(), ids=WRONG)
def test_a_command_line_that_makes_no_sense_is_refused(
    bare_aws: Aws, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bare_aws.deploy("update", *words) == 2
    assert text in capsys.readouterr().err
    assert bare_aws.calls == []
