"""push: pushes the image to ECR; creates the repository if there is none."""

import argparse
import base64
import re

from deploy.calls import Reply
from deploy.context import Context
from deploy.endpoint import assumed_repository
from deploy.engine import ENGINES, PUSH_OPTIONS, choose
from deploy.errors import DeployError, UsageError
from deploy.stack import PROJECT, tags

HELP = "push the image to ECR"
ASSUMED_TOKEN = base64.b64encode(b"AWS:password").decode()


def configure(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("--local-image", default=PROJECT, metavar="IMAGE", help="image to push (default: %(default)s)")
    parser.add_argument("--repository", default=PROJECT, help="repository in ECR (default: %(default)s)")
    parser.add_argument("--tag", help="default: git describe --tags --always --dirty")
    parser.add_argument("--engine", choices=("auto", *ENGINES), default="auto", help="auto: the first one installed")


def run(arguments: argparse.Namespace, context: Context) -> None:
    """Logs in, tags and pushes; prints the image's URI to stdout."""
    engine = choose(context.engine, arguments.engine, arguments.local_image)
    tag = arguments.tag or context.engine.version()
    if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}", tag):
        raise UsageError(f"'{tag}' is not a valid image tag: letters, digits and . _ -, at most 128 characters")
    repository = ensure_repository(context, arguments.repository)
    uri = f"{repository['repositoryUri']}:{tag}"
    user, password = _credentials(context)
    registry = uri.split("/")[0]
    context.engine.run([engine, "login", "--username", user, "--password-stdin", registry], password)
    context.engine.run([engine, "tag", arguments.local_image, uri])
    context.engine.run([engine, "push", *PUSH_OPTIONS[engine], uri])
    _warn_of_oci(context, arguments.repository, tag)
    context.out(uri)


def ensure_repository(context: Context, name: str) -> Reply:
    """The ECR repository; creates it with the project's tag when there is none."""
    found = context.calls.find("ecr", "DescribeRepositories", {"repositoryNames": [name]})
    if found:
        there: Reply = found["repositories"][0]
        return there
    context.say(f"creating ECR repository {name}")
    parameters = {"repositoryName": name, "imageScanningConfiguration": {"scanOnPush": True}, "tags": tags(name)[:1]}
    assumed = {"repository": {"repositoryUri": assumed_repository(context).replace(PROJECT, name)}}
    made: Reply = context.calls.call("ecr", "CreateRepository", parameters, assumed)["repository"]
    return made


def _credentials(context: Context) -> tuple[str, str]:
    """User and password of the registry, valid for 12 hours."""
    assumed = {"authorizationData": [{"authorizationToken": ASSUMED_TOKEN}]}
    data = context.calls.call("ecr", "GetAuthorizationToken", {}, assumed)["authorizationData"]
    if not data:
        raise DeployError("ECR returned no password: try again")
    user, _, password = base64.b64decode(data[0]["authorizationToken"]).decode().partition(":")
    return user, password


def _warn_of_oci(context: Context, repository: str, tag: str) -> None:
    """Warns when the image has an OCI manifest: CreateModel fails with 'Unsupported manifest media type'."""
    query = {"repositoryName": repository, "imageIds": [{"imageTag": tag}]}
    assumed = {"imageDetails": [{"imageManifestMediaType": ""}]}
    found = context.calls.find("ecr", "DescribeImages", query, assumed)
    if found and "oci" in found["imageDetails"][0].get("imageManifestMediaType", ""):
        context.say(
            "warning: the image has an OCI manifest, which SageMaker refuses; build it with "
            "'docker build --provenance=false --output type=docker', or push it with podman"
        )
