"""Tests the commands create, update, autoscale, status and delete against moto."""

import re

import pytest

from tests.support.account import IMAGE, Account, printed

pytestmark = pytest.mark.unit

NAME = "triton-multi-model"
CREATE = ("create", "--image", IMAGE)
ROLE = f"arn:aws:iam::123456789012:role/{NAME}"
OTHER_TAGS = [{"Key": "created-by", "Value": NAME}, {"Key": "stack", "Value": "other"}]


def make_foreign(aws: Account, name: str, tags: list[dict[str, str]]) -> None:
    sagemaker = aws.client("sagemaker")
    sagemaker.create_model(
        ModelName=name, ExecutionRoleArn=ROLE, PrimaryContainer={"Image": IMAGE}, Tags=tags
    )
    variant = {
        "VariantName": "AllTraffic",
        "ModelName": name,
        "InstanceType": "ml.m5.large",
        "InitialInstanceCount": 1,
    }
    sagemaker.create_endpoint_config(
        EndpointConfigName=name, ProductionVariants=[variant], Tags=tags
    )
    sagemaker.create_endpoint(EndpointName=name, EndpointConfigName=name, Tags=tags)


def test_create_and_delete_without_leaving_or_touching_anything_else(aws: Account) -> None:
    make_foreign(aws, f"{NAME}-0a1b2c3d", [])
    make_foreign(aws, f"{NAME}-other", OTHER_TAGS)
    before = aws.inventory()
    assert aws.deploy(*CREATE) == 0
    assert NAME in aws.inventory()["endpoints"]
    assert aws.deploy("autoscale", "--max", "3", "--concurrency", "4") == 0
    assert aws.deploy("update", "--image", IMAGE + "1") == 0
    assert aws.deploy("delete", "--yes") == 0
    assert aws.inventory() == before


def test_write_nothing_if_nothing_changes(aws: Account) -> None:
    words = (*CREATE, "--model-data", "s3://b/model.tar.gz")
    assert aws.deploy(*words) == 0
    aws.calls.clear()
    assert aws.deploy(*words) == aws.deploy("update") == aws.deploy("update", "--image", IMAGE) == 0
    assert aws.writes() == []


def test_repeat_a_command_that_failed_half_way(aws: Account) -> None:
    before = aws.inventory()
    # AWS refuses this instance type after the model has been created
    assert aws.deploy(*CREATE, "--instance-type", "ml.m5.tiny") == 1
    assert len(aws.inventory()["models"]) == 1
    assert aws.deploy(*CREATE) == 0
    assert len(aws.inventory()["models"]) == 1
    assert aws.deploy("delete", "--yes") == 0
    assert aws.inventory() == before


def test_replace_only_a_failed_endpoint_on_create(
    aws: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy(*CREATE) == 0
    assert aws.deploy(*CREATE, "--instances", "2") == 1
    assert "'update'" in capsys.readouterr().err
    reply = aws.client("sagemaker").describe_endpoint(EndpointName=NAME)
    aws.scripted["DescribeEndpoint"] = [{**reply, "EndpointStatus": "Failed"}]
    aws.calls.clear()
    assert aws.deploy(*CREATE) == 0
    assert [name for _, name, _ in aws.writes()] == ["DeleteEndpoint", "CreateEndpoint"]


def test_leave_endpoints_alone_that_deploy_did_not_create(aws: Account) -> None:
    make_foreign(aws, NAME, [])
    before = aws.inventory()
    for words in (CREATE, ("update", "--image", IMAGE), ("autoscale",), ("status",)):
        assert aws.deploy(*words) == 1
    assert aws.deploy("delete", "--yes") == 0
    assert aws.inventory() == before


def test_say_how_to_make_a_missing_repository_or_role(
    aws: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.client("ecr").delete_repository(repositoryName=NAME)
    assert aws.deploy("create") == 1
    assert "'push'" in capsys.readouterr().err
    assert aws.deploy(*CREATE, "--role", "nobody") == 1
    assert "--role" in capsys.readouterr().err


def test_turn_options_into_fields_of_the_requests(aws: Account) -> None:
    words = ["--model-data", "s3://b/models/", "--env", "SERVE_WORKERS=2", "--instances", "2"]
    assert aws.deploy(*CREATE, *words, "--instance-type", "ml.m5.large") == 0
    config, model = aws.described()
    assert config["ProductionVariants"][0]["InstanceType"] == "ml.m5.large"
    assert config["ProductionVariants"][0]["InitialInstanceCount"] == 2
    assert model["ExecutionRoleArn"] == ROLE
    container = model["PrimaryContainer"]
    assert (container["Image"], container["Environment"]) == (IMAGE, {"SERVE_WORKERS": "2"})
    assert container["ModelDataSource"]["S3DataSource"]["S3Uri"] == "s3://b/models/"
    assert aws.deploy(*CREATE, "--name", "many", "--multi-model", "s3://b/archives/") == 0
    container = aws.described("many")[1]["PrimaryContainer"]
    assert (container["Mode"], container["ModelDataUrl"]) == ("MultiModel", "s3://b/archives/")
    data = ("--name", "many", "--model-data", "s3://b/model.tar.gz")
    assert aws.deploy(*CREATE, *data, "--multi-model", "s3://b/archives/") == 2
    assert aws.deploy("update", *data) == 0
    assert "Mode" not in aws.described("many")[1]["PrimaryContainer"]


def test_keep_what_an_update_does_not_name_and_delete_the_old_model(aws: Account) -> None:
    words = ("--model-data", "s3://b/model.tar.gz", "--env", "SERVE_WORKERS=2", "--env", "MINE=1")
    assert aws.deploy(*CREATE, *words, "--instance-type", "ml.m5.large") == 0
    scaled = aws.client("sagemaker").describe_endpoint(EndpointName=NAME)
    scaled["ProductionVariants"][0]["DesiredInstanceCount"] = 5
    aws.scripted["DescribeEndpoint"] = [scaled]
    assert aws.deploy("update", "--env", "SERVE_WORKERS=3", "--env", "MINE=") == 0
    config, model = aws.described()
    container = model["PrimaryContainer"]
    assert container["Environment"] == {"SERVE_WORKERS": "3", "MINE": ""}
    assert (container["Image"], container["ModelDataUrl"]) == (IMAGE, "s3://b/model.tar.gz")
    assert config["ProductionVariants"][0]["InstanceType"] == "ml.m5.large"
    assert config["ProductionVariants"][0]["InitialInstanceCount"] == 5
    assert aws.inventory()["models"] == {model["ModelName"]}
    assert aws.inventory()["configs"] == {config["EndpointConfigName"]}


def test_refuse_to_update_an_endpoint_that_is_changing(aws: Account) -> None:
    assert aws.deploy(*CREATE) == 0
    reply = aws.client("sagemaker").describe_endpoint(EndpointName=NAME)
    aws.scripted["DescribeEndpoint"] = [{**reply, "EndpointStatus": "Updating"}]
    assert aws.deploy("update", "--image", IMAGE + "1") == 1
    assert aws.described()[1]["PrimaryContainer"]["Image"] == IMAGE


def test_report_a_failed_endpoint_with_reason_and_log(
    aws: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    states = [
        {"EndpointStatus": "Creating"},
        {"EndpointStatus": "Failed", "FailureReason": "no /ping"},
    ]
    absent = {"Error": {"Code": "ValidationException", "Message": "Could not find endpoint"}}
    aws.scripted["DescribeEndpoint"] = [absent, *states]
    assert aws.deploy(*CREATE) == 1
    assert "no /ping" in (err := capsys.readouterr().err)
    assert f"/aws/sagemaker/Endpoints/{NAME}" in err


def test_fail_and_keep_the_old_model_if_an_update_rolls_back(
    aws: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy(*CREATE) == 0
    reply = aws.client("sagemaker").describe_endpoint(EndpointName=NAME)
    rolled_back = {**reply, "FailureReason": "alarm"}
    aws.scripted["DescribeEndpoint"] = [
        reply,
        {**reply, "EndpointStatus": "RollingBack"},
        rolled_back,
        rolled_back,
    ]
    assert aws.deploy("update", "--image", IMAGE + "1") == 1
    assert "alarm" in capsys.readouterr().err
    assert len(aws.inventory()["models"]) == 2


def test_set_replace_and_remove_scaling(aws: Account) -> None:
    assert aws.deploy(*CREATE) == 0
    assert (
        aws.deploy("autoscale", "--min", "2", "--max", "6")
        == aws.deploy("autoscale", "--concurrency", "5")
        == 0
    )
    (target,), (policy,) = aws.inventory()["targets"], aws.inventory()["policies"]
    assert (target["MinCapacity"], target["MaxCapacity"]) == (1, 4)
    tracking = policy["TargetTrackingScalingPolicyConfiguration"]
    assert tracking["TargetValue"] == 5.0
    assert "ConcurrentRequests" in tracking["PredefinedMetricSpecification"]["PredefinedMetricType"]
    assert aws.deploy("autoscale", "--min", "4", "--max", "2") == 2
    assert aws.deploy("autoscale", "--remove") == 0
    assert aws.inventory()["targets"] == aws.inventory()["policies"] == []


def test_print_the_status_without_secrets(aws: Account, capsys: pytest.CaptureFixture[str]) -> None:
    assert (
        aws.deploy(*CREATE, "--env", "HF_TOKEN=hush", "--env", "SERVE_WORKERS=2")
        == aws.deploy("autoscale")
        == 0
    )
    capsys.readouterr()
    assert aws.deploy("status") == 0
    rows = [tuple(re.split(r"  +", line)) for line in capsys.readouterr().out.splitlines()]
    assert {("status", "InService"), ("instances", "1, ml.c5.xlarge"), ("image", IMAGE)} <= {*rows}
    assert {
        ("scaling", "1 to 4"),
        ("variable", "HF_TOKEN=********"),
        ("variable", "SERVE_WORKERS=2"),
    } <= {*rows}


def test_ask_before_deleting(aws: Account) -> None:
    assert aws.deploy(*CREATE) == 0
    assert aws.deploy("delete") == 2  # it cannot ask, because standard input is not a terminal
    assert NAME in aws.inventory()["endpoints"]


COMMANDS = [
    ["update", "--image", IMAGE + "1", "--env", "HF_TOKEN=hush"],
    ["update", "--instances", "3"],
    ["autoscale"],
    ["delete", "--yes"],
]


@pytest.mark.parametrize("words", COMMANDS)
def test_print_the_calls_in_a_dry_run(
    aws: Account, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    aws.deploy(*CREATE)
    aws.deploy("autoscale")
    aws.calls.clear()
    capsys.readouterr()
    assert aws.deploy(*words, "--dry-run") == 0
    assert aws.writes() == []
    assert aws.calls  # it makes only calls that read
    out, err = capsys.readouterr()
    promised = printed(out)
    assert "hush" not in out
    assert err.startswith("dry run")
    assert aws.deploy(*words) == 0
    assert [call[:2] for call in promised] == [call[:2] for call in aws.writes()]
    if "hush" not in str(aws.writes()):
        assert promised == aws.writes()


def test_print_what_create_would_do_before_the_image_and_the_role_exist(
    aws: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["create", "--role", "nobody", "--region", "us-west-2"]
    assert aws.deploy(*words, "--dry-run") == 0
    reply = capsys.readouterr()
    assert [call[1] for call in printed(reply.out)] == [
        "CreateModel",
        "CreateEndpointConfig",
        "CreateEndpoint",
    ]
    assert "run 'push' first" in reply.err
    assert "there is no role 'nobody'" in reply.err
    assert aws.deploy(*words) == 1
    assert aws.writes() == []


WRONG = {
    "value of a setting": ["--env", "SERVE_WORKERS=many"],
    "environment pair": ["--env", "SERVE_WORKERS"],
    "bound": ["--instances", "0"],
}


@pytest.mark.parametrize("words", WRONG.values(), ids=WRONG)
def test_write_nothing_with_wrong_options(
    aws: Account, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy(*CREATE, *words) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert aws.writes() == []


@pytest.mark.parametrize(
    "words",
    [
        ["--model-data", "s3://b/model.zip"],
        ["--model-data", "s3://b/models"],
        ["--model-data", "model.tar.gz"],
        ["--multi-model", "archives/"],
        ["--multi-model", "s3://b/one.tar.gz"],
        ["--instance-type", "c5.xlarge"],
    ],
    ids=" ".join,
)
def test_refuse_a_value_that_aws_would_refuse(
    aws: Account, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        aws.deploy(*CREATE, *words)
    assert f"argument {words[0]}: '{words[1]}' must be" in capsys.readouterr().err
    assert aws.calls == []


def test_warn_of_a_variable_that_resembles_a_setting(
    aws: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy(*CREATE, "--env", "SERVE_WORKER=2", "--env", "MINE=1") == 0
    (warning,) = [
        line for line in capsys.readouterr().err.splitlines() if line.startswith("warning")
    ]
    assert "SERVE_WORKERS" in warning


@pytest.mark.parametrize(
    ("words", "warned"),
    [
        (["--instance-type", "ml.g4dn.xlarge"], True),
        (
            [
                "--instance-type",
                "ml.g5.xlarge",
                "--inference-ami",
                "al2-ami-sagemaker-inference-gpu-3-1",
            ],
            True,
        ),
        (
            [
                "--instance-type",
                "ml.p4d.24xlarge",
                "--inference-ami",
                "al2023-ami-sagemaker-inference-gpu-4-1",
            ],
            False,
        ),
        (["--instance-type", "ml.m5.large"], False),
    ],
)
def test_warn_of_old_drivers(
    aws: Account, words: list[str], warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy(*CREATE, *words, "--dry-run") == 0
    assert ("warning" in capsys.readouterr().err) == warned


def test_name_the_policy_if_a_call_is_refused(
    aws: Account, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.scripted["DescribeEndpoint"] = [
        {"Error": {"Code": "AccessDeniedException", "Message": "no"}}
    ]
    assert aws.deploy(*CREATE) == 1
    assert "docs/deploy-policy.json" in capsys.readouterr().err


def test_require_a_region(
    aws: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from deploy.__main__ import main

    monkeypatch.delenv("AWS_REGION")
    monkeypatch.delenv("AWS_DEFAULT_REGION", raising=False)
    assert main(["status"]) == 2
    assert "--region" in capsys.readouterr().err
