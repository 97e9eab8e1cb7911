"""The IAM policy in docs/ allows what the code calls, and little else; moto's IAM runs the commands with it."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests

from tests.deploy.conftest import ACCOUNT, Aws
from tests.deploy.shapes import IMAGE, printed
from tests.support.harness import PATIENCE, ROOT

DOCS = ROOT / "docs"
POLICY = json.loads((DOCS / "deploy-policy.json").read_text())
# What AWS asks for besides the calls themselves; docs/deploy.md says what each is for.
IMPLIED = {
    "sagemaker:AddTags",
    "sagemaker:UpdateEndpointWeightsAndCapacities",
    "iam:PassRole",
    "iam:CreateServiceLinkedRole",
    "ecr:TagResource",
    "cloudwatch:TagResource",
    "s3:ListBucket",
    "ecr:BatchCheckLayerAvailability",
    "ecr:BatchGetImage",
    "ecr:CompleteLayerUpload",
    "ecr:GetDownloadUrlForLayer",
    "ecr:InitiateLayerUpload",
    "ecr:PutImage",
    "ecr:UploadLayerPart",
}
# A dry run assumes that it is not there yet; test_components.py makes these calls.
OF_A_COMPONENT_THAT_IS_THERE = {"sagemaker:UpdateInferenceComponent", "sagemaker:UpdateInferenceComponentRuntimeConfig"}
S3 = "s3://bucket/x/"
ALL = [
    ["push", "--tag", "v1"],
    ["create"],
    ["update", "--env", "SERVE_WORKERS=1"],
    ["autoscale"],
    ["autoscale", "--min", "0"],
    ["autoscale", "--remove"],
    ["variant", "--weight", "10", "--env", "SERVE_WORKERS=2"],
    ["variant", "--promote"],
    ["update", "--instance-type", "ml.m5.large"],
    ["create", "--components"],
    ["component", "bert"],
    ["component", "bert", "--remove"],
    ["invoke", "--text", "x"],
    ["invoke", "--text", "x", "--stream"],
    ["invoke", "--text", "x", "--async", S3],
    ["status"],
    ["logs"],
    ["transform", "--input", S3, "--output", S3],
    ["delete"],
]


def actions(policy: dict[str, Any]) -> list[str]:
    listed = [statement["Action"] for statement in policy["Statement"]]
    return [action for each in listed for action in ([each] if isinstance(each, str) else each)]


def test_it_allows_the_calls_that_the_code_makes_and_what_these_imply(
    aws: Aws, docker: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in ALL:
        assert aws.deploy(*words, "--dry-run") == 0, capsys.readouterr().err
    calls = printed(capsys.readouterr().out)
    needed = {f"{service.removesuffix('-runtime')}:{operation}" for service, operation, _ in calls}
    listed = actions(POLICY)
    assert set(listed) == needed | IMPLIED | OF_A_COMPONENT_THAT_IS_THERE
    assert len(listed) == len(set(listed))


def test_it_is_least_privilege() -> None:
    """No wildcard among the actions; all resources only where AWS knows none, or with a condition."""
    assert not [action for action in actions(POLICY) if "*" in action]
    for statement in POLICY["Statement"]:
        assert statement["Resource"] != "*" or statement["Sid"] == "Listings" or "Condition" in statement


@pytest.mark.parametrize("name", ["deploy-policy", "execution-role-policy"])
def test_iam_takes_the_policies(aws: Aws, name: str) -> None:
    document = (DOCS / f"{name}.json").read_text()
    aws.client("iam").create_policy(PolicyName=name, PolicyDocument=document)


def test_iam_takes_the_trust_of_the_execution_role(aws: Aws) -> None:
    document = (DOCS / "execution-role-trust.json").read_text().replace("ACCOUNT", "123456789012")
    aws.client("iam").create_role(RoleName="another", AssumeRolePolicyDocument=document)


def test_the_execution_role_is_for_one_account_only() -> None:
    """Else another account's SageMaker could be made to assume it (AWS: the confused deputy problem)."""
    for statement in json.loads((DOCS / "execution-role-trust.json").read_text())["Statement"]:
        assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": "ACCOUNT"}
        assert ":ACCOUNT:" in statement["Condition"]["ArnLike"]["aws:SourceArn"]


def test_the_execution_role_reaches_a_vpc_and_tells_topics_of_its_own() -> None:
    """What AWS's page on execution roles (SageMaker, CreateModel) asks for a VPC, and asynchronous results."""
    allowed = {each["Sid"]: each for each in json.loads((DOCS / "execution-role-policy.json").read_text())["Statement"]}
    interface = {f"ec2:{verb}NetworkInterface{of}" for verb in ("Create", "Delete") for of in ("", "Permission")}
    seen = ("NetworkInterfaces", "Vpcs", "DhcpOptions", "Subnets", "SecurityGroups")
    assert set(allowed["ReachTheVpc"]["Action"]) == interface | {f"ec2:Describe{each}" for each in seen}
    topics = allowed["TellOfAsynchronousResults"]
    assert (topics["Action"], topics["Resource"]) == ("sns:Publish", "arn:aws:sns:*:*:triton-multi-model*")


def become(aws: Aws, monkeypatch: pytest.MonkeyPatch, allowed: list[str]) -> None:
    """A user who may do only that. moto knows no resources of these services, so they are all open.

    It also calls CloudWatch's actions by the name that signs its requests, monitoring.
    """
    known = [*allowed, *(action.replace("cloudwatch:", "monitoring:") for action in allowed)]
    statement = {"Effect": "Allow", "Action": known, "Resource": "*"}
    iam = aws.client("iam")
    iam.create_user(UserName="deployer")
    document = json.dumps({"Version": "2012-10-17", "Statement": [statement]})
    iam.put_user_policy(UserName="deployer", PolicyName="deploy", PolicyDocument=document)
    key = iam.create_access_key(UserName="deployer")["AccessKey"]
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key["AccessKeyId"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", key["SecretAccessKey"])
    requests.post(f"{aws.url}/moto-api/reset-auth", data=b"0", timeout=PATIENCE).raise_for_status()


@pytest.fixture
def guarded(aws: Aws) -> Iterator[Aws]:
    """moto asks IAM about every call, from `become` to the test's end."""
    yield aws
    requests.post(f"{aws.url}/moto-api/reset-auth", data=b"inf", timeout=PATIENCE).raise_for_status()


def test_with_it_the_commands_run(guarded: Aws, monkeypatch: pytest.MonkeyPatch) -> None:
    become(guarded, monkeypatch, actions(POLICY))
    for words in (
        ["create", "--image", IMAGE],
        ["autoscale"],
        ["update", "--image", IMAGE + "1"],
        ["status"],
        ["transform", "--input", S3, "--output", S3],
        ["delete", "--yes"],
    ):
        assert guarded.deploy(*words) == 0


def test_without_it_the_error_names_the_action_and_the_policy(
    guarded: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    become(guarded, monkeypatch, [each for each in actions(POLICY) if each != "sagemaker:CreateModel"])
    assert guarded.deploy("create", "--image", IMAGE) == 1
    err = capsys.readouterr().err.splitlines()[-1]
    assert f"arn:aws:iam::{ACCOUNT}:user/deployer is not authorized to perform: sagemaker:CreateModel" in err
    assert err.endswith("(the policy that this program needs is docs/deploy-policy.json)")


def test_wrong_credentials_say_so(
    guarded: Aws, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    become(guarded, monkeypatch, ["s3:GetObject"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    assert guarded.deploy("create", "--image", IMAGE) == 1
    assert "run 'aws configure' or 'aws sso login'" in capsys.readouterr().err.splitlines()[-1]


def test_the_program_starts_as_documented() -> None:
    done = subprocess.run([sys.executable, "-m", "deploy", "--help"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0
    for command in (
        "push",
        "create",
        "update",
        "variant",
        "autoscale",
        "invoke",
        "transform",
        "status",
        "logs",
        "delete",
    ):
        assert re.search(rf"\n    {command}\s", done.stdout)
