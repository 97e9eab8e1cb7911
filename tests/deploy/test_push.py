"""Tests the command push against moto's ECR. Stand-ins replace the container engines and record how
they were called."""

import base64
import os
from pathlib import Path

import pytest

from tests.support.account import Account

pytestmark = pytest.mark.unit

REGISTRY = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
URI = f"{REGISTRY}/triton-multi-model:v1"
ENGINE = """#!/bin/sh
if [ "$1" = info ]; then exit "${INFO_EXIT:-0}"; fi
echo "${0##*/} $*" >> "$CALLS"
case "$*" in
  *--password-stdin*) read -r line; echo "$line" >> "$CALLS.stdin" ;;
  push*) exit "${PUSH_EXIT:-0}" ;;
esac
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Path:
    """Make the parametrized engine the only one on PATH. Return the file that records its calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    (folder / "sh").symlink_to("/bin/sh")
    program = folder / getattr(request, "param", "podman")
    program.write_text(ENGINE)
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


@pytest.mark.parametrize(
    ("engine", "push"),
    [
        ("docker", f"push {URI}"),
        ("podman", f"push --format v2s2 {URI}"),
        ("buildah", f"push --format v2s2 {URI}"),
    ],
    indirect=["engine"],
)
def test_tag_and_push_with_the_engine(
    aws: Account, engine: Path, push: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aws.deploy("push", "--tag", "v1") == 0
    seen = capsys.readouterr()
    assert seen.out == f"{URI}\n"
    calls = [line.partition(" ")[2] for line in engine.read_text().splitlines()]
    assert calls == [
        f"login --username AWS --password-stdin {REGISTRY}",
        f"tag triton-multi-model {URI}",
        push,
    ]
    token = aws.client("ecr").get_authorization_token()["authorizationData"][0][
        "authorizationToken"
    ]
    password = base64.b64decode(token).decode().removeprefix("AWS:")
    assert Path(f"{engine}.stdin").read_text().strip() == password
    assert password not in seen.out + seen.err + engine.read_text()


def test_create_a_missing_repository_unless_it_is_a_dry_run(aws: Account, engine: Path) -> None:
    words = ("push", "--tag", "v1", "--repository", "other")
    before = aws.inventory()
    assert aws.deploy(*words, "--dry-run") == 0
    assert aws.inventory() == before
    assert not engine.exists()
    assert aws.deploy(*words) == 0
    (other,) = [
        r
        for r in aws.client("ecr").describe_repositories()["repositories"]
        if r["repositoryName"] == "other"
    ]
    tags = aws.client("ecr").list_tags_for_resource(resourceArn=other["repositoryArn"])["tags"]
    assert tags == [{"Key": "created-by", "Value": "triton-multi-model"}]
    assert other["imageScanningConfiguration"] == {"scanOnPush": True}


@pytest.mark.parametrize(("kind", "warned"), [("oci.image", True), ("docker.distribution", False)])
def test_warn_of_oci_manifests(
    aws: Account, engine: Path, kind: str, warned: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    detail = {
        "imageDetails": [{"imageManifestMediaType": f"application/vnd.{kind}.manifest.v1+json"}]
    }
    aws.scripted["DescribeImages"] = [detail]
    assert aws.deploy("push", "--tag", "v1") == 0
    assert ("warning" in capsys.readouterr().err) == warned


def test_report_a_failed_push(
    aws: Account, engine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PUSH_EXIT", "3")
    assert aws.deploy("push", "--tag", "v1") == 1
    assert "exit code 3" in capsys.readouterr().err


def test_push_with_the_engine_that_make_image_uses(
    aws: Account, engine: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docker = Path(os.environ["PATH"]) / "docker"
    docker.write_text("#!/bin/sh\nexit 1\n")  # as `docker info` without a daemon
    docker.chmod(0o755)
    assert aws.deploy("push", "--tag", "v1", "--dry-run") == 0
    assert '"podman"' in capsys.readouterr().out


def test_require_an_engine_that_works(
    aws: Account, engine: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INFO_EXIT", "1")
    assert aws.deploy("push", "--tag", "v1") == 1
    assert "none of docker, podman, buildah works here" in capsys.readouterr().err


def test_require_an_engine(
    aws: Account, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert aws.deploy("push", "--tag", "v1") == 1
    assert "podman" in capsys.readouterr().err
    assert aws.calls == []
