"""Tests docs/deploy.md and the policies in docs/: its commands run as dry runs, and the policies
allow the calls that the code makes."""

import argparse
import json
import re
import shlex
from typing import Any

import pytest

from deploy.__main__ import build_parser
from tests.support.account import IMAGE, Account
from tests.support.harness import ROOT

pytestmark = pytest.mark.unit

DOCS = ROOT / "docs"
POLICY = json.loads((DOCS / "deploy-policy.json").read_text())
# permissions that AWS requires in addition to the calls themselves; docs/deploy.md explains each
IMPLIED = {
    *("sagemaker:AddTags", "sagemaker:UpdateEndpointWeightsAndCapacities"),
    *("cloudwatch:DeleteAlarms", "cloudwatch:DescribeAlarms", "cloudwatch:PutMetricAlarm"),
    *("iam:PassRole", "iam:CreateServiceLinkedRole"),
    *(
        "ecr:TagResource",
        "ecr:BatchCheckLayerAvailability",
        "ecr:BatchGetImage",
        "ecr:CompleteLayerUpload",
    ),
    *(
        "ecr:GetDownloadUrlForLayer",
        "ecr:InitiateLayerUpload",
        "ecr:PutImage",
        "ecr:UploadLayerPart",
    ),
}
ALL = [
    ["push", "--tag", "v1", "--repository", "new"],
    ["create", "--image", IMAGE],
    ["create", "--name", "other"],
    ["autoscale"],
    ["update", "--env", "SERVE_WORKERS=1"],
    ["status"],
    ["invoke", "--text", "x"],
    ["invoke", "--text", "x", "--stream"],
    ["delete", "--yes"],
]


def actions(policy: dict[str, Any]) -> list[str]:
    listed = [statement["Action"] for statement in policy["Statement"]]
    return [action for each in listed for action in ([each] if isinstance(each, str) else each)]


def test_allow_the_calls_that_the_code_makes_in_the_policy(
    aws: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.scripted["InvokeEndpointWithResponseStream"] = [{"Body": []}]
    for words in ALL:
        extra = ["--dry-run"] if words[0] == "push" else []
        assert aws.deploy(*words, *extra) == 0, capsys.readouterr().err
    needed = {
        f"{service.removesuffix('-runtime')}:{operation}" for service, operation, _ in aws.calls
    }
    listed = actions(POLICY)
    assert set(listed) == needed | IMPLIED | {"ecr:CreateRepository"}
    assert len(listed) == len(set(listed))


def test_grant_least_privilege_in_the_policy() -> None:
    assert not [action for action in actions(POLICY) if "*" in action]
    for statement in POLICY["Statement"]:
        assert (
            statement["Resource"] != "*"
            or statement["Sid"] == "Listings"
            or "Condition" in statement
        )


@pytest.mark.parametrize("name", ["deploy-policy", "execution-role-policy"])
def test_validate_the_policies_with_iam(aws: Account, name: str) -> None:
    aws.client("iam").create_policy(
        PolicyName=name, PolicyDocument=(DOCS / f"{name}.json").read_text()
    )


def test_restrict_the_execution_role_to_one_account(aws: Account) -> None:
    """Otherwise SageMaker could assume the role for another account (AWS calls this the confused
    deputy problem)."""
    text = (DOCS / "execution-role-trust.json").read_text()
    aws.client("iam").create_role(
        RoleName="another", AssumeRolePolicyDocument=text.replace("ACCOUNT", "123456789012")
    )
    for statement in json.loads(text)["Statement"]:
        assert statement["Condition"]["StringEquals"] == {"aws:SourceAccount": "ACCOUNT"}
        assert ":ACCOUNT:" in statement["Condition"]["ArnLike"]["aws:SourceArn"]


TEXT = (ROOT / "docs/deploy.md").read_text()
LINES = re.findall(r"^\.venv/bin/python -m deploy (.*)$", TEXT.replace("\\\n", " "), re.MULTILINE)


@pytest.mark.parametrize("line", LINES)
def test_run_the_dry_runs_of_the_page(
    aws: Account, monkeypatch: pytest.MonkeyPatch, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(ROOT)
    words = shlex.split(line)
    if words[0] != "create":
        assert aws.deploy("create", "--image", IMAGE) == 0
    assert aws.deploy(*words, "--dry-run") == 0, capsys.readouterr().err


def test_name_only_options_that_exist() -> None:
    (commands,) = [
        each for each in build_parser()._actions if isinstance(each, argparse._SubParsersAction)
    ]
    options = {
        option for command in commands.choices.values() for option in command._option_string_actions
    }
    assert set(re.findall(r"(?<=`)--[a-z][a-z0-9-]+", TEXT)) <= options
    assert all(f"`{name}`" in TEXT for name in commands.choices)
