"""Finds, creates and deletes the resources of a stack, which are those that have this program's two
tags."""

import re
import subprocess
import sys
from pathlib import Path

from deploy.aws import Aws, Reply
from deploy.errors import DeployError
from deploy.options import PROJECT, Common, Endpoint

KINDS = ("Endpoint", "EndpointConfig", "Model")  # in deletion order


def say(text: str) -> None:
    """Print a message for the user to stderr, because stdout is for results and for the calls of a
    dry run."""
    print(text, file=sys.stderr, flush=True)


def git_version() -> str:
    """Return the version of this checkout as `git describe` prints it. Raise DeployError if it
    prints none."""
    try:
        return subprocess.run(
            ["git", "describe", "--tags", "--always", "--dirty"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        raise DeployError(
            "git describe finds no version: pass --tag to push, and --image to create"
        ) from None


def tags(options: Common) -> list[dict[str, str]]:
    """Return the two tags with which this program marks the resources that it creates."""
    return [{"Key": "created-by", "Value": PROJECT}, {"Key": "stack", "Value": options.name}]


def tagged(options: Endpoint, parameters: Reply) -> Reply:
    """Return the request with three kinds of tags: the endpoint's own tags, the tags in --config,
    which replace own tags with the same key, and the tags that mark the stack."""
    others = {tag["Key"]: tag for tag in (*options.own_tags, *parameters.get("Tags", ()))}
    return {**parameters, "Tags": [*others.values(), *tags(options)]}


def tags_of(aws: Aws, arn: str) -> list[dict[str, str]]:
    """Return the resource's tags, except those that AWS sets itself."""
    tags = aws.list("sagemaker", "ListTags", "Tags", ResourceArn=arn)
    return [tag for tag in tags if not tag["Key"].startswith("aws:")]


def is_ours(options: Common, aws: Aws, arn: str) -> bool:
    """Return whether the resource has both tags of the stack."""
    present = tags_of(aws, arn)
    return all(tag in present for tag in tags(options))


def names_in_stack(options: Common, aws: Aws, kind: str) -> list[str]:
    """Return the names of the stack's resources of this kind."""
    name = f"{kind}Name"
    # an endpoint has the stack's name; other resources get names from specification._named
    ours = re.compile(re.escape(options.name) + "(-[0-9a-f]{8})?")
    resources = aws.list("sagemaker", f"List{kind}s", f"{kind}s", NameContains=options.name)
    return [
        resource[name]
        for resource in resources
        # check the name first, to avoid reading the tags of every resource
        if ours.fullmatch(resource[name]) and is_ours(options, aws, resource[f"{kind}Arn"])
    ]


def ensure(aws: Aws, kind: str, parameters: Reply) -> None:
    """Create the resource, unless one with its name exists."""
    name = parameters[f"{kind}Name"]
    if aws.find("sagemaker", f"Describe{kind}", **{f"{kind}Name": name}):
        say(f"{kind} {name} exists already")
        return
    say(f"creating {kind} {name}")
    aws.write("sagemaker", f"Create{kind}", parameters)


def remove(aws: Aws, kind: str, name: str) -> None:
    say(f"deleting {kind} {name}")
    aws.remove("sagemaker", f"Delete{kind}", **{f"{kind}Name": name})
