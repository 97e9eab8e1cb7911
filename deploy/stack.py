"""A stack's names and tags, and the AWS resources with these tags."""

import hashlib
import json
import re
from dataclasses import dataclass
from typing import Any

from deploy.context import Context
from deploy.errors import UsageError

PROJECT = "triton-multi-model"
VARIANT = "AllTraffic"
MAX_NAME = 46  # SageMaker allows 63 characters; a transform job's suffix needs the rest
ACCOUNT = "123456789012"  # stands for the user's account in a dry run
DIGEST = 8  # hexadecimal digits
ASSUMED_DIGEST = "0" * DIGEST


@dataclass(frozen=True)
class Kind:
    """A kind of SageMaker resource: its word in operations and fields, its part of an ARN, its name for people."""

    word: str
    arn: str
    label: str


ENDPOINT = Kind("Endpoint", "endpoint", "endpoint")
CONFIG = Kind("EndpointConfig", "endpoint-config", "endpoint configuration")
MODEL = Kind("Model", "model", "model")


def check_name(name: str) -> str:
    """The name; raises UsageError when SageMaker would refuse it."""
    if not re.fullmatch(r"[a-zA-Z0-9](-*[a-zA-Z0-9])*", name) or len(name) > MAX_NAME:
        raise UsageError(
            f"--name '{name}' must be letters and digits, with - only between them, at most {MAX_NAME} characters"
        )
    return name


def tags(name: str) -> list[dict[str, str]]:
    """The two tags by which `delete` finds what was created."""
    return [{"Key": "created-by", "Value": PROJECT}, {"Key": "stack", "Value": name}]


def is_ours(found: list[dict[str, str]], name: str) -> bool:
    """Whether a resource with these tags belongs to this stack."""
    return all(tag in found for tag in tags(name))


def content_name(name: str, parameters: dict[str, Any]) -> str:
    """NAME-DIGEST: the same parameters give the same name, so that a command that failed halfway can be repeated."""
    text = json.dumps(parameters, sort_keys=True)
    return f"{name}-{hashlib.sha256(text.encode()).hexdigest()[:DIGEST]}"


def arn(context: Context, kind: Kind, name: str) -> str:
    """The ARN that a dry run assumes."""
    return f"arn:{context.partition.id}:sagemaker:{context.region}:{ACCOUNT}:{kind.arn}/{name}"


def has_tags(context: Context, resource: str) -> bool:
    """Whether the SageMaker resource with this ARN belongs to the stack."""
    found = context.calls.pages("sagemaker", "ListTags", {"ResourceArn": resource}, "Tags", tags(context.name))
    return is_ours(found, context.name)


def owned(context: Context, kind: Kind, but: str = "") -> list[str]:
    """Names of the stack's resources of this kind, newest first, except `but`."""
    assumed = context.name if kind is ENDPOINT else f"{context.name}-{ASSUMED_DIGEST}"
    item = {f"{kind.word}Name": assumed, f"{kind.word}Arn": arn(context, kind, assumed)}
    order = {"NameContains": context.name, "SortBy": "CreationTime", "SortOrder": "Descending"}
    found = context.calls.pages("sagemaker", f"List{kind.word}s", order, f"{kind.word}s", [item])
    mine = re.compile(re.escape(context.name) + rf"(-[0-9a-f]{{{DIGEST}}})?")
    return [
        each[f"{kind.word}Name"]
        for each in found
        if each[f"{kind.word}Name"] != but
        and mine.fullmatch(each[f"{kind.word}Name"])
        and has_tags(context, each[f"{kind.word}Arn"])
    ]


def remove(context: Context, kind: Kind, name: str) -> None:
    """Deletes the resource; no error if it is gone already."""
    context.say(f"deleting {kind.label} {name}")
    context.calls.find("sagemaker", f"Delete{kind.word}", {f"{kind.word}Name": name})
