"""push against moto's ECR, with stand-ins for the engines: programs that write down how they were called."""

import base64
from pathlib import Path

import pytest

from tests.deploy.conftest import Aws, add_engine

URI = "123456789012.dkr.ecr.eu-west-1.amazonaws.com/triton-multi-model:v1"
MANIFEST = '{{"schemaVersion": 2, "mediaType": "{}", "config": {{"digest": "sha256:0"}}, "layers": []}}'
OCI = "application/vnd.oci.image.manifest.v1+json"
DOCKER = "application/vnd.docker.distribution.manifest.v2+json"


@pytest.fixture
def engines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is the whole PATH, and the file of calls."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for name in ("sh", "cat", "basename"):
        (folder / name).symlink_to(Path("/bin") / name if (Path("/bin") / name).exists() else Path("/usr/bin") / name)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return folder


def put_image(aws: Aws, media_type: str) -> None:
    """What the engine would have pushed."""
    aws.client("ecr").put_image(
        repositoryName="triton-multi-model",
        imageManifest=MANIFEST.format(media_type),
        imageTag="v1",
        imageManifestMediaType=media_type,
    )


@pytest.mark.parametrize(
    ("name", "push"),
    [("docker", f"push {URI}"), ("podman", f"push --format v2s2 {URI}"), ("buildah", f"push --format v2s2 {URI}")],
)
def test_the_engine_that_is_there_logs_in_tags_and_pushes(
    aws: Aws, engines: Path, tmp_path: Path, name: str, push: str, capsys: pytest.CaptureFixture[str]
) -> None:
    add_engine(engines, name)
    put_image(aws, DOCKER)
    assert aws.deploy("push", "--tag", "v1") == 0
    seen = capsys.readouterr()
    assert seen.out == f"{URI}\n"
    assert "warning" not in seen.err
    registry = "123456789012.dkr.ecr.eu-west-1.amazonaws.com"
    assert (tmp_path / "calls").read_text().splitlines() == [
        f"{name} login --username AWS --password-stdin {registry}",
        f"{name} tag triton-multi-model {URI}",
        f"{name} {push}",
    ]
    token = aws.client("ecr").get_authorization_token()["authorizationData"][0]["authorizationToken"]
    password = base64.b64decode(token).decode().removeprefix("AWS:")
    assert (tmp_path / "calls.stdin").read_text() == password
    assert password not in seen.out + seen.err


def test_a_missing_repository_is_made_with_our_tag(bare_aws: Aws, engines: Path) -> None:
    add_engine(engines, "podman")
    assert bare_aws.deploy("push", "--tag", "v1", "--dry-run") == 0
    assert bare_aws.inventory()["repositories"] == []
    assert bare_aws.deploy("push", "--tag", "v1") == 0
    (repository,) = bare_aws.client("ecr").describe_repositories()["repositories"]
    tags = bare_aws.client("ecr").list_tags_for_resource(resourceArn=repository["repositoryArn"])["tags"]
    assert tags == [{"Key": "created-by", "Value": "triton-multi-model"}]
    assert repository["imageScanningConfiguration"] == {"scanOnPush": True}


def test_an_oci_manifest_is_warned_of(aws: Aws, engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_engine(engines, "docker")
    put_image(aws, OCI)
    assert aws.deploy("push", "--tag", "v1") == 0
    assert "warning: the image has an OCI manifest, which SageMaker refuses" in capsys.readouterr().err


def test_a_failed_push_is_a_failure(
    aws: Aws, engines: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_engine(engines, "docker")
    monkeypatch.setenv("PUSH_EXIT", "3")
    assert aws.deploy("push", "--tag", "v1") == 1
    assert capsys.readouterr().err.endswith(f"'docker push {URI}' failed with exit code 3; its output says why\n")


def test_an_engine_and_a_tag_must_be_there(aws: Aws, engines: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert aws.deploy("push", "--tag", "v1") == 1
    assert "none of docker, podman, buildah is installed here" in capsys.readouterr().err
    add_engine(engines, "docker")
    assert aws.deploy("push", "--tag", "v1", "--engine", "podman") == 1
    assert "podman is not installed here; --engine names another" in capsys.readouterr().err
    assert aws.deploy("push") == 1  # no git on this PATH
    assert "git describe finds no version here: name one with --tag" in capsys.readouterr().err
    assert aws.deploy("push", "--tag", "a b") == 2
    assert "'a b' is not a valid image tag" in capsys.readouterr().err


def test_the_engine_that_has_the_image_is_taken(
    aws: Aws, engines: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    add_engine(engines, "docker")
    (engines / "docker").write_text("#!/bin/sh\nexit 1\n")  # installed, but its daemon does not run
    add_engine(engines, "podman")
    assert aws.deploy("push", "--tag", "v1") == 0
    assert {line.split()[0] for line in (tmp_path / "calls").read_text().splitlines()} == {"podman"}
    monkeypatch.setenv("NO_IMAGE", "1")
    assert aws.deploy("push", "--tag", "v1") == 1
    assert "docker or podman has no image 'triton-multi-model' here: 'make image' builds it" in capsys.readouterr().err


def test_a_dry_run_prints_the_commands_without_the_password(
    aws: Aws, engines: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    add_engine(engines, "docker")
    assert aws.deploy("push", "--tag", "v1", "--dry-run") == 0
    seen = capsys.readouterr()
    assert '"--password-stdin"' in seen.out
    assert '"password"' not in seen.out + seen.err
    assert not (engines.parent / "calls").exists()
