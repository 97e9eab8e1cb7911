"""Implements the command `push`, which pushes the image to ECR, and creates the repository if it
does not exist."""

import base64
import json
import shutil
import subprocess
from collections.abc import Sequence

from deploy.aws import Aws
from deploy.config import with_config
from deploy.errors import DeployError
from deploy.options import ENGINES, PROJECT, Push
from deploy.stack import git_version, say


def push(options: Push, aws: Aws) -> None:
    """Create the ECR repository if it does not exist, and log in to ECR. Then tag and push the
    image, and print its URI to stdout. Raise DeployError if one of the engine's commands fails."""
    engine = options.engine or _working_engine(aws)
    tag = options.tag or git_version()
    token = aws.read("ecr", "GetAuthorizationToken")["authorizationData"][0]
    login = base64.b64decode(token["authorizationToken"]).decode()
    user, _, password = login.partition(":")
    registry = token["proxyEndpoint"].removeprefix("https://")
    uri = f"{registry}/{options.repository}:{tag}"
    _ensure_repository(options, aws)
    _run(aws, [engine, "login", "--username", user, "--password-stdin", registry], password)
    _run(aws, [engine, "tag", options.local_image, uri])
    _run(aws, [engine, "push", *ENGINES[engine], uri])
    _warn_of_oci(aws, options.repository, tag)
    aws.report(uri)


def _working_engine(aws: Aws) -> str:
    """Return the first of ENGINES that works. If none does, raise DeployError, or return "docker"
    in a dry run, which only prints the engine's commands."""
    for engine in ENGINES:
        if _works(engine):
            return engine
    if not aws.dry_run:
        raise DeployError(f"none of {', '.join(ENGINES)} works here")
    return "docker"


def _works(engine: str) -> bool:
    """Return whether the engine is installed and answers. `docker info` fails without a daemon."""
    if not shutil.which(engine):
        return False
    done = subprocess.run([engine, "info"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return done.returncode == 0


def _ensure_repository(options: Push, aws: Aws) -> None:
    name = options.repository
    if aws.find("ecr", "DescribeRepositories", repositoryNames=[name]):
        return
    say(f"creating ECR repository {name}")
    parameters = {
        "repositoryName": name,
        "imageScanningConfiguration": {"scanOnPush": True},
        "tags": [{"Key": "created-by", "Value": PROJECT}],
    }
    parameters = with_config(aws, options.config, "CreateRepository", parameters)
    aws.write("ecr", "CreateRepository", parameters)


def _run(aws: Aws, command: Sequence[str], secret: str = "") -> None:
    """Run a command with `secret` as its standard input. In a dry run, print the command instead.
    Raise DeployError if the command fails."""
    if aws.dry_run:
        print(json.dumps({"command": command}, indent=2), flush=True)
        return
    code = subprocess.run(command, input=secret, text=True).returncode
    if code:
        raise DeployError(
            f"'{' '.join(command)}' failed with exit code {code}; its output says why"
        )


def _warn_of_oci(aws: Aws, repository: str, tag: str) -> None:
    """Warn if the image has an OCI manifest, which CreateModel refuses."""
    images = aws.find(
        "ecr", "DescribeImages", repositoryName=repository, imageIds=[{"imageTag": tag}]
    )
    if images and "oci" in images["imageDetails"][0].get("imageManifestMediaType", ""):
        say(
            "warning: the image has an OCI manifest, which SageMaker refuses; build it with "
            "'docker build --provenance=false --output type=docker', or push it with podman"
        )
