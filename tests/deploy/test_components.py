"""create --components and component: models with processors, memory and copies of their own on one endpoint."""

from typing import Any

import pytest

from tests.deploy.conftest import Aws
from tests.deploy.shapes import IMAGE, assert_valid, printed

BERT = "triton-multi-model-bert"
SIZE = ["--cpus", "2", "--memory", "4096"]


@pytest.fixture
def instances(aws: Aws) -> Aws:
    """An endpoint without a model."""
    assert aws.deploy("create", "--components", "--instance-type", "ml.c5.2xlarge", "--tag", "team=a") == 0
    aws.calls.clear()
    return aws


def made(aws: Aws, operation: str) -> dict[str, Any]:
    (parameters,) = [parameters for _, name, parameters in aws.calls if name == operation]
    return parameters


def test_the_endpoint_has_instances_and_a_role_and_no_model(aws: Aws) -> None:
    network = ["--network-isolation", "--subnet", "subnet-1", "--security-group", "sg-1"]
    assert aws.deploy("create", "--components", "--instances", "2", *network) == 0
    config = made(aws, "CreateEndpointConfig")
    (variant,) = config["ProductionVariants"]
    assert (variant["InitialInstanceCount"], variant["InstanceType"]) == (2, "ml.c5.xlarge")
    assert "ModelName" not in variant
    assert config["ExecutionRoleArn"].endswith(":role/triton-multi-model")
    assert config["EnableNetworkIsolation"]
    assert config["VpcConfig"] == {"SecurityGroupIds": ["sg-1"], "Subnets": ["subnet-1"]}
    assert aws.inventory()["models"] == []
    assert_valid(aws.calls)


def test_a_component_is_created_changed_and_removed(instances: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    first = ["component", "bert", "--model", "bert", "--image", IMAGE, *SIZE, "--copies", "2"]
    assert instances.deploy(*first, "--env", "SERVE_WORKERS=1", "--tag", "team=b") == 0
    created = made(instances, "CreateInferenceComponent")
    assert (created["InferenceComponentName"], created["EndpointName"]) == (BERT, "triton-multi-model")
    assert created["VariantName"] == "AllTraffic"
    environment = {"SAGEMAKER_TRITON_DEFAULT_MODEL_NAME": "bert", "SERVE_WORKERS": "1"}
    needs = {"NumberOfCpuCoresRequired": 2.0, "MinMemoryRequiredInMb": 4096}
    container = {"Image": IMAGE, "Environment": environment}
    assert created["Specification"] == {"Container": container, "ComputeResourceRequirements": needs}
    assert created["RuntimeConfig"] == {"CopyCount": 2}
    assert {"Key": "team", "Value": "b"} in created["Tags"]
    capsys.readouterr()
    assert instances.deploy("status") == 0
    assert (
        "component triton-multi-model-bert  InService, 2 of 2 copies, each 2 cpus, 4096 MB" in capsys.readouterr().out
    )
    instances.calls.clear()
    assert instances.deploy("component", "bert", "--copies", "3") == 0
    assert made(instances, "UpdateInferenceComponentRuntimeConfig")["DesiredRuntimeConfig"] == {"CopyCount": 3}
    assert instances.deploy("component", "bert", "--image", IMAGE + "1", "--memory", "8192") == 0
    changed = made(instances, "UpdateInferenceComponent")["Specification"]
    assert changed["Container"] == {**container, "Image": IMAGE + "1"}
    assert changed["ComputeResourceRequirements"] == {**needs, "MinMemoryRequiredInMb": 8192}
    assert instances.components.found[BERT]["CopyCount"] == 3
    capsys.readouterr()
    assert instances.deploy("component", "bert", "--memory", "8192") == 0
    assert "nothing to do" in capsys.readouterr().out
    assert instances.deploy("component", "bert", "--remove") == 0
    assert instances.components.found == {}
    assert_valid(instances.calls)


def test_an_archive_is_a_component_s_model(instances: Aws) -> None:
    archive = "s3://bucket/own.tar.gz"
    words = ["--model-data", archive, "--health-timeout", "600", "--download-timeout", "900", "--gpus", "1"]
    assert instances.deploy("component", "own", "--image", IMAGE, *words) == 0
    wanted = made(instances, "CreateInferenceComponent")["Specification"]
    assert wanted["Container"] == {"Image": IMAGE, "ArtifactUrl": archive}
    assert wanted["ComputeResourceRequirements"]["NumberOfAcceleratorDevicesRequired"] == 1
    started = {"ModelDataDownloadTimeoutInSeconds": 900, "ContainerStartupHealthCheckTimeoutInSeconds": 600}
    assert wanted["StartupParameters"] == started
    assert instances.deploy("component", "own", "--copies", "2", "--cpus", "4") == 0
    kept = made(instances, "UpdateInferenceComponent")
    assert kept["Specification"]["Container"] == wanted["Container"]
    assert kept["Specification"]["StartupParameters"] == started
    assert kept["RuntimeConfig"] == {"CopyCount": 2}


def test_a_component_that_fails_shows_its_log_and_the_reason(
    instances: Aws, capsys: pytest.CaptureFixture[str]
) -> None:
    instances.components.status = "Failed"
    instances.write_log(f"/aws/sagemaker/InferenceComponents/{BERT}", "AllTraffic/i-1", "it fell over")
    assert instances.deploy("component", "bert", "--image", IMAGE) == 1
    told = capsys.readouterr().err
    assert "it fell over" in told
    assert f"component {BERT} is Failed: no room" in told


def test_delete_takes_the_components_first(instances: Aws) -> None:
    for name in ("bert", "resnet"):
        assert instances.deploy("component", name, "--image", IMAGE) == 0
    assert instances.deploy("delete", "--yes") == 0
    assert instances.components.found == {}
    names = instances.names()
    assert names.index("DeleteInferenceComponent") < names.index("DeleteEndpoint")
    found = instances.inventory()
    assert found["endpoints"] == found["configs"] == []


def test_a_call_names_its_component(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    for way in ([], ["--stream"]):
        assert aws.deploy("invoke", "--text", "hello", "--component", "bert", *way, "--dry-run") == 0
        calls = printed(capsys.readouterr().out)
        assert [parameters["InferenceComponentName"] for _, _, parameters in calls] == [BERT]


DRY = [
    ["create", "--components", "--kms-key", "alias/mine", "--no-wait"],
    ["component", "bert", "--model", "bert", *SIZE],
    ["component", "bert", "--remove"],
]


@pytest.mark.parametrize("words", DRY, ids=" ".join)
def test_a_dry_run_prints_what_botocore_takes_and_calls_nothing(
    aws: Aws, words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy(*words, "--dry-run") == 0
    assert_valid(printed(capsys.readouterr().out))
    assert aws.calls == []


WRONG: dict[str, tuple[list[str], str, int]] = {
    "a model of the endpoint": (["create", "--components", "--image", IMAGE], "--components and --image exclude", 2),
    "serverless": (["create", "--components", "--serverless", "2048"], "--components and --serverless exclude", 2),
    "files": (["component", "bert", "--model-data", "s3://b/x/"], "is one archive", 2),
    "no copies": (["component", "bert", "--copies", "0"], "--copies must be above 0", 2),
    "a name": (["component", "b_ert"], "must be letters and digits", 2),
    "what to remove": (["component", "bert", "--remove", "--copies", "1"], "--remove takes no other options", 2),
    "none to remove": (["component", "bert", "--remove"], "there is no component", 1),
    "update": (["update", "--image", IMAGE], "models are inference components", 1),
    "variant": (["variant", "--weight", "10", "--image", IMAGE], "models are inference components", 1),
    "autoscale": (["autoscale"], "models are inference components", 1),
    "async call": (["invoke", "--text", "x", "--component", "b", "--async", "s3://b/x/"], "works with none of", 2),
}


@pytest.mark.parametrize(("words", "text", "code"), WRONG.values(), ids=WRONG)
def test_what_cannot_be_is_refused(
    instances: Aws, words: list[str], text: str, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert instances.deploy(*words) == code
    assert text in capsys.readouterr().err


def test_an_endpoint_of_one_container_takes_no_components(aws: Aws, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("create", "--image", IMAGE) == 0
    assert aws.deploy("component", "bert", "--image", IMAGE) == 1
    assert "'create --components' makes another kind" in capsys.readouterr().err
